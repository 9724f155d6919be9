"""Apps that hosts.toml does not have: scripts that were pushed from here by their path."""

from __future__ import annotations

from pathlib import Path

from ctdeploy.inventory.tables import NAME
from ctdeploy.inventory.values import App
from ctdeploy.journal import Journal


def pushed_from_here(name: str) -> App | None:
    """The app of that name as it was last pushed from this machine; None when it never was."""
    if not NAME.match(name):
        return None
    newest = Journal(name).newest()
    if newest is None or "entry" not in newest[1]:
        return None
    entry, root = Path(newest[1]["entry"]), Path(newest[1]["root"])
    return App(name, entry=entry, root=root, base=root, configured=False)

"""A lab of a test's own: its state and its cache lie in a folder of the test, the user's lab is never touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctdeploy.lab import host
from ctdeploy.lab.host import LabEndpoint


@contextmanager
def start_lab(path: Path, *, cache: Path | None = None) -> Iterator[LabEndpoint]:
    """Bring up a lab in `path`, end it afterwards. Child processes find it by the environment, which is set meanwhile.

    `cache` is a folder to share with other labs; by default it is `path`/cache and goes with the test.
    """
    wanted = {"CTDEPLOY_LAB_DIR": str(path / "lab"), "CTDEPLOY_LAB_CACHE": str(cache or path / "cache")}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield host.ensure_up()
    finally:
        host.down(cache=cache is None)
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value

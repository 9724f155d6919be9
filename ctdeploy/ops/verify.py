"""verify: the active release against its manifest, the markers, and what the user may believe to be there."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctdeploy.errors import CheckError, CtdeployError, UsageError, VerifyError
from ctdeploy.inventory.values import App, Container
from ctdeploy.journal import Journal
from ctdeploy.ops import checks
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.measure import measure
from ctdeploy.ops.reporter import Reporter
from ctdeploy.release.build import build_release
from ctdeploy.remote.session import Session


@dataclass(frozen=True)
class VerifyResult:
    """The active release, as measured in the container."""

    app: str
    container: str
    release: str
    number: int
    pushed_at: float
    age_s: float
    who: str
    git: str | None
    python: str
    files: int
    markers: tuple[checks.FoundMarker, ...]
    warnings: tuple[str, ...]


def verify(
    container: Container,
    app: App,
    reporter: Reporter,
    *,
    markers: tuple[str, ...] = (),
    forbidden: tuple[str, ...] = (),
    path: Path | None = None,
    strict: bool = False,
) -> VerifyResult:
    """Measure the active release. `path`: a local file that must be deployed exactly as it is here.

    Raises VerifyError when a file differs, a marker is missing or something forbidden is there; with `strict` also when
    the local source differs or the last push from here went to another container. MissingError without a release.
    """
    reporter.step(f"verifying {app.name} in {container.label}")
    wanted = markers or app.markers
    source = app.source((), forbidden)
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        hello = session.hello()
        measured = measure(session, hello, markers=wanted, forbidden=source.forbidden)
    release = measured.release
    assert release is not None
    manifest = release["manifest"]
    if path is not None:
        _same_as_here(path, app, release)
    warnings = _beliefs(container, app, manifest["digest"])
    if strict and warnings:
        raise VerifyError(warnings[0], next="ctdeploy push")
    for warning in warnings:
        reporter.warn(warning)
    git = manifest.get("git")
    return VerifyResult(
        app=app.name,
        container=container.label,
        release=release["name"],
        number=release["number"],
        pushed_at=manifest["at"],
        age_s=max(0.0, hello.time - manifest["at"]),
        who=manifest["who"],
        git=(git["revision"][:12] + ("-dirty" if git["dirty"] else "")) if git else None,
        python=checks.version_text(hello),
        files=len(manifest["files"]),
        markers=measured.markers,
        warnings=tuple(warnings),
    )


def _same_as_here(path: Path, app: App, release: dict[str, Any]) -> None:
    try:
        name = path.resolve().relative_to(app.root.resolve()).as_posix()
        here = hashlib.sha256(path.read_bytes()).hexdigest()
    except ValueError:
        raise UsageError(
            f"{path} is not below {app.root}, the root of {app.name}", next="ctdeploy config show"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    there = {entry["path"]: entry["sha256"] for entry in release["manifest"]["files"]}.get(name)
    if there is None:
        raise VerifyError(f"{name} is not part of release {release['name']}", next="ctdeploy push")
    if there != here:
        raise VerifyError(f"{name} in release {release['name']} is not what {path} is here", next="ctdeploy push")


def _beliefs(container: Container, app: App, deployed: str) -> list[str]:
    """Where what is deployed is not what somebody who sits here would think."""
    warnings = []
    if app.entry.exists():
        try:
            local = build_release(app.source())
        except CheckError as error:
            warnings.append(f"the local source does not pass its own check: {error.message}")
        except CtdeployError:
            pass
        else:
            if local.digest != deployed:
                warnings.append("the local source differs from what is deployed")
    newest = Journal(app.name).newest()
    if newest and newest[0] != container.address:
        ago = int(time.time() - newest[1].get("at", 0))
        warnings.append(f"the last push of {app.name} from here went to {newest[0]}, {ago} s ago")
    return warnings

"""One measurement of a release in the container, judged: what push, verify and run rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ctdeploy.inventory.values import App, Container
from ctdeploy.ops import checks
from ctdeploy.remote.payloads.markers import Forbidden
from ctdeploy.remote.session import Hello, Session

MEASURE_S = 300.0


@dataclass(frozen=True)
class Measured:
    """A release whose files, syntax and markers were found to be as they should. `release`: None while it is placed."""

    release: dict[str, Any] | None
    markers: tuple[checks.FoundMarker, ...]
    imports_missing: tuple[str, ...]


@dataclass(frozen=True)
class LaunchAs:
    """Whom a run runs as and with which variables: decides which imports can be found."""

    user: str
    env: Mapping[str, str]


def launch_as(container: Container, app: App, more: Iterable[tuple[str, str]] = ()) -> LaunchAs:
    """Nothing of the host; the launch interpreter's folder first on PATH, so that its tools are the ones found."""
    folder = container.python.rsplit("/", 1)[0]
    path = f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return LaunchAs(container.run_as, {"PATH": path, "LANG": "C.UTF-8", **container.env, **app.env, **dict(more)})


def measure(
    session: Session,
    hello: Hello,
    *,
    markers: tuple[str, ...],
    forbidden: tuple[Forbidden, ...],
    run: LaunchAs | None = None,
    placed: tuple[str, dict[str, Any]] | None = None,
    mend: str = "ctdeploy push --force",
) -> Measured:
    """Hashes, syntax, markers and, with `run`, imports of the active release, or of one `placed` (path, manifest).

    Raises VerifyError; `mend` is the command that it suggests when files differ from the manifest.
    """
    where = {"path": placed[0], "manifest": placed[1]} if placed else {}
    who = {"user": run.user, "env": dict(run.env)} if run else {}
    answer = session.call(
        "verify",
        markers=list(markers),
        forbidden=[pattern._asdict() for pattern in forbidden],
        answer_s=MEASURE_S,
        **where,
        **who,
    )
    checks.no_drift(answer["drift"], mend)
    checks.no_compile_errors(answer["errors"], hello)
    return Measured(
        release=answer["release"],
        markers=checks.markers_as_wanted(answer["markers"], markers),
        imports_missing=tuple(answer["imports_missing"]),
    )

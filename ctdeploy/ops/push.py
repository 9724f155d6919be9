"""push: source -> Release -> StagedRelease -> PlacedRelease -> VerifiedRelease -> ActiveRelease."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ctdeploy.errors import CheckError, CtdeployError, VerifyError
from ctdeploy.inventory.values import App, Container
from ctdeploy.journal import Journal
from ctdeploy.ops import checks
from ctdeploy.ops.connection import Link, connect, place_of, start_container, who
from ctdeploy.ops.measure import MEASURE_S, LaunchAs, launch_as, measure
from ctdeploy.ops.reporter import Reporter
from ctdeploy.release.build import build_release
from ctdeploy.release.bundle import bundle
from ctdeploy.release.model import Release
from ctdeploy.release.python_file import syntax_error
from ctdeploy.remote import layout, pct
from ctdeploy.remote.session import Hello, Session, session_argv
from ctdeploy.remote.staging import Pushed, Stager, staging_argv


@dataclass(frozen=True)
class PushOptions:
    """What the command line may ask of a push."""

    markers: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    activate: bool = True
    start: bool = False
    force: bool = False
    lock_wait_s: float = 0.0


@dataclass(frozen=True)
class PushPlan:
    """What a push will do and give to the transport, decided before any network."""

    release: Release
    staging: layout.Staging
    nonce: str
    new_files: tuple[str, ...]  # paths whose content the container is not believed to have
    session: tuple[str, ...]
    stage: tuple[str, ...]
    run: LaunchAs
    keep: int


@dataclass(frozen=True)
class PlacedRelease:
    """Files at a temporary place in the container. `sent`: how many of them travelled."""

    release: Release
    path: str
    manifest: dict[str, Any]
    way: str | None
    sent: int


@dataclass(frozen=True)
class VerifiedRelease:
    """Files that were measured in the container, under their release number."""

    release: Release
    name: str
    number: int
    way: str | None
    sent: int
    markers: tuple[checks.FoundMarker, ...]
    imports_missing: tuple[str, ...]
    python: str


@dataclass(frozen=True)
class PushResult:
    """What a push did. `unchanged`: the active release already had these very files."""

    app: str
    container: str
    release: str
    number: int
    before: str | None
    activated: bool
    unchanged: bool
    files: int
    bytes: int
    sent: int
    way: str | None
    python: str
    markers: tuple[checks.FoundMarker, ...]
    warnings: tuple[str, ...] = field(default=())
    seconds: float = 0.0


def plan(container: Container, app: App, options: PushOptions, journal: Journal | None = None) -> PushPlan:
    """The local check, and what a push would do. Raises CheckError, UsageError; touches no network."""
    release = build_release(app.source(options.markers, options.forbidden))
    place = place_of(container)
    last = (journal or Journal(app.name)).last(container.address) or {}
    believed = set(last.get("hashes", []))
    staging = layout.new_staging(app.name, container.host.staging or layout.HOST_STAGING)
    nonce = secrets.token_hex(8)
    return PushPlan(
        release=release,
        staging=staging,
        nonce=nonce,
        new_files=tuple(file.path for file in release.files if file.sha256 not in believed),
        session=session_argv(place),
        stage=staging_argv(place, staging, nonce),
        run=launch_as(container, app),
        keep=app.keep,
    )


def push(container: Container, app: App, options: PushOptions, reporter: Reporter) -> PushResult:
    """Bring an app's files into a container, verify them there and make them the active release.

    Raises CheckError before any network, NetworkError, HostError, LockedError, VerifyError. Whatever it raises, the
    active release is the one that was active before.
    """
    began = time.monotonic()
    journal = Journal(app.name)
    reporter.step(f"checking {app.name}")
    planned = plan(container, app, options, journal)
    release = planned.release
    for warning in release.warnings:
        reporter.warn(str(warning))
    if release.syntax_errors and _is_final(journal.last(container.address)):
        raise syntax_error(release.syntax_errors)
    try:
        with connect(container, reporter) as link:
            try:
                result = _push(link, planned, options, reporter)
            except pct.NotRunning:
                if not options.start:
                    raise
                start_container(link, reporter)
                result = _push(link, planned, options, reporter)
    except CtdeployError as error:
        # Nobody in the container could say whether its Python is newer than ours, so our own verdict stands.
        if release.syntax_errors and not isinstance(error, VerifyError | CheckError):
            raise syntax_error(release.syntax_errors) from error
        raise
    recorded = journal.record(
        container.address,
        digest=release.digest,
        release=result.release,
        entry=str(app.entry),
        root=str(app.root),
        hashes=[file.sha256 for file in release.files],
        python=result.python,
    )
    if not recorded:
        reporter.warn("this push could not be remembered here; the next one will send everything again")
    return replace(result, container=container.label, seconds=round(time.monotonic() - began, 3))


def _push(link: Link, planned: PushPlan, options: PushOptions, reporter: Reporter) -> PushResult:
    release = planned.release
    with ExitStack() as stack:
        session = stack.enter_context(Session(link.transport, link.place, release.app, who()))
        stager = None
        if planned.new_files:
            # pct needs 0.7 s to start, twice; so it pushes while the session comes up, and is checked afterwards.
            stager = stack.enter_context(Stager(link.transport, link.place, planned.staging, planned.nonce))
            sent = {release.file(path).sha256 for path in planned.new_files}
            way = stager.start(bundle(release, sent))
            reporter.step(f"pushing {len(planned.new_files)} files to {link.place.name} ({way}, pct push)")
        hello = session.hello()
        if release.syntax_errors and hello.python[:2] <= sys.version_info[:2]:
            raise syntax_error(release.syntax_errors)
        checks.python_version(release, hello)
        held = session.call(
            "lock",
            why=f"push {release.app} {release.digest[:12]}",
            wait_s=options.lock_wait_s,
            incoming=planned.staging.incoming,
            answer_s=options.lock_wait_s + 30,
        )
        active = held["active"]
        if active and active["manifest"]["digest"] == release.digest and not options.force:
            return _unchanged(session, planned, active, hello, reporter)
        placed = _place(link, session, stager, planned, stack, reporter)
        verified = _verify(session, placed, hello, planned, reporter)
        return _activate(session, verified, options, active, planned.keep, reporter)


def _place(
    link: Link, session: Session, stager: Stager | None, planned: PushPlan, stack: ExitStack, reporter: Reporter
) -> PlacedRelease:
    release = planned.release
    files = [{"sha256": file.sha256} for file in release.files]
    missing = set(session.call("missing", files=files, answer_s=MEASURE_S)["missing"])
    sent = {release.file(path).sha256 for path in planned.new_files} if stager else set()
    pushed: Pushed | None = None
    if not missing <= sent:
        # The container has less than this machine remembered (a reset, another client's prune): push all that it lacks.
        reporter.note("the container has less than expected; pushing what it lacks")
        if stager is None:
            stager = stack.enter_context(Stager(link.transport, link.place, planned.staging, planned.nonce))
        else:
            stager.finish()
        sent = missing
        stager.start(bundle(release, missing))
    if stager is not None:
        pushed = stager.finish()
        if pushed.said:
            reporter.note(f"pct push said: {pushed.said}")
    manifest = dict(release.manifest(), imports=checks.import_names(release), who=who())
    try:
        answer = session.call(
            "place", manifest=manifest, bundle=pushed.as_request() if pushed else None, answer_s=MEASURE_S
        )
    except VerifyError as error:
        if pushed and pushed.said:
            error.remote = pushed.said
        raise
    travelled = sum(file.sha256 in sent for file in release.files)
    return PlacedRelease(release, answer["path"], answer["manifest"], pushed.way if pushed else None, travelled)


def _verify(
    session: Session, placed: PlacedRelease, hello: Hello, planned: PushPlan, reporter: Reporter
) -> VerifiedRelease:
    release = placed.release
    reporter.step(f"verifying {len(release.files)} files in the container")
    measured = measure(
        session,
        hello,
        markers=release.markers,
        forbidden=release.forbidden,
        run=planned.run,
        placed=(placed.path, placed.manifest),
        mend="ctdeploy push",
    )
    for warning in checks.import_warnings(release, measured.imports_missing):
        reporter.warn(warning)
    stored = session.call(
        "store", path=placed.path, digest=release.digest, facts={"files": len(release.files), "bytes": release.size}
    )
    return VerifiedRelease(
        release,
        stored["name"],
        stored["number"],
        placed.way,
        placed.sent,
        measured.markers,
        measured.imports_missing,
        checks.version_text(hello),
    )


def _activate(
    session: Session,
    verified: VerifiedRelease,
    options: PushOptions,
    active: dict[str, Any] | None,
    keep: int,
    reporter: Reporter,
) -> PushResult:
    before = active["name"] if active else None
    if options.activate:
        reporter.step(f"activating release {verified.name}")
        done = session.call("activate", name=verified.name, keep=keep)
        for name in done["pruned"]:
            reporter.note(f"removed release {name}: more than {keep} are not kept")
    return _result(verified, before=before, activated=options.activate, unchanged=False)


def _unchanged(
    session: Session, planned: PushPlan, active: dict[str, Any], hello: Hello, reporter: Reporter
) -> PushResult:
    """Nothing new: the active release is verified where it lies, and stays."""
    release = planned.release
    reporter.step(f"release {active['name']} already has these files; verifying it")
    measured = measure(session, hello, markers=release.markers, forbidden=release.forbidden, run=planned.run)
    for warning in checks.import_warnings(release, measured.imports_missing):
        reporter.warn(warning)
    verified = VerifiedRelease(
        release,
        active["name"],
        active["number"],
        None,
        0,
        measured.markers,
        measured.imports_missing,
        checks.version_text(hello),
    )
    return _result(verified, before=active["name"], activated=True, unchanged=True)


def _result(verified: VerifiedRelease, *, before: str | None, activated: bool, unchanged: bool) -> PushResult:
    release = verified.release
    warnings = [str(warning) for warning in release.warnings]
    warnings += checks.import_warnings(release, verified.imports_missing)
    return PushResult(
        app=release.app,
        container="",
        release=verified.name,
        number=verified.number,
        before=before,
        activated=activated,
        unchanged=unchanged,
        files=len(release.files),
        bytes=release.size,
        sent=verified.sent,
        way=verified.way,
        python=verified.python,
        markers=verified.markers,
        warnings=tuple(warnings),
    )


def _is_final(last: dict[str, Any] | None) -> bool:
    """Whether our own SyntaxError needs no second opinion: the launch interpreter is known to be no newer than ours."""
    known = (last or {}).get("python")
    if not known:
        return False
    return tuple(int(part) for part in known.split(".")[:2]) <= sys.version_info[:2]

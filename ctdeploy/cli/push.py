"""ctdeploy push: bring an app into a container, verified, and make it the active release."""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment

if TYPE_CHECKING:
    from ctdeploy.inventory.values import App, Container
    from ctdeploy.ops.push import PushOptions, PushResult


def register(app: typer.Typer) -> None:
    command(app, "push")(push)


def push(
    env: Environment,
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="Script to push; default: the app's.")] = None,
    ct: CtOption = None,
    app: AppOption = None,
    marker: Annotated[
        list[str] | None, typer.Option("--marker", help="Must stand in the code (text, text@GLOB, call:f(k=v)).")
    ] = None,
    forbid: Annotated[list[str] | None, typer.Option("--forbid", help="Must not stand in the code.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would travel and every remote command.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what differs from the active release; push nothing.")
    ] = False,
    no_activate: Annotated[
        bool, typer.Option("--no-activate", help="Verify and keep, but do not switch to it.")
    ] = False,
    start: Annotated[bool, typer.Option("--start", help="Start a stopped container.")] = False,
    force: Annotated[bool, typer.Option("--force", help="A new release even if nothing changed.")] = False,
) -> None:
    """Check, push, verify in the container, activate."""
    from ctdeploy.ops import push as ops
    from ctdeploy.ops.diff import diff as compare

    options = ops.PushOptions(
        markers=tuple(marker or ()),
        forbidden=tuple(forbid or ()),
        activate=not no_activate,
        start=start,
        force=force,
        lock_wait_s=env.options.lock_wait,
    )
    what = env.app(app, path)
    container = env.container(ct)
    if dry_run:
        _dry_run(env, container, what, options)
        return
    with env.deadline():
        if diff:
            difference = compare(container, what, options, env)
            env.result(difference, lambda: _render_diff(env, difference.files))
            return
        result = ops.push(container, what, options, env)
    env.result(result, lambda: _render(env, result))


def _render(env: Environment, result: PushResult) -> None:
    for found in result.markers:
        env.line(f"{found.path}:{found.line}: {found.text}")
    where = f"{result.app}@{result.container}"
    if result.unchanged:
        env.line(f"{where}: release {result.release} is active and has these {result.files} files already, verified")
    else:
        state = f"active (before: {result.before or 'none'})" if result.activated else "kept, not activated"
        env.line(
            f"{where}: release {result.release} {state}, {result.files} files verified by Python {result.python}"
            f" in {result.seconds:.1f} s"
        )
    if not result.activated:
        env.hint(f"active is still {result.before or 'none'}")
        return
    env.hint("next: ctdeploy run")


def _dry_run(env: Environment, container: Container, what: App, options: PushOptions) -> None:
    from ctdeploy.ops.push import plan

    planned = plan(container, what, options)
    release = planned.release
    for warning in release.warnings:
        env.warn(str(warning))
    new = set(planned.new_files)
    document: dict[str, Any] = {
        "dry_run": True,
        "app": release.app,
        "container": container.label,
        "digest": release.digest,
        "files": [
            {"path": file.path, "size": file.size, "sha256": file.sha256, "new": file.path in new}
            for file in release.files
        ],
        "markers": [hit._asdict() for hits in release.found.values() for hit in hits],
        "commands": [list(planned.session), *([list(planned.stage)] if new else [])],
        "put": planned.staging.bundle if new else None,
    }

    def render() -> None:
        for file in release.files:
            env.line(f"{'send' if file.path in new else 'have'}  {file.size:>9}  {file.path}")
        env.line(f"on {container.host.name}:")
        for argv in document["commands"]:
            env.line("  " + shlex.join(argv))
        if new:
            env.line(f"  put: {planned.staging.bundle}")

    env.result(document, render)


def _render_diff(env: Environment, files: tuple[Any, ...]) -> None:
    if not files:
        env.line("nothing differs from the active release")
    for file in files:
        env.line(f"{file.change:<8} {file.path}")
        for line in difflib.unified_diff(
            (file.there or "").splitlines(), (file.here or "").splitlines(), "active", "here", lineterm="", n=2
        ):
            style = {"+": "green", "-": "red"}.get(line[:1])
            env.line(line, style=style)

"""ctdeploy verify: is what is deployed what was meant to be, and does it carry the marker?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment, ago

if TYPE_CHECKING:
    from ctdeploy.inventory.values import App
    from ctdeploy.ops.verify import VerifyResult


def register(app: typer.Typer) -> None:
    command(app, "verify")(verify)


def verify(
    env: Environment,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A local file that must be deployed exactly as it is.")
    ] = None,
    ct: CtOption = None,
    app: AppOption = None,
    marker: Annotated[
        list[str] | None, typer.Option("--marker", help="Instead of the app's (text, text@GLOB, call:f(k=v)).")
    ] = None,
    forbid: Annotated[list[str] | None, typer.Option("--forbid", help="Beside the app's.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings end with 7.")] = False,
) -> None:
    """Measure the active release in the container: hashes, syntax, markers."""
    from ctdeploy.ops.verify import verify as measure

    what = _app(env, app, path)
    container = env.container(ct)
    with env.deadline():
        result = measure(
            container,
            what,
            env,
            markers=tuple(marker or ()),
            forbidden=tuple(forbid or ()),
            path=(env.cwd / path) if path else None,
            strict=strict,
        )
    env.result(result, lambda: _render(env, result))


def _app(env: Environment, name: str | None, path: str | None) -> App:
    """The app that a path belongs to: as its entry, or as a file below the default app's root."""
    if name is not None or path is None:
        return env.app(name)
    named = env.inventory.app_for_path(path, env.cwd)
    if not named.configured:
        default = env.inventory.app(None)
        if Path(env.cwd / path).resolve().is_relative_to(default.root.resolve()):
            return default
    return named


def _render(env: Environment, result: VerifyResult) -> None:
    for found in result.markers:
        env.line(f"{found.path}:{found.line}: {found.text}")
    git = f", git {result.git}" if result.git else ""
    env.line(
        f"{result.app}@{result.container}: release {result.release}, pushed {ago(result.age_s)} ago"
        f" by {result.who}{git}: {result.files} files verified by Python {result.python}"
    )

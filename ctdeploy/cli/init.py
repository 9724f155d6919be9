"""ctdeploy init: a first hosts.toml."""

from __future__ import annotations

from typing import Annotated

import typer

from ctdeploy.cli.common import command
from ctdeploy.cli.environment import Environment
from ctdeploy.errors import UsageError


def register(app: typer.Typer) -> None:
    command(app, "init")(init)


def init(
    env: Environment,
    path: Annotated[str | None, typer.Argument(metavar="[SCRIPT]", help="The training script to deploy.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing hosts.toml.")] = False,
) -> None:
    """Write a commented hosts.toml into the working folder."""
    from ctdeploy.inventory.show import first_hosts_toml

    target = env.cwd / (env.options.config or "hosts.toml")
    text = first_hosts_toml(path)
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{target} is there already", next="ctdeploy config show, or ctdeploy init --force") from None
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    env.result({"file": str(target)}, lambda: env.line(f"wrote {target}"))
    env.hint("next: ctdeploy push")

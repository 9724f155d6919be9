"""ctdeploy config: what is in force, and where it comes from."""

from __future__ import annotations

import json

import typer

from ctdeploy.cli.common import command
from ctdeploy.cli.environment import Environment


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="What is in force.", no_args_is_help=True)
    command(config, "show")(show)
    app.add_typer(config, name="config")


def show(env: Environment) -> None:
    """Every setting in force, with the file and line that it comes from."""
    from ctdeploy.inventory.show import effective

    located = env.inventory.located
    settings = effective(env.inventory)
    document = {
        "file": str(located.path),
        "how": located.how,
        "settings": [{"key": each.key, "value": each.value, "origin": each.origin} for each in settings],
    }

    def render() -> None:
        env.line(f"# {located.path} ({located.how})")
        width = max((len(each.key) for each in settings), default=0)
        for each in settings:
            env.line(f"{each.key:<{width}} = {json.dumps(each.value, default=str)}  # {each.origin}")

    env.result(document, render)

"""The entry point. Imports of commands are cheap: what costs time (paramiko, pydantic, rich) is imported when used."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ctdeploy import __version__
from ctdeploy.cli import config, demo, init, lab, logs, push, run, status, stop, verify
from ctdeploy.cli.environment import Environment, Options
from ctdeploy.errors import ExitCode, UsageError

app = typer.Typer(
    name="ctdeploy",
    help="From an editor to a verified, supervised run inside a Proxmox VE LXC container.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

push.register(app)
verify.register(app)
run.register(app)
logs.register(app)
status.register(app)
stop.register(app)
init.register(app)
config.register(app)
lab.register(app)
demo.register(lab.app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ctdeploy {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(given, prog_name="ctdeploy", standalone_mode=False)
    except typer.Abort:
        code = int(ExitCode.DECLINED)
    except typer.TyperException as error:
        code = _usage(error, given)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: typer.TyperException, given: list[str]) -> int:
    """A command line that cannot be parsed: typer's own words, in our shape."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ctdeploy"
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:  # no_args_is_help: the help was printed
        return int(ExitCode.USAGE)
    Environment(Options(json="--json" in given)).failure(UsageError(message, next=f"{command} --help"))
    return int(ExitCode.USAGE)

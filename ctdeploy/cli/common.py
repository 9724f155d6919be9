"""The options that every command has, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from ctdeploy.cli.environment import Environment, Options, error_document
from ctdeploy.errors import CtdeployError, ExitCode

PANEL = "Everywhere"
CtOption = Annotated[str | None, typer.Option("--ct", metavar="CT", help="Container: name, id or ID@HOST.")]
AppOption = Annotated[str | None, typer.Option("--app", metavar="APP", help="App of hosts.toml.")]


def _options(
    json: Annotated[bool, typer.Option("--json", help="Result as one JSON document.", rich_help_panel=PANEL)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=PANEL)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Details.", rich_help_panel=PANEL)] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after so long.", rich_help_panel=PANEL),
    ] = None,
    lock_wait: Annotated[
        float,
        typer.Option("--lock-wait", metavar="SECONDS", min=0, help="Wait for a busy lock.", rich_help_panel=PANEL),
    ] = 0.0,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours.", rich_help_panel=PANEL)] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="hosts.toml to use.", rich_help_panel=PANEL)
    ] = None,
) -> None:
    """The signature is what counts: these parameters are added to every command's own."""


_COMMON = {
    name: parameter.replace(
        annotation=get_type_hints(_options, include_extras=True)[name], kind=inspect.Parameter.KEYWORD_ONLY
    )
    for name, parameter in inspect.signature(_options).parameters.items()
}


def command(app: typer.Typer, name: str, *names: str, **settings: Any) -> Callable[[Callable[..., None]], None]:
    """Register `function(env, ...)` under these names, with the common options added and errors handled."""

    def register(function: Callable[..., None]) -> None:
        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "env"
        ]

        def call(**values: Any) -> None:
            options = Options(**{key: values.pop(key) for key in _COMMON})
            execute(Environment(options), lambda env: function(env, **values))

        parameters = [*own, *_COMMON.values()]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__doc__ = function.__doc__
        for index, each in enumerate((name, *names)):
            app.command(each, hidden=index > 0, **settings)(call)

    return register


class _Terminated(BaseException):
    """SIGTERM, as an exception: locks, channels and temporary files are let go on the way out."""


def execute(env: Environment, work: Callable[[Environment], None]) -> None:
    """Run a command's body; whatever happens becomes one message and one exit code. Raises typer.Exit."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        try:
            work(env)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (CtdeployError, KeyboardInterrupt, _Terminated) as error:
            _fail(env, error)
        except (BrokenPipeError, typer.Exit, typer.Abort):
            raise
        except OSError as error:
            _fail(env, _bug(error) if error.filename else _unwritable(env, error))
        except Exception as error:
            _fail(env, _bug(error))
        finally:
            env.rest()
    except BrokenPipeError:
        # The reader went away (`ctdeploy logs | head`): end quietly, and keep Python from flushing into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(int(ExitCode.PIPE)) from None


def _fail(env: Environment, error: CtdeployError | KeyboardInterrupt | _Terminated) -> NoReturn:
    if isinstance(error, CtdeployError):
        env.failure(error)
        raise typer.Exit(int(error.code)) from None
    code, word = (
        (ExitCode.INTERRUPTED, "interrupted")
        if isinstance(error, KeyboardInterrupt)
        else (ExitCode.TERMINATED, "SIGTERM")
    )
    env.rest()
    if env.options.json:
        ended = CtdeployError(word)
        ended.code = code
        env.document(error_document(ended))
    raise typer.Exit(int(code)) from None


def _unwritable(env: Environment, error: OSError) -> CtdeployError:
    """Standard output cannot be written (a full disk behind `>`): what was done is done, but it cannot be told."""
    env.options = dataclasses.replace(env.options, json=False)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CtdeployError(f"the result could not be written to standard output: {error.strerror}")


def _bug(error: Exception) -> CtdeployError:
    from ctdeploy.journal import save_traceback

    saved = save_traceback(error)
    where = f"the traceback is in {saved}" if saved else "its traceback could not be saved"
    return CtdeployError(f"this is a bug: {type(error).__name__}: {error}", next=f"report it; {where}")


def _terminated(*_: object) -> NoReturn:
    raise _Terminated

"""What a command may use of the world: its streams, its options, its inventory. Tests replace it whole."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ctdeploy.errors import CtdeployError, TimedOut, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ctdeploy.inventory.inventory import Inventory
    from ctdeploy.inventory.values import App, Container

SCHEMA = 1
_OWN_COMMANDS = re.compile(r"\bctdeploy (?:push|verify|run|logs|status|stop)\b(?: (?:r\d+|--?[a-z-]+)\b)*")
WIDE = 200


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that every command has."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    timeout: float | None = None
    lock_wait: float = 0.0
    no_color: bool = False
    config: str | None = None


class Environment:
    """Streams, options and inventory of one call. It is the Reporter of every operation."""

    def __init__(
        self, options: Options, stdout: TextIO | None = None, stderr: TextIO | None = None, cwd: Path | None = None
    ) -> None:
        self.options = options
        self._stdout = _writable(stdout or sys.stdout)
        self._stderr = _writable(stderr or sys.stderr)
        self._selection: list[str] = []
        self._cwd = cwd
        self._spinner: Any = None

    @cached_property
    def cwd(self) -> Path:
        """The working folder. Raises UsageError when it is gone."""
        try:
            return self._cwd or Path.cwd()
        except FileNotFoundError:
            raise UsageError("the working folder does not exist any more", next="cd to one that does") from None

    @cached_property
    def out(self) -> Console:
        """For results: standard output."""
        return self._console(self._stdout)

    @cached_property
    def err(self) -> Console:
        """For progress, hints and errors: standard error."""
        return self._console(self._stderr)

    @cached_property
    def inventory(self) -> Inventory:
        """hosts.toml, found and checked. Raises ConfigError."""
        from ctdeploy.inventory.inventory import load

        return load(self.options.config, cwd=self.cwd)

    def container(self, selector: str | None) -> Container:
        """The container that `--ct` names, or the default. Raises UsageError."""
        if selector is not None:
            self._selection.append(f"--ct {selector}")
        return self.inventory.container(selector)

    def app(self, name: str | None, path: str | None = None) -> App:
        """The app that `--app` or a path names, or the default. Raises UsageError."""
        inventory = self.inventory
        if path is not None:
            app = inventory.app_for_path(path, self.cwd, name)
            if app.name != inventory.defaults.app:
                self._selection.append(f"--app {app.name}")
            return app
        if name is not None:
            self._selection.append(f"--app {name}")
        if name is not None and name not in inventory.apps:
            from ctdeploy.ops.adhoc import pushed_from_here

            return pushed_from_here(name) or inventory.app(name)
        return inventory.app(name)

    def step(self, text: str) -> None:
        """A phase begins: a moving line on a terminal, a plain one elsewhere."""
        if self.options.quiet:
            return
        if self.err.is_terminal and not self.options.verbose:
            if self._spinner is None:
                self._spinner = self.err.status(text, spinner="dots" if _is_utf8(self._stderr) else "line")
                self._spinner.start()
            else:
                self._spinner.update(text)
        else:
            self._line(self.err, text)

    def note(self, text: str) -> None:
        """A detail for --verbose."""
        if self.options.verbose:
            self._line(self.err, text, style="dim")

    def warn(self, text: str) -> None:
        """Something the user should know, on standard error even when quiet."""
        self._line(self.err, f"warning: {text}", style="yellow")

    def hint(self, text: str) -> None:
        """A next command to try."""
        if not self.options.quiet:
            self._line(self.err, self._selected(text), style="dim")

    def rest(self) -> None:
        """The work is over: no moving line any more."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def result(self, value: Any, render: Callable[[], None]) -> None:
        """The result of a command: one JSON document with --json, else what `render` prints."""
        self.rest()
        if self.options.json:
            self.document(plain(value))
        else:
            render()

    def document(self, body: dict[str, Any]) -> None:
        """One JSON document on standard output."""
        document = _finite({"schema": SCHEMA, **body})
        self._stdout.write(json.dumps(document, default=str, allow_nan=False) + "\n")
        self._stdout.flush()

    def line(self, text: str, style: str | None = None) -> None:
        """One line of a result. Text is printed as it is: no markup, no wrapping."""
        self._line(self.out, text, style)

    def raw(self, data: bytes) -> None:
        """Bytes of a result, untouched."""
        self.rest()
        self._stdout.flush()
        buffer = getattr(self._stdout, "buffer", None)
        if buffer is None:
            self._stdout.write(data.decode("utf-8", "replace"))
        else:
            buffer.write(data)
        self._stdout.flush()

    def log(self, data: bytes) -> None:
        """Bytes of a log that is progress, not result."""
        self.rest()
        if not self.options.quiet:
            self._stderr.write(data.decode("utf-8", "replace"))
            self._stderr.flush()

    def progress(self, data: bytes) -> None:
        """Bytes of a log that is only waited for: shown with --verbose."""
        if self.options.verbose:
            self.log(data)

    def failure(self, error: CtdeployError) -> None:
        """An expected error: on standard error, and as a document with --json."""
        self.rest()
        if error.next:
            error.next = self._selected(error.next)
        if self.options.json:
            self.document(error_document(error))
        self._line(self.err, f"ctdeploy: {error.layer}: {error.message}", style="red")
        for line in error.remote.splitlines():
            self._line(self.err, f"  | {line}", style="dim")
        if error.next:
            self._line(self.err, f"  try: {error.next}")

    @contextmanager
    def deadline(self, seconds: float | None = None) -> Iterator[None]:
        """Ends what happens inside with TimedOut after --timeout (or `seconds`)."""
        limit = self.options.timeout if self.options.timeout is not None else seconds
        if limit is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def expired(*_: object) -> NoReturn:
            raise TimedOut(
                f"not done within {limit:g} s", next="a higher --timeout, or --verbose to see where it waits"
            )

        before = signal.signal(signal.SIGALRM, expired)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _selected(self, text: str) -> str:
        """Commands in a hint, with the --ct and --app that this call had: run ids exist once per app and container."""
        extra = "".join(f" {word}" for word in dict.fromkeys(self._selection))
        return _OWN_COMMANDS.sub(lambda match: match.group(0) + extra, text) if extra else text

    def _console(self, stream: TextIO) -> Console:
        from rich.console import Console

        off = self.options.no_color or bool(os.environ.get("NO_COLOR"))
        # Off a terminal rich assumes 80 columns, and a table would lose its last ones.
        width = None if stream.isatty() else WIDE
        return Console(file=stream, no_color=off, highlight=False, soft_wrap=True, emoji=False, width=width)

    def _line(self, console: Console, text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)


def plain(value: Any) -> dict[str, Any]:
    """A result as plain values for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return value
    raise TypeError(f"not a result: {type(value).__name__}")


def error_document(error: CtdeployError) -> dict[str, Any]:
    """The `error` part of a JSON answer."""
    return {
        "error": {
            "code": int(error.code),
            "layer": error.layer,
            "message": error.message,
            "next": error.next,
            "remote": error.remote or None,
        }
    }


def ago(seconds: float) -> str:
    """A span of time in words that fit a table: 12 s, 3 min, 2 h, 5 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def at(timestamp: float) -> str:
    """A point in time, local."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))


def _finite(value: Any) -> Any:
    """NaN and infinities as null: a loss may be one, JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _writable(stream: TextIO | None) -> TextIO:
    """A stream that takes every text: closed (`>&-`) it swallows, and what its encoding lacks is replaced."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _is_utf8(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"

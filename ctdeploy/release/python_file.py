"""Reading a Python file without running it: text, syntax tree, and what is wrong with its bytes."""

from __future__ import annotations

import ast
import io
import shlex
import tokenize
import warnings
from pathlib import Path

from ctdeploy.errors import CheckError
from ctdeploy.release.model import SyntaxProblem, Warning
from ctdeploy.remote.payloads.calls import parse
from ctdeploy.remote.payloads.markers import printable

UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
UTF8_BOM = b"\xef\xbb\xbf"


def decode(data: bytes) -> str:
    """The text as Python reads it (PEP 263, BOM), with broken bytes replaced."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding, "replace")
    except (SyntaxError, LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def tree_of(data: bytes) -> ast.Module | None:
    """The syntax tree, or None if this interpreter cannot parse the file."""
    try:
        return parse(decode(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def syntax_problem(path: str, data: bytes) -> SyntaxProblem | None:
    """Compile the bytes in memory, as the interpreter would, leaving no file behind."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = error.lineno or 1
        return SyntaxProblem(path, line, error.offset or 0, printable(error.msg), _line(data, line))
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return SyntaxProblem(path, 1, 0, printable(str(error) or type(error).__name__), _line(data, 1))
    return None


def syntax_error(problems: tuple[SyntaxProblem, ...]) -> CheckError:
    """The final error for files that do not compile; shows the first offending line."""
    first = problems[0]
    more = f" ({len(problems) - 1} more files do not compile either)" if len(problems) > 1 else ""
    shown = f"\n    {first.text}" if first.text else ""
    return CheckError(f"{first}{more}{shown}", next=f"mend {first.path}, then push again")


def byte_problems(path: str, local: Path, data: bytes, mode: int, is_entry: bool) -> list[Warning]:
    """Look for what editors on other systems leave in scripts.

    Raises CheckError for what keeps the file from running: NUL bytes, UTF-16, CRLF in the entry script or in an
    executable with a shebang line (the kernel looks for "python\\r"), a byte order mark before a shebang line. Other
    CRLF and byte order marks are returned as warnings.
    """
    if data.startswith(UTF16_BOMS):
        raise CheckError(f"{path}:1: the file is UTF-16, which Python does not read", next="save it as UTF-8")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise CheckError(f"{path}:{line}: the file holds a NUL byte, which Python refuses", next=f"mend {path}")
    found = []
    shebang = data.removeprefix(UTF8_BOM).startswith(b"#!")
    if data.startswith(UTF8_BOM):
        if shebang and mode & 0o111:
            text = f"{path}:1: a byte order mark stands before the shebang line, so that it cannot be started"
            raise CheckError(text, next="save it as UTF-8 without a byte order mark")
        found.append(Warning(path, 1, "starts with a byte order mark"))
    if b"\r\n" in data:
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        if is_entry or (shebang and mode & 0o111):
            raise CheckError(
                f"{path}:{line}: lines end in CRLF, as on Windows", next=f"sed -i 's/\\r$//' {shlex.quote(str(local))}"
            )
        found.append(Warning(path, line, "lines end in CRLF, as on Windows"))
    return found


def _line(data: bytes, number: int) -> str:
    lines = decode(data).split("\n")
    return printable(lines[number - 1].strip()) if 0 < number <= len(lines) else ""

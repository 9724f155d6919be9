"""Small file work that must not be half done: atomic writes, fsync, hashing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any, Iterator, Optional


class Failure(Exception):
    """An expected failure in the container. `kind` picks the exit code on the laptop (see remote/session.py)."""

    def __init__(self, kind: str, message: str, next: Optional[str] = None, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.next = next
        self.facts = facts


def sha256_of(path: str) -> str:
    """SHA-256 of a file as hexadecimal text."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def fsync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: str, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet, durable before this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def replace_json(path: str, value: Any, mode: int = 0o644) -> None:
    """Replace a JSON file in one step: a reader sees the old text or the new one, never a part."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    write_new(temporary, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), mode)
    os.rename(temporary, path)
    fsync_folder(os.path.dirname(path))


def read_json(path: str) -> Any:
    """A JSON file's value, or None where there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def read_object(path: str) -> Optional[dict[str, Any]]:
    """A JSON file's object; None where there is none that can be read."""
    value = read_json(path)
    return value if isinstance(value, dict) else None


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; none where there is no such file. Lines that are not one are passed over."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict):
                        yield value
    except OSError:
        return


def append_line(path: str, value: Any) -> None:
    """Add one JSON line to a log in a single write, durable."""
    line = (json.dumps(value, sort_keys=True) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files_below(root: str) -> Iterator[str]:
    """Every file and link below a folder, as paths relative to it with forward slashes, in a stable order."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(names + links):
            yield os.path.relpath(os.path.join(folder, name), root)

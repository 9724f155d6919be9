"""Local files to a checked Release: everything that can be known before any network."""

from __future__ import annotations

import glob as globs
import hashlib
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ctdeploy.errors import CheckError, UsageError
from ctdeploy.release.exclude import is_hidden, is_litter
from ctdeploy.release.finder import find
from ctdeploy.release.git import git_state
from ctdeploy.release.model import Release, ReleaseFile, Source, SyntaxProblem, Warning
from ctdeploy.release.python_file import byte_problems, syntax_problem
from ctdeploy.remote.payloads.markers import SEARCH_LIMIT, Note, Result, glob_match, is_python_file, search


def build_release(source: Source) -> Release:
    """Find the files that travel, check each, look for the markers, and ask git where they come from.

    Raises UsageError for an entry or root that is not there, CheckError (exit code 4) for a file that cannot run or
    travel, for a marker that no code holds, and for code that is forbidden or cannot be told from it. A file that this
    interpreter cannot compile is kept as a value: `release.syntax_errors`.
    """
    source = _absolute(source)
    included, warnings = _included(source)
    code = [file for path, file in included.items() if path.endswith((".py", ".pyw"))]
    found = find(source.root, source.entry, _excludes(source), code)
    paths = found.files | included
    for path in paths:
        _check_path(path)
    entry = source.entry.relative_to(source.root).as_posix()
    files, syntax_errors = [], []
    for path, local in sorted(paths.items()):
        file, problem, more = _read(path, local, path == entry)
        files.append(file)
        warnings += more
        if problem is not None:
            syntax_errors.append(problem)
    release = Release(
        app=source.app,
        entry=entry,
        root=source.root,
        files=tuple(files),
        markers=source.markers,
        forbidden=source.forbidden,
        external=found.external,
        syntax_errors=tuple(syntax_errors),
        git=git_state(source.root, files),
        requires_python=source.requires_python,
    )
    result = _search(release)
    warnings += found.warnings
    warnings += [Warning(each.path, each.line, f"{each.pattern} may stand {each.why}") for each in result.unsure]
    warnings += [Warning("", 0, f"marker {text}") for text in result.unmatched]
    return replace(
        release,
        found={marker: tuple(hits) for marker, hits in result.found.items()},
        warnings=tuple(sorted(set(warnings), key=lambda each: (each.path, each.line, each.text))),
    )


def _absolute(source: Source) -> Source:
    root, entry, base = (Path(os.path.abspath(path)) for path in (source.root, source.entry, source.base))  # noqa: PTH100
    if not root.is_dir():
        raise UsageError(f"the root of {source.app}, {root}, is not a folder")
    if not entry.exists():
        raise UsageError(f"the entry of {source.app}, {entry}, is not there")
    if not entry.is_file():
        raise UsageError(f"the entry of {source.app}, {entry}, is not a regular file")
    if not entry.is_relative_to(root):
        # One of the two may have been given through a symlinked folder.
        real = entry.parent.resolve() / entry.name
        if not real.is_relative_to(root.resolve()):
            raise UsageError(f"the entry {entry} lies outside of the root {root}", next="set root in hosts.toml")
        entry = root / real.relative_to(root.resolve())
    if entry.stat().st_size == 0:
        raise CheckError(f"{entry} is empty")
    source = replace(source, root=root, entry=entry, base=base)
    path = entry.relative_to(root).as_posix()
    for pattern in _excludes(source):
        if glob_match(pattern, path):
            raise UsageError(f"`exclude` takes away the entry {path} of {source.app} ({pattern})")
    return source


def _excludes(source: Source) -> tuple[str, ...]:
    """The exclude globs, which are relative to the base, as globs of paths in the release.

    One that reaches into the root loses that part of it; one without a slash is a name and stays as it is; any other
    cannot match a file that travels.
    """
    if not source.root.is_relative_to(source.base):
        return source.exclude
    prefix = source.root.relative_to(source.base).as_posix()
    kept = []
    for pattern in source.exclude:
        plain = pattern.removeprefix("./")
        if prefix == "." or "/" not in plain.rstrip("/"):
            kept.append(plain)
        elif plain.startswith(f"{prefix}/"):
            kept.append("/" + plain.removeprefix(f"{prefix}/"))
        elif plain.startswith("**/"):
            kept.append(plain)
    return tuple(kept)


def _included(source: Source) -> tuple[dict[str, Path], list[Warning]]:
    files: dict[str, Path] = {}
    warnings = []
    excludes = _excludes(source)
    for pattern in source.include:
        matches = 0
        for name in sorted(globs.glob(pattern, root_dir=source.base, recursive=True, include_hidden=True)):  # noqa: PTH207
            if is_hidden(name, pattern) or is_litter(name):
                continue
            for file in _regular_files(Path(os.path.abspath(source.base / name))):  # noqa: PTH100
                matches += 1
                if not file.is_relative_to(source.root):
                    text = f"`include` names {file}, which lies outside of the root {source.root}"
                    raise CheckError(text, next="set root in hosts.toml to a folder that holds both")
                path = file.relative_to(source.root).as_posix()
                if not any(glob_match(each, path) for each in excludes):
                    files[path] = file
        if not matches:
            warnings.append(Warning("", 0, f"`include` {pattern} fits no file in {source.base}"))
    return files, warnings


def _regular_files(path: Path) -> Iterator[Path]:
    """The file itself, or all below a folder. Symlinks are followed once: their content travels."""
    if not path.is_dir():
        yield path
        return
    visited = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        real = Path(folder).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not is_litter(name) and not is_hidden(name))
        for name in sorted(names):
            if not is_litter(name) and not is_hidden(name):
                yield Path(folder, name)


def _check_path(path: str) -> None:
    if path == "RELEASE.json":
        raise CheckError("RELEASE.json at the top of a release is ctdeploy's own file", next="rename yours")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise CheckError(f"{path!r}: the name is not UTF-8", next="rename the file") from None
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise CheckError(f"{path!r}: the name holds a control character", next="rename the file")


def _read(path: str, local: Path, is_entry: bool) -> tuple[ReleaseFile, SyntaxProblem | None, list[Warning]]:
    try:
        status = local.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckError(f"{path} is not a regular file, so it cannot travel", next="exclude it in hosts.toml")
        with local.open("rb") as stream:
            head = stream.read(200)
            is_python = is_entry or is_python_file(path, head)
            if not is_python:
                stream.seek(0)
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
            else:
                data = head + stream.read()
                digest, size = hashlib.sha256(data).hexdigest(), len(data)
    except OSError as error:
        raise CheckError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {local}") from error
    mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    file = ReleaseFile(path, local, size, digest, mode)
    if is_python:
        warnings = byte_problems(path, local, data, mode, is_entry)
        return file, syntax_problem(path, data), warnings
    if head.startswith(b"#!") and mode == 0o755:
        byte_problems(path, local, head.split(b"\n", 1)[0] + b"\n", mode, False)
    return file, None, []


class _Contents(Mapping[str, bytes]):
    """The files of a release, read when asked for, so that one is held at a time."""

    def __init__(self, release: Release) -> None:
        self.files = {file.path: file for file in release.files if file.size <= SEARCH_LIMIT}

    def __getitem__(self, path: str) -> bytes:
        try:
            return self.files[path].source.read_bytes()
        except OSError as error:
            raise CheckError(f"{path} cannot be read: {error.strerror}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _search(release: Release) -> Result:
    try:
        result = search(_Contents(release), release.markers, release.forbidden, python=[release.entry])
    except ValueError as error:
        raise UsageError(f"marker {error}") from error
    if result.forbidden:
        hit = result.forbidden[0]
        more = _more(len(result.forbidden))
        text = f"{hit.path}:{hit.line}: forbidden: {hit.pattern}{more}\n    {hit.text}"
        raise CheckError(text, next="change the code, or name the file under `except` in hosts.toml")
    banned = {each.pattern for each in release.forbidden}
    undecidable = [note for note in result.undecidable if note.pattern in banned]
    if undecidable:
        note = undecidable[0]
        text = f"{note.path}:{note.line}: cannot be told from {note.pattern}: {note.why}{_more(len(undecidable))}"
        raise CheckError(f"{text}\n    {note.text}", next="write the value as a literal, or use `except` in hosts.toml")
    unsure = {note.pattern for note in result.unsure}
    missing = [marker for marker in result.missing if marker not in unsure]
    if missing:
        raise _missing(release, missing, result)
    return result


def _missing(release: Release, missing: list[str], result: Result) -> CheckError:
    marker = missing[0]
    notes: list[Note] = [note for note in (*result.seen, *result.undecidable) if note.pattern == marker]
    where = "; ".join(f"{note.path}:{note.line} {note.why}" for note in notes[:3])
    count = len(release.files)
    text = f"no code of {release.app} holds the marker {marker} ({count} file{'s' if count > 1 else ''} searched)"
    text += f"; it stands only at {where}{_more(len(notes), 3)}" if where else ""
    others = f"\nalso missing: {', '.join(missing[1:])}" if missing[1:] else ""
    return CheckError(text + others, next=f"grep -rnF -e {shlex.quote(marker)} {release.root}")


def _more(count: int, shown: int = 1) -> str:
    return f" (and {count - shown} more)" if count > shown else ""

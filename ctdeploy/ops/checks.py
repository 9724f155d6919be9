"""What the container measured, judged: every answer is either a value that goes on or an error with its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from ctdeploy.errors import HostError, VerifyError
from ctdeploy.release.model import Release
from ctdeploy.remote.session import Hello

SHOWN = 5


@dataclass(frozen=True)
class FoundMarker:
    """One line of deployed code that a marker asked for."""

    marker: str
    path: str
    line: int
    text: str


def version_text(hello: Hello) -> str:
    """The launch interpreter's version: 3.11.7."""
    return ".".join(str(part) for part in hello.python)


def python_version(release: Release, hello: Hello) -> None:
    """Raises HostError when the launch interpreter is not what the app requires."""
    required = release.requires_python
    if required and version_text(hello) not in SpecifierSet(required):
        raise HostError(
            f"{release.app} requires Python {required}, the container's launch interpreter is {version_text(hello)}",
            layer="container",
            next='say python = "/path/to/another/python" in its [containers.…] table',
        )


def no_drift(drift: list[str], mend: str) -> None:
    """Raises VerifyError that lists how the files differ from the manifest."""
    if drift:
        raise VerifyError(f"the files are not those of the release: {_listed(drift)}", next=mend)


def no_compile_errors(errors: list[dict[str, Any]], hello: Hello) -> None:
    """Raises VerifyError with the first file and line that the launch interpreter cannot compile."""
    if errors:
        first = errors[0]
        raise VerifyError(
            f"{first['path']}:{first['line']}: {first['message']} (Python {version_text(hello)} in the container)",
            remote=first["text"],
            next="mend the line, or name a newer interpreter: python in [containers.…]",
        )


def markers_as_wanted(answer: dict[str, Any] | None, wanted: tuple[str, ...]) -> tuple[FoundMarker, ...]:
    """The lines that carry the markers. Raises VerifyError for a missing marker, or a forbidden or unreadable call."""
    if answer is None:
        raise VerifyError("files of the release are missing", next="ctdeploy push")
    if answer["forbidden"]:
        hit = answer["forbidden"][0]
        raise VerifyError(f"{hit['path']}:{hit['line']}: forbidden: {hit['pattern']}", remote=hit["text"])
    unclear = [note for note in answer["undecidable"] if note["pattern"] not in wanted]
    if unclear:
        note = unclear[0]
        raise VerifyError(
            f"{note['path']}:{note['line']}: cannot tell whether this is {note['pattern']}, which is forbidden:"
            f" {note['why']}",
            remote=note["text"],
        )
    if answer["missing"]:
        seen = [f"{note['path']}:{note['line']} ({note['why']})" for note in answer["seen"]]
        where = f"; it stands only at {_listed(seen)}" if seen else ""
        raise VerifyError(
            f"marker not found in the deployed code: {', '.join(answer['missing'])}{where}", next="ctdeploy push"
        )
    return tuple(
        FoundMarker(marker, hit["path"], hit["line"], hit["text"])
        for marker, hits in answer["found"].items()
        for hit in hits
    )


def import_names(release: Release) -> list[str]:
    """Top-level modules that the launch interpreter has to find."""
    return sorted({each.name.split(".")[0] for each in release.external if not each.guarded})


def import_warnings(release: Release, missing: tuple[str, ...]) -> list[str]:
    """One line for every import that the launch interpreter cannot find, with its place."""
    return [
        f"{each.path}:{each.line}: the launch interpreter has no module {each.name}"
        for each in release.external
        if not each.guarded and each.name.split(".")[0] in missing
    ]


def _listed(lines: list[str]) -> str:
    shown = "; ".join(lines[:SHOWN])
    return shown if len(lines) <= SHOWN else f"{shown}; and {len(lines) - SHOWN} more"

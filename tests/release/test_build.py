"""From local files to a checked Release."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctdeploy.errors import CheckError, ExitCode, UsageError
from ctdeploy.release.build import build_release
from ctdeploy.release.bundle import bundle
from ctdeploy.release.model import Release, Source
from ctdeploy.release.python_file import syntax_error
from ctdeploy.remote.payloads.markers import Forbidden

MARKER = "cudagraphs=False"
MAIN = "import a\nprint('cudagraphs=False')\n"


def lay(root: Path, tree: dict[str, str | bytes]) -> Path:
    for path, content in tree.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def source(root: Path, /, **changes: Any) -> Source:
    return replace(Source("train", root, root / "train.py", root, markers=(MARKER,)), **changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay(tmp_path / "app", {"train.py": MAIN, "a.py": "x = 1\n"})


def test_a_release_holds_the_files_their_hashes_and_the_marker_lines(root: Path) -> None:
    (root / "a.py").chmod(0o700)
    release = build_release(source(root))
    assert [(file.path, file.size, oct(file.mode)) for file in release.files] == [
        ("a.py", 6, "0o755"),
        ("train.py", len(MAIN), "0o644"),
    ]
    assert release.file("a.py").sha256 == hashlib.sha256(b"x = 1\n").hexdigest()
    assert [(hit.path, hit.line, hit.text) for hit in release.found[MARKER]] == [
        ("train.py", 2, "print('cudagraphs=False')")
    ]
    assert (release.entry, release.warnings, release.syntax_errors, release.git) == ("train.py", (), (), None)
    assert json.loads(json.dumps(release.manifest()))["files"][0]["path"] == "a.py"


def test_no_file_of_ours_is_left_beside_the_source(root: Path) -> None:
    build_release(source(root))
    assert sorted(each.name for each in root.iterdir()) == ["a.py", "train.py"]


@pytest.mark.parametrize("change", ["content", "mode", "name"])
def test_the_digest_changes_with_content_mode_and_names_only(root: Path, change: str) -> None:
    before = build_release(source(root)).digest
    (root / "unrelated.txt").write_text("x")
    (root / "a.py").touch()
    assert build_release(source(root)).digest == before
    if change == "content":
        (root / "a.py").write_text("x = 2\n")
    elif change == "mode":
        (root / "a.py").chmod(0o755)
    else:
        (root / "a.py").rename(root / "b.py")
        (root / "train.py").write_text(MAIN.replace("import a", "import b"))
    assert build_release(source(root)).digest != before


# Markers


def fails(root: Path, /, **changes: Any) -> CheckError:
    with pytest.raises(CheckError) as caught:
        build_release(source(root, **changes))
    assert caught.value.code == ExitCode.CHECK
    return caught.value


def test_a_marker_that_stands_only_in_a_comment_fails_and_says_where(root: Path) -> None:
    lay(root, {"train.py": "import a  # cudagraphs=False\n", "a.py": '"""Has cudagraphs=False."""\n'})
    message = fails(root).message
    assert "no code of train holds the marker cudagraphs=False (2 files searched)" in message
    assert "a.py:1 in a docstring; train.py:1 in a comment" in message


def test_forbidden_code_fails_with_file_line_and_text(root: Path) -> None:
    lay(root, {"a.py": "import torch\ntorch.compile(f, mode='reduce-overhead')\n"})
    pattern = 'call:torch.compile(mode="reduce-overhead")'
    error = fails(root, forbidden=(Forbidden(pattern),))
    assert error.message == f"a.py:2: forbidden: {pattern}\n    torch.compile(f, mode='reduce-overhead')"
    assert build_release(source(root, forbidden=(Forbidden(pattern, ("a.py",)),))).found


def test_what_cannot_be_told_from_forbidden_code_fails(root: Path) -> None:
    lay(root, {"a.py": "import torch\ntorch.compile(f, mode=MODE)\n"})
    error = fails(root, forbidden=(Forbidden('call:torch.compile(mode="reduce-overhead")'),))
    assert "a.py:2: cannot be told from" in error.message
    assert "mode is not a literal" in error.message


def test_a_pattern_that_cannot_be_read_is_a_usage_error(root: Path) -> None:
    with pytest.raises(UsageError, match="not a Python call"):
        build_release(source(root, markers=("call:f(",)))


def test_a_glob_that_fits_nothing_is_warned_of(root: Path) -> None:
    release = build_release(source(root, forbidden=(Forbidden("y", ("gone.py",)),), include=("*.toml",)))
    texts = [each.text for each in release.warnings]
    assert texts[0].startswith("`include` *.toml fits no file in ")
    assert texts[1] == "marker y: gone.py fits no file"


# Syntax


def test_a_syntax_error_is_a_value_that_becomes_the_final_error(root: Path) -> None:
    lay(root, {"a.py": "x = 1\ndef f(:\n    pass\n"})
    release = build_release(source(root))
    [problem] = release.syntax_errors
    assert (problem.path, problem.line, problem.text) == ("a.py", 2, "def f(:")
    assert syntax_error(release.syntax_errors).message == "a.py:2: invalid syntax\n    def f(:"


def test_a_marker_in_a_file_that_does_not_parse_is_left_to_the_container(root: Path) -> None:
    lay(root, {"train.py": "f(cudagraphs=False\n"})
    release = build_release(source(root))
    assert release.found == {MARKER: ()}
    assert len(release.syntax_errors) == 1
    assert any("cudagraphs=False may stand in a file that does not parse" in each.text for each in release.warnings)


BYTES: dict[str, tuple[dict[str, bytes], str]] = {
    "NUL": ({"a.py": b"x = 1\ny = '\0'\n"}, "a.py:2: the file holds a NUL byte"),
    "UTF-16": ({"a.py": "x = 1".encode("utf-16")}, "a.py:1: the file is UTF-16"),
    "CRLF in the entry": ({"train.py": b"x = 1\ny = 'cudagraphs=False'\r\n"}, "train.py:2: lines end in CRLF"),
    "an empty entry": ({"train.py": b""}, "is empty"),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_cannot_run_fail_at_their_line(name: str, root: Path) -> None:
    tree, message = BYTES[name]
    lay(root, dict(tree))
    assert message in fails(root).message


def test_crlf_and_byte_order_marks_fail_only_where_the_kernel_reads_the_shebang(root: Path) -> None:
    lay(root, {"a.py": b"#!/usr/bin/python3\r\nx = 1\r\n"})
    assert [str(each) for each in build_release(source(root)).warnings] == ["a.py:1: lines end in CRLF, as on Windows"]
    (root / "a.py").chmod(0o755)
    assert "a.py:1: lines end in CRLF" in fails(root).message
    lay(root, {"a.py": b"\xef\xbb\xbf#!/usr/bin/python3\nx = 1\n"})
    assert "byte order mark stands before the shebang" in fails(root).message
    (root / "a.py").chmod(0o644)
    assert [str(each) for each in build_release(source(root)).warnings] == ["a.py:1: starts with a byte order mark"]
    lay(root, {"a.py": "", "run.sh": b"#!/bin/sh\r\ntrue\r\n"})
    (root / "run.sh").chmod(0o755)
    assert "run.sh:1: lines end in CRLF" in fails(root, include=("run.sh",)).message


# Which files


def test_include_and_exclude_are_relative_to_the_base(tmp_path: Path) -> None:
    root = lay(tmp_path / "app", {"train.py": MAIN, "a.py": "", "conf/x.toml": "", "conf/deep/y.toml": "", "z.md": ""})
    lay(root, {"conf/.env": "", "conf/__pycache__/m.pyc": "", ".hidden": "", "z.pyc": ""})

    def paths(*include: str, exclude: tuple[str, ...] = ()) -> set[str]:
        release = build_release(source(root, base=tmp_path, include=include, exclude=exclude))
        return {file.path for file in release.files} - {"train.py", "a.py"}

    assert paths("app/conf/*.toml") == {"conf/x.toml"}
    assert paths("app/**/*.toml") == {"conf/x.toml", "conf/deep/y.toml"}
    assert paths("app/conf") == {"conf/x.toml", "conf/deep/y.toml"}
    assert paths("app/*") == {"z.md", "conf/x.toml", "conf/deep/y.toml"}
    assert paths("app/conf/*") == {"conf/x.toml", "conf/deep/y.toml"}
    assert paths("app/conf/.env") == {"conf/.env"}
    assert paths("app/.*") == {".hidden"}
    assert paths("app/*", exclude=("app/conf/*.toml",)) == {"z.md", "conf/deep/y.toml"}
    assert paths("app/*", exclude=("conf",)) == {"z.md"}
    assert paths("app/*", exclude=("*.toml", "other/z.md")) == {"z.md"}


def test_what_an_included_module_imports_comes_along(tmp_path: Path) -> None:
    tree: dict[str, str | bytes] = {
        "train.py": "import importlib\nprint(importlib.import_module('plug' + 'ins.one').x, 'cudagraphs=False')",
        "plugins/__init__.py": "",
        "plugins/one.py": "from .base import x\nimport helper",
        "plugins/base.py": "x = 1",
        "plugins/two.py": "import gone",
        "helper.py": "",
    }
    root = lay(tmp_path / "app", tree)
    release = build_release(source(root, include=("plugins/one.py",)))
    assert {file.path for file in release.files} == set(tree) - {"plugins/two.py"}
    copied = lay(tmp_path / "empty", {file.path: file.source.read_bytes() for file in release.files})
    done = subprocess.run([sys.executable, "-E", "-S", copied / "train.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "1 cudagraphs=False\n"
    assert [each.guarded for each in build_release(source(root, include=("plugins",))).external] == [True]


def test_include_never_leaves_the_root(tmp_path: Path) -> None:
    root = lay(tmp_path / "app", {"train.py": MAIN, "a.py": ""})
    lay(tmp_path, {"secret.txt": "s"})
    error = fails(root, include=("../secret.txt",))
    assert "secret.txt, which lies outside of the root" in error.message
    (root / "link.txt").symlink_to("../secret.txt")
    release = build_release(source(root, include=("link.txt",)))
    assert release.file("link.txt").size == 1


def test_what_is_no_regular_file_or_cannot_be_read_fails(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert "pipe is not a regular file" in fails(root, include=("pipe",)).message
    (root / "gone").symlink_to("nowhere")
    assert "gone cannot be read: No such file" in fails(root, include=("go*",)).message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "no.py"}, "is not there"),
        ({"entry": "sub"}, "is not a regular file"),
        ({"root": "nowhere"}, "is not a folder"),
        ({"root": "sub"}, "lies outside of the root"),
        ({"exclude": ("*.py",)}, "takes away the entry"),
    ],
)
def test_an_entry_or_root_that_cannot_be_meant_is_a_usage_error(
    root: Path, change: dict[str, Any], message: str
) -> None:
    (root / "sub").mkdir()
    change = {key: root / value if isinstance(value, str) else value for key, value in change.items()}
    with pytest.raises(UsageError, match=message):
        build_release(source(root, **change))


def test_a_root_reached_through_a_symlink_is_the_same_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("app")
    expected = build_release(source(root)).digest
    assert build_release(source(root, root=tmp_path / "link")).digest == expected
    assert build_release(source(root, entry=tmp_path / "link/train.py", root=root)).digest == expected


# Git


def git(root: Path, *args: str) -> str:
    argv = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(root), *args]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def test_git_tells_the_revision_and_which_travelling_files_differ(root: Path, tmp_path: Path) -> None:
    git(root, "init", "-q")
    assert build_release(source(root)).git is None  # no commit yet
    lay(root, {"readme": "x"})
    git(root, "add", "readme")
    git(root, "commit", "-qm", "zero")
    assert build_release(source(root)).git is None  # a work tree that has nothing to do with these files
    git(root, "add", "train.py")
    git(root, "commit", "-qm", "one")
    state = build_release(source(root)).git
    assert state is not None
    assert (state.revision, state.changed) == (git(root, "rev-parse", "HEAD"), ("a.py",))
    git(root, "add", "a.py")
    git(root, "commit", "-qm", "two")
    lay(root, {"unrelated.py": ""})
    state = build_release(source(root)).git
    assert state is not None
    assert not state.dirty
    lay(tmp_path, {"outside.py": "x = 1\n"})
    lay(root, {"train.py": MAIN + "# more\n"})
    (root / "a.py").unlink()
    (root / "a.py").symlink_to("../outside.py")
    release = build_release(source(root))
    assert release.git is not None
    assert release.git.changed == ("a.py", "train.py")
    assert release.manifest()["git"]["dirty"] is True


def test_without_git_a_release_is_built_all_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(root, "init", "-q")
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_release(source(root)).git is None


# Bundle


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {}
        for member in archive:
            assert stat.S_IMODE(member.mode) == 0o600
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
        return found


def hashes(release: Release) -> list[str]:
    return [file.sha256 for file in release.files]


def test_a_bundle_holds_the_asked_files_by_hash_and_is_the_same_each_time(root: Path) -> None:
    lay(root, {"copy.py": "x = 1\n"})
    release = build_release(source(root, include=("copy.py",)))
    data = bundle(release, hashes(release))
    assert set(members(data).values()) == {MAIN.encode(), b"x = 1\n"}
    (root / "a.py").touch()
    assert bundle(release, list(reversed(hashes(release)))) == data
    assert data[4:8] == bytes(4)  # no time stamp
    assert gzip.decompress(data)
    assert list(members(bundle(release, [release.file("a.py").sha256]))) == [release.file("a.py").sha256]
    assert members(bundle(release, [])) == {}
    with pytest.raises(KeyError):
        bundle(release, ["0" * 64])


def test_a_file_that_changed_since_the_check_is_not_packed(root: Path) -> None:
    release = build_release(source(root))
    lay(root, {"a.py": "x = 2\n"})
    with pytest.raises(CheckError, match=r"a\.py changed while pushing") as caught:
        bundle(release, hashes(release))
    assert caught.value.next == "push again"
    (root / "a.py").unlink()
    with pytest.raises(CheckError, match=r"a\.py: No such file"):
        bundle(release, hashes(release))

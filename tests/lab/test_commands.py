"""`ctdeploy lab`: what its commands print, and where."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = "from ctdeploy.cli.main import main; main()"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CTDEPLOY_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.setenv("CTDEPLOY_LAB_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    lab("down", "--cache")


def lab(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", PROGRAM, "lab", *words]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120)


def test_up_prints_the_address_and_says_on_stderr_what_it_does(own: Path) -> None:
    first = lab("up")
    assert first.returncode == 0
    assert first.stdout.startswith("root@127.0.0.1:")
    assert first.stderr.startswith("starting the lab")
    second = lab("up")
    assert (second.stdout, second.stderr) == (first.stdout, "")


def test_status_tells_of_containers_and_limits_and_starts_nothing(own: Path) -> None:
    assert lab("status").stdout.startswith("the lab is not up")
    assert not (own / "lab").exists()
    lab("up")
    said = lab("status").stdout
    assert "container 200 train: running\n" in said
    assert "does not work: freezing a container" in said


def test_down_names_the_folder_that_stays(own: Path) -> None:
    lab("up")
    done = lab("down")
    assert done.stdout == "the lab is down\n"
    assert str(own / "cache") in done.stderr
    assert lab("down", "--cache").stdout == "the lab was not up\n"
    assert not (own / "cache").exists()


def test_sh_passes_words_streams_and_the_code_through(own: Path) -> None:
    done = lab("sh", "--", "sh", "-c", 'cat; echo "$1" >&2; exit 7', "x", "two  words", stdin="in\n")
    assert done.returncode == 7
    assert done.stdout == "in\n"
    assert done.stderr.endswith("two  words\n")


def test_containers_come_and_go(own: Path) -> None:
    assert lab("ct", "add", "201", "--hostname", "second").stdout == "container 201 is running\n"
    assert lab("ct", "set", "201", "tags", "gpu").stdout == "container 201: tags: gpu\n"
    assert "tags: gpu\n" in lab("sh", "--", "pct", "config", "201").stdout
    assert lab("ct", "rm", "201").stdout == "container 201 is gone\n"
    assert lab("sh", "--", "pct", "status", "201").returncode == 2

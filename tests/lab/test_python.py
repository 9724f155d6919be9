"""The Python that runs ctdeploy is the one at /opt/venv in the container, however it was installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.lab import host

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
from ctdeploy.errors import HostError
from ctdeploy.lab import host
from tests.lab.conftest import Host
try:
    login = Host(host.ensure_up())
    print(login.inside("/opt/venv/bin/python", "-c", "import sys, ctypes, ssl; print(sys.prefix, sys.version)").text)
    login.close()
except HostError as error:
    print(error.message, "|", error.next)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CTDEPLOY_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.setenv("CTDEPLOY_LAB_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    host.down(cache=True)


def run(python: Path, program: str) -> str:
    """Run a program with another python, which borrows our packages."""
    path = os.pathsep.join([str(REPOSITORY), sysconfig.get_paths()["purelib"]])
    done = subprocess.run(
        [python, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_venv_and_its_base_are_read_only_in_the_container(own: Path) -> None:
    said = run(Path(sys.executable), PROGRAM)
    assert said.startswith(f"/opt/venv {sys.version.split()[0]}")


def test_outside_of_a_venv_a_small_one_is_made(own: Path) -> None:
    base = Path(os.path.realpath(sys.executable))
    said = run(base, PROGRAM)
    assert said.startswith(f"/opt/venv {sys.version.split()[0]}")
    assert (own / "lab" / "venv" / "bin" / "python").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's containers run as himself")
def test_a_venv_that_others_cannot_read_is_named_with_the_line_that_mends_it(own: Path) -> None:
    venv = own / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    package = next(venv.glob("lib/python*/site-packages")) / "secretive"
    package.mkdir()
    (package / "__init__.py").touch(mode=0o600)
    said = run(venv / "bin" / "python", PROGRAM)
    what, mend = said.strip().split(" | ")
    assert what == f"{package / '__init__.py'} is not readable for others, so containers cannot use it"
    subprocess.run(mend, shell=True, check=True)
    assert run(venv / "bin" / "python", PROGRAM).startswith("/opt/venv ")


def test_a_lab_whose_venv_was_made_anew_starts_again_with_its_files(own: Path) -> None:
    venv = own / "venv"
    make = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
    leave = """
from ctdeploy.lab import host
from tests.lab.conftest import Host
login = Host(host.ensure_up())
login.inside("touch", "/root/kept")
login.close()
"""
    subprocess.run(make, check=True)
    run(venv / "bin" / "python", leave)
    first = host.status().pid
    run(venv / "bin" / "python", leave)
    assert host.status().pid == first, "a venv that is still there is no reason"
    shutil.rmtree(venv)
    subprocess.run(make, check=True)
    assert run(venv / "bin" / "python", PROGRAM).startswith("/opt/venv ")
    assert host.status().pid != first
    look = PROGRAM.replace(
        '"/opt/venv/bin/python", "-c", "import sys, ctypes, ssl; print(sys.prefix, sys.version)"', '"ls", "/root"'
    )
    assert "kept" in run(venv / "bin" / "python", look).split()

"""The wheel, installed into a folder and used from outside the clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files; the dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


def ctdeploy(installed: Path, cwd: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ctdeploy", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_trainer_its_recipes_and_data_and_the_license(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "trainer/dflash_train.py" in names
    assert "trainer/dflash/compile.py" in names
    assert "trainer/recipes/demo.toml" in names
    assert "trainer/data/demo.jsonl" in names
    assert "ctdeploy/inventory/builtin.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]


def test_the_built_in_configuration_is_that_of_the_repository(installed: Path, tmp_path: Path):
    shown = json.loads(ctdeploy(installed, tmp_path, "config", "show", "--json"))
    assert shown["file"] == str(installed / "ctdeploy" / "inventory" / "builtin.toml")
    assert (installed / "ctdeploy/inventory/builtin.toml").read_text() == (REPOSITORY / "hosts.toml").read_text()


@pytest.mark.parametrize("path", [[], ["trainer/dflash_train.py"]])
def test_the_bundled_trainer_is_pushed_from_anywhere(installed: Path, tmp_path: Path, path: list[str]):
    document = json.loads(ctdeploy(installed, tmp_path, "push", *path, "--dry-run", "--json"))
    files = [file["path"] for file in document["files"]]
    assert document["app"] == "dflash_train"
    assert {"dflash_train.py", "dflash/compile.py", "recipes/demo.toml", "data/demo.jsonl"} <= set(files)
    assert any("cudagraphs=False" in hit["text"] for hit in document["markers"])

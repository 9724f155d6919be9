"""What travels into the container."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import resources

import pytest

from ctdeploy.remote import payload
from ctdeploy.remote.payloads import BOOT
from tests.support.pythons import pythons

MODULES = sorted(
    file.name for file in resources.files("ctdeploy.remote.payloads").iterdir() if file.name.endswith(".py")
)
ALLOWED = set(sys.stdlib_module_names) | {"ctdeploy"}


@pytest.mark.parametrize("name", MODULES)
def test_payload_modules_are_python_3_9_and_import_the_standard_library_only(name):
    source = (resources.files("ctdeploy.remote.payloads") / name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 9))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for imported in names:
            assert imported.split(".")[0] in ALLOWED, imported
            if imported.startswith("ctdeploy"):
                assert imported.startswith("ctdeploy.remote.payloads"), imported


def test_the_bootstrap_is_ascii_so_pct_cannot_damage_it():
    assert BOOT.isascii()


@pytest.mark.parametrize("python", pythons())
def test_the_session_starts_and_leaves_at_the_end_of_its_input(python):
    talk = payload.session() + b'{"nonce": "N"}\n{"op": "hello", "dest": "/nonexistent", "app": "a", "who": "w"}\n'
    done = subprocess.run([python, "-I", "-S", "-c", BOOT], input=talk, capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"N "), done
    assert b'"active": null' in done.stdout


def test_the_bootstrap_gives_up_quietly_when_its_source_is_cut_short():
    for talk in (b"", b"12", b"1000\nprint('never')"):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", BOOT], input=talk, capture_output=True, timeout=20, check=False
        )
        assert (done.stdout, done.stderr) == (b"", b"")

"""What is missing on this machine is said in one sentence each, with the line that mends it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from ctdeploy.errors import HostError
from ctdeploy.lab import preflight


def test_this_machine_has_what_the_lab_needs() -> None:
    assert preflight.lab_lacks() == []


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install -y g++" in [lack.mend for lack in preflight.check()]


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    found = [lack for lack in preflight.check() if "Python.h" in lack.message]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [lack.mend for lack in found] == [f"apt-get install -y python{version}-dev"]


def test_a_missing_ssh_server_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "asyncssh" else real(name))
    with pytest.raises(HostError) as refused:
        preflight.require_lab()
    assert refused.value.next == "pip install 'ctdeploy[lab]'"


def test_another_system_than_linux_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [lack.message for lack in preflight.lab_lacks()] == [
        "The lab needs Linux, as its containers are made of Linux namespaces."
    ]

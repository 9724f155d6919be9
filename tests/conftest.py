"""Fixtures that several rooms share: a lab of the test session's own, and the program as a user starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.lab.host import LabEndpoint
from tests.support.container import Container
from tests.support.lab import start_lab
from tests.support.program import Program

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Journal, crash reports and config of the tests lie in a folder of theirs, not in the user's."""
    folder = tmp_path_factory.mktemp("home")
    wanted = {
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "CTDEPLOY_LAB_DIR": str(folder / "lab-that-no-test-starts"),
    }
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    yield
    for key, value in before.items():
        if value is None:
            os.environ.pop(key)
        else:
            os.environ[key] = value


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, private_state: None) -> Iterator[LabEndpoint]:
    """A lab for the whole session, with a cache of its own."""
    with start_lab(tmp_path_factory.mktemp("lab")) as endpoint:
        yield endpoint


@pytest.fixture
def container(lab: LabEndpoint) -> Iterator[Container]:
    """Container 200 of the lab, running, to look into."""
    inside = Container(lab)
    yield inside
    inside.close()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program in an empty working folder."""
    return Program(tmp_path)

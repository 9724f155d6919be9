"""Fixtures of the tests of the container's side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)

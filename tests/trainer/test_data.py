"""Conversations into tokens and masks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.data import DataConfig, RowStore, encode, encode_prompt, load_samples, read_conversations
from dflash.errors import TrainerError
from dflash.regenerate import longest_repeat
from dflash.target import load_tokenizer

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer(tiny_recipe: Path) -> Any:
    return load_tokenizer(str(tiny_recipe.parent / "target"))


def test_the_mask_is_set_on_answers_and_their_end_of_turn_only(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "no, never"},
    ]
    sample = encode(messages, tokenizer)
    first = "<|start|>user\nhi<|end|>\n<|start|>assistant\nyes<|end|>\n"
    whole = first + "<|start|>user\nmore<|end|>\n<|start|>assistant\nno, never<|end|>"
    assert tokenizer.decode(sample.tokens) == whole
    supervised = [token for token, on in zip(sample.tokens, sample.loss_mask, strict=True) if on]
    assert tokenizer.decode(supervised) == "yes<|end|>no, never<|end|>"
    assert tokenizer.decode(sample.prompt) == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert sample.prompt == encode_prompt(messages[:1], tokenizer)
    assert sample.loss_mask.index(True) == len(sample.prompt), "the first anchor may be the first generated token"


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


GOOD = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", ":2: not JSON"),
        ({"text": "x"}, ":2: expected an object"),
        ({"messages": []}, ":2: expected an object"),
        ({"messages": [{"role": "user"}]}, ":2: every message needs"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "data.jsonl", GOOD, line)
    with pytest.raises(TrainerError, match=message):
        list(read_conversations(path))


def test_both_names_of_the_list_are_read_and_empty_lines_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", GOOD, "", {"conversations": GOOD["messages"]})
    assert [number for number, _ in read_conversations(path)] == [1, 3]


def test_samples_without_a_place_for_an_anchor_are_dropped_and_said(tmp_path: Path, tokenizer: Any) -> None:
    long = {"messages": [{"role": "user", "content": "q" * 100}, {"role": "assistant", "content": "a"}]}
    path = write(tmp_path / "data.jsonl", GOOD, long, GOOD)
    said: list[str] = []
    config = DataConfig(max_length=48)
    samples = load_samples(path, tokenizer, config, said.append)
    assert len(samples) == 2
    assert said == ["data: data.jsonl: 1 lines have no answer within 48 tokens, first: [2]"]
    with pytest.raises(TrainerError, match="no usable conversation"):
        load_samples(write(tmp_path / "bad.jsonl", long), tokenizer, config, said.append)


ALTERNATE = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'] }}<|end|>{% endfor %}"
)


def test_a_line_that_template_or_tokenizer_refuse_is_named(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    surrogate = '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}]}'
    with pytest.raises(TrainerError, match=r"data\.jsonl:2: "):
        load_samples(write(tmp_path / "data.jsonl", GOOD, surrogate), tokenizer, DataConfig(), print)
    monkeypatch.setattr(tokenizer, "chat_template", ALTERNATE)
    twice = {"messages": [GOOD["messages"][0], *GOOD["messages"]]}
    with pytest.raises(TrainerError, match=r"data\.jsonl:3: roles must alternate"):
        load_samples(write(tmp_path / "data.jsonl", GOOD, GOOD, twice), tokenizer, DataConfig(), print)


THINKING = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}[{{ mood | default('calm') }}]{% endif %}"
    "{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n[{{ mood | default('calm') }}]{% endif %}"
)
"""As Qwen3's: only the last answer shows its thoughts, so several turns are not rendered one behind the other."""


def test_variables_reach_the_template_and_what_it_renders_anew_is_skipped(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", THINKING)
    twice = {"messages": [*GOOD["messages"], *GOOD["messages"]]}
    said: list[str] = []
    config = DataConfig(template={"mood": "glad"})
    samples = load_samples(write(tmp_path / "data.jsonl", twice, GOOD, twice), tokenizer, config, said.append)
    assert [tokenizer.decode(sample.prompt) for sample in samples] == [
        "<|start|>user\nq<|end|>\n<|start|>assistant\n[glad]"
    ]
    assert tokenizer.decode(samples[0].tokens).endswith("[glad]a<|end|>")
    assert len(said) == 1
    assert said[0].startswith("data: data.jsonl: 2 lines skipped")
    assert said[0].endswith("first: [1, 3]")
    with pytest.raises(TrainerError, match=r"data\.jsonl:1: the chat template does not render"):
        load_samples(write(tmp_path / "data.jsonl", twice), tokenizer, config, said.append)


def regenerate(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash.regenerate", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_regenerating_never_shortens_its_own_source_and_names_bad_lines(tiny_recipe: Path, tmp_path: Path) -> None:
    options = ("--target", tiny_recipe.parent / "target", "--max-new-tokens", 3)
    path = write(tmp_path / "data.jsonl", GOOD, GOOD)
    before = path.read_bytes()
    done = regenerate(path, path, *options)
    assert done.returncode == 1, "three tokens are cut short by the limit and dropped"
    assert "data.jsonl stays as it is: 2 of its 2 conversations would be lost" in done.stderr
    assert path.read_bytes() == before
    done = regenerate(path, path, *options, "--keep-unfinished")
    assert done.returncode == 0, done.stderr
    assert [number for number, _ in read_conversations(path)] == [1, 2]
    assert path.read_bytes() != before
    assert [other.name for other in tmp_path.iterdir()] == ["data.jsonl"]
    surrogate = '{"messages": [{"role": "user", "content": "\\ud800"}]}'
    done = regenerate(write(path, GOOD, surrogate), tmp_path / "out.jsonl", *options)
    assert done.returncode == 1
    assert f"{path}:2: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="cannot be read"):
        list(read_conversations(tmp_path / "nothing.jsonl"))


def test_rows_are_padded_to_one_length(tokenizer: Any) -> None:
    sample = encode(GOOD["messages"], tokenizer)
    store = RowStore([sample], 64, 9)
    tokens, mask, lengths = store.rows(torch.tensor([0]))
    assert tokens.shape == mask.shape == (1, 64)
    assert tokens[0, : len(sample.tokens)].tolist() == sample.tokens
    assert tokens[0, len(sample.tokens) :].tolist() == [9] * (64 - len(sample.tokens))
    assert not mask[0, len(sample.tokens) :].any()
    assert lengths.tolist() == [len(sample.tokens)]


def test_shipped_prompts_are_eight_and_eight_and_differ() -> None:
    prompts = []
    for name in ("demo", "heldout"):
        rows = list(read_conversations(REPOSITORY / f"trainer/data/{name}.jsonl"))
        assert len(rows) == 8
        prompts += [messages[0]["content"] for _, messages in rows]
    assert len(set(prompts)) == 16


def test_loops_are_noticed() -> None:
    assert longest_repeat([1, 2, 3, 4] * 6) == 6
    assert longest_repeat(list(range(50))) == 1
    assert longest_repeat([1, 2]) == 0

"""Conversations into tokens and masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.data import RowStore, encode, encode_prompt, load_samples, read_conversations
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
    samples = load_samples(path, tokenizer, 48, said.append)
    assert len(samples) == 2
    assert said == ["data: data.jsonl: 1 lines have no answer within 48 tokens, first: [2]"]
    with pytest.raises(TrainerError, match="no usable conversation"):
        load_samples(write(tmp_path / "bad.jsonl", long), tokenizer, 48, said.append)


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

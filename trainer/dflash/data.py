"""Conversations in JSON lines -> token rows with a loss mask on what the assistant said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor

from dflash.errors import TrainerError

Message = dict[str, str]
BAD_TEXT = (ValueError, TypeError, jinja2.TemplateError)
"""What templates and tokenizers raise for a conversation that they refuse: bad roles, lone surrogates and the like."""


class NoPrefix(ValueError):
    """The chat template renders a conversation in another way once it goes on."""

    def __init__(self) -> None:
        super().__init__("the chat template does not render a conversation as a prefix of its continuation")


@dataclass(frozen=True)
class DataConfig:
    """Keys of [data]. Paths in a recipe are relative to the recipe, on the command line to the working folder."""

    train: str = ""
    """JSON lines with `messages` or `conversations`; the answers must be the target's own (dflash/regenerate.py)."""
    heldout: str = ""
    """The same form, never trained on; empty: no held-out evaluation."""
    max_length: int = 3072
    """Tokens per row; longer conversations are cut, shorter ones padded."""
    template: dict[str, Any] = field(default_factory=dict)
    """Variables of the target's chat template, such as enable_thinking = false."""


@dataclass(frozen=True)
class Sample:
    """One conversation, cut but not padded."""

    tokens: list[int]
    loss_mask: list[bool]
    prompt: list[int]
    """Everything up to the first answer, as the target is fed at inference."""


def read_conversations(path: Path) -> Iterator[tuple[int, list[Message]]]:
    """(line number, messages) of each line; TrainerError names the file and line of a bad one."""
    try:
        # Not splitlines(): a JSON string may hold U+2028 and its like.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainerError(f"The data file {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise TrainerError(f"{path}:{number}: not JSON ({error.msg}).") from error
        yield number, _messages(record, f"{path}:{number}")


def _messages(record: Any, place: str) -> list[Message]:
    found = record.get("messages", record.get("conversations")) if isinstance(record, dict) else None
    if not isinstance(found, list) or not found:
        raise TrainerError(f"{place}: expected an object with a non-empty list `messages` or `conversations`.")
    for message in found:
        good = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not good:
            raise TrainerError(f"{place}: every message needs the strings `role` and `content`.")
    return found


def encode(messages: list[Message], tokenizer: Any, template: Mapping[str, Any] | None = None) -> Sample:
    """Tokens of a whole conversation; the mask is set on assistant text and its end-of-turn token.

    Each answer is tokenised apart from what stands before it, as at inference, where the prompt is fed and the answer
    follows token by token. `template` are variables of the chat template. Raises NoPrefix when the template does not
    render turns one behind the other (Qwen3 drops the thoughts of earlier turns), and others of BAD_TEXT.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    prompt: list[int] | None = None
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render(messages[:index], tokenizer, template, add_generation_prompt=True)
        after = _render(messages[: index + 1], tokenizer, template, add_generation_prompt=False)
        if not before.startswith(done) or not after.startswith(before):
            raise NoPrefix
        answer = after[len(before) :].rstrip()
        for text, supervised in ((before[len(done) :], False), (answer, True)):
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            if supervised and prompt is None:
                prompt = list(tokens)
            tokens += piece
            mask += [supervised] * len(piece)
        done = before + answer
    if prompt is None:
        raise ValueError("no message of the assistant")
    return Sample(tokens, mask, prompt)


def encode_prompt(messages: list[Message], tokenizer: Any, template: Mapping[str, Any] | None = None) -> list[int]:
    """Tokens that ask the target for its next answer; raises BAD_TEXT for messages that cannot be rendered."""
    text = _render(messages, tokenizer, template, add_generation_prompt=True)
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def _render(
    messages: list[Message], tokenizer: Any, template: Mapping[str, Any] | None, *, add_generation_prompt: bool
) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt, **(template or {})
    )
    return text


def load_samples(file: str | Path, tokenizer: Any, config: DataConfig, say: Callable[[str], None]) -> list[Sample]:
    """All usable samples of a file, cut at `max_length`.

    Those without a place for an anchor, and those that the template does not render one turn behind the other, are
    counted and said. Raises TrainerError with the line for one that cannot be rendered at all, or when none is left.
    """
    path, max_length = Path(file), config.max_length
    samples: list[Sample] = []
    dropped: list[int] = []
    unfit: list[int] = []
    for number, messages in read_conversations(path):
        try:
            whole = encode(messages, tokenizer, config.template)
        except NoPrefix:
            unfit.append(number)
            continue
        except BAD_TEXT as error:
            raise TrainerError(f"{path}:{number}: {error}.") from error
        sample = Sample(whole.tokens[:max_length], whole.loss_mask[:max_length], whole.prompt)
        # An anchor needs two supervised tokens side by side (dflash/anchors.py, eligible).
        if any(a and b for a, b in zip(sample.loss_mask, sample.loss_mask[1:], strict=False)):
            samples.append(sample)
        else:
            dropped.append(number)
    if dropped:
        say(f"data: {path.name}: {len(dropped)} lines have no answer within {max_length} tokens, first: {dropped[:5]}")
    if unfit:
        say(f"data: {path.name}: {len(unfit)} lines skipped, {NoPrefix()}, first: {unfit[:5]}")
    if unfit and not samples:
        raise TrainerError(
            f"{path}:{unfit[0]}: {NoPrefix()}, and no other line is usable.",
            next="split conversations into one line per answer, or set variables of the template in [data.template]",
        )
    if not samples:
        raise TrainerError(f"{path} holds no usable conversation.", next="raise data.max_length or check the file")
    return samples


class RowStore:
    """Samples padded to one length, as tensors that batches are cut from."""

    def __init__(self, samples: list[Sample], max_length: int, pad_token: int) -> None:
        count = len(samples)
        self.tokens = torch.full((count, max_length), pad_token, dtype=torch.long)
        self.loss_mask = torch.zeros((count, max_length), dtype=torch.bool)
        self.lengths = torch.tensor([len(sample.tokens) for sample in samples], dtype=torch.long)
        for row, sample in enumerate(samples):
            self.tokens[row, : len(sample.tokens)] = torch.tensor(sample.tokens)
            self.loss_mask[row, : len(sample.tokens)] = torch.tensor(sample.loss_mask)

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [b, S], loss_mask [b, S], lengths [b] of the samples `indices` [b]."""
        return self.tokens[indices], self.loss_mask[indices], self.lengths[indices]

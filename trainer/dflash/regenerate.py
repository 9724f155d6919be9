"""Makes the answers of a data file with the target itself: `python -m dflash.regenerate IN.jsonl OUT.jsonl`.

A drafter learns to predict one target's own words, so the answers must be that target's: greedy, in float32, under its
own chat template. Of each conversation in IN everything up to the last user message is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from dflash.data import BAD_TEXT, Message, encode, encode_prompt, read_conversations
from dflash.decode import greedy_decode
from dflash.errors import TrainerError
from dflash.metrics import say
from dflash.smollm2 import NAME
from dflash.target import TargetConfig, load_target, load_tokenizer, locate, stop_tokens


def longest_repeat(tokens: list[int], size: int = 4) -> int:
    """How often the most frequent run of `size` tokens appears: above 4 an answer is a loop rather than text."""
    runs = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return max((runs.count(run) for run in set(runs)), default=0)


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dflash.regenerate", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--target", default=NAME)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--keep-loops", action="store_true", help="keep answers with a 4-gram more than 4 times")
    parser.add_argument("--keep-unfinished", action="store_true", help="keep answers that the limit cut short")
    parser.add_argument("--template", type=json.loads, default={}, help='JSON, such as {"enable_thinking": false}')
    parsed = parser.parse_args()
    try:
        return regenerate(parsed)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def regenerate(parsed: argparse.Namespace) -> int:
    """Answers every conversation and writes the kept ones; TrainerError names the file and line of a bad one.

    The output appears whole at the end. A source that would lose lines is not replaced by it.
    """
    location = locate(parsed.target, say)
    tokenizer = load_tokenizer(location)
    target = load_target(TargetConfig(model=parsed.target, layers=1), location, torch.device("cpu"))
    conversations = list(read_conversations(parsed.source))
    stops = stop_tokens(target, tokenizer)
    kept: list[str] = []
    for number, messages in conversations:
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        try:
            prompt = encode_prompt(messages, tokenizer, parsed.template)
        except BAD_TEXT as error:
            raise TrainerError(f"{parsed.source}:{number}: {error}.") from error
        answer = greedy_decode(target, prompt, parsed.max_new_tokens, stops)
        finished = answer[-1] in stops
        words = answer[:-1] if finished else answer
        repeats = longest_repeat(words)
        text = tokenizer.decode(words, skip_special_tokens=False)
        turns = [*messages, {"role": "assistant", "content": text}]
        drop = (
            "a loop" if repeats > 4 and not parsed.keep_loops else
            "cut short by the limit" if not finished and not parsed.keep_unfinished else
            _unlike(turns, tokenizer, parsed.template, prompt + words)
        )  # fmt: skip
        say(f"line {number}: {len(words)} tokens{f', dropped: {drop}' if drop else ''}: {text[:70]!r}")
        if not drop:
            kept.append(json.dumps({"messages": turns}, ensure_ascii=False))
    lost = len(conversations) - len(kept)
    if lost and parsed.output.exists() and parsed.output.samefile(parsed.source):
        raise TrainerError(
            f"{parsed.source} stays as it is: {lost} of its {len(conversations)} conversations would be lost.",
            next="write to another file, or keep them with --keep-loops and --keep-unfinished",
        )
    _replace(parsed.output, "".join(f"{line}\n" for line in kept))
    say(f"{len(kept)} of {len(conversations)} conversations written to {parsed.output}")
    return 0


def _unlike(turns: list[Message], tokenizer: Any, template: dict[str, Any], tokens: list[int]) -> str:
    """Why these turns would be trained on as other tokens than the target said; empty when they would not."""
    try:
        same = encode(turns, tokenizer, template).tokens[: len(tokens)] == tokens
    except BAD_TEXT as error:
        return str(error)
    return "" if same else "its text is tokenised differently"


def _replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    working = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        working.write_text(text, encoding="utf-8")
        working.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        raise TrainerError(f"{path} cannot be written: {error}.") from error
    finally:
        working.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main())

"""Speculative decoding with a drafter, and the plain greedy decoding that it must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dflash.drafter import ContextCache, Drafter
from dflash.target import Target


@dataclass(frozen=True)
class Decoded:
    """One answer and what it took."""

    tokens: list[int]
    """New tokens, with the stop token when one ended the answer."""
    accepted: list[int]
    """Tokens committed per draft-and-verify cycle, the target's own bonus or correction token included.

    Tokens behind a stop token do not count, so the last cycle is cut short (z-lab's figure counts them).
    """

    @property
    def acceptance_length(self) -> float:
        """tau: mean tokens per cycle, between 1 and the block size; 1 when there was no cycle."""
        return sum(self.accepted) / len(self.accepted) if self.accepted else 1.0


def _never() -> None:
    return None


@torch.no_grad()
def greedy_decode(
    target: Target,
    prompt: Sequence[int],
    max_new_tokens: int,
    stops: frozenset[int],
    poll: Callable[[], None] = _never,
) -> list[int]:
    """The target's greedy answer, one token per pass; `poll` is called at each pass and may raise to give up."""
    cache = target.new_cache()
    logits, _ = target.step(_row(prompt, target.device), cache)
    answer = [int(logits[0, -1].argmax())]
    while answer[-1] not in stops and len(answer) < max_new_tokens:
        poll()
        logits, _ = target.step(_row(answer[-1:], target.device), cache)
        answer.append(int(logits[0, -1].argmax()))
    return answer


@torch.no_grad()
def speculative_decode(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    max_new_tokens: int,
    stops: frozenset[int],
    mask_token: int,
    poll: Callable[[], None] = _never,
) -> Decoded:
    """Greedy DFlash decoding of one prompt (arXiv 2602.06036, section 4; loop as in z-lab/dflash, model.py).

    At the top of the loop the draft cache and the target's cache both hold the rows of all tokens before the last
    known one; the feature row of a token always comes from a pass of the target in which that token was verified.
    Near the limit the block is cut to what may still be committed.
    """
    device, block_size = target.device, drafter.shape.block_size
    cache = target.new_cache()
    logits, features = target.step(_row(prompt, device), cache)
    answer = [int(logits[0, -1].argmax())]
    context = ContextCache(drafter.shape.num_layers)
    accepted: list[int] = []
    while answer[-1] not in stops and len(answer) < max_new_tokens:
        poll()
        start = len(prompt) + len(answer) - 1
        size = min(block_size, max_new_tokens - len(answer))
        block = _row([answer[-1]] + [mask_token] * (size - 1), device)
        proposal = _draft(target, drafter, features, block, context)
        assert context.length == start
        block[0, 1:] = proposal
        logits, features = target.step(block, cache)
        chosen = logits[0].argmax(-1)
        agree = int((chosen[:-1] == proposal).long().cumprod(0).sum())
        committed = chosen[: agree + 1].tolist()
        features = features[:, : agree + 1]
        rejected = size - agree - 1
        if rejected:
            # Negative: transformers 5.x takes only the number of rows to drop, 4.x takes it as well.
            cache.crop(-rejected)
        for count, token in enumerate(committed, start=1):
            if token in stops:
                committed = committed[:count]
                break
        accepted.append(len(committed))
        answer.extend(committed)
    return Decoded(answer, accepted)


def _draft(target: Target, drafter: Drafter, features: Tensor, block: Tensor, context: ContextCache) -> Tensor:
    """Greedy tokens for slots 1.. of a block [1, B], on the target's device; the drafter may stand on another one."""
    device, dtype = drafter.fc.weight.device, drafter.fc.weight.dtype
    embedded = functional.embedding(block, target.embedding)
    hidden = drafter.draft(features.to(device, dtype), embedded.to(device, dtype), context)
    return (hidden[0, 1:].to(target.head.device, target.head.dtype) @ target.head.T).argmax(-1)


def _row(tokens: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([list(tokens)], dtype=torch.long, device=device)

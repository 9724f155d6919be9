"""Evaluation by real speculative decoding: acceptance length, and whether the answer is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.decode import Decoded, greedy_decode, speculative_decode
from dflash.drafter import Drafter
from dflash.target import Target


@dataclass(frozen=True)
class EvaluationConfig:
    """Keys of [evaluation]."""

    prompts: int = 8
    """Prompts of each set (trained on, held out), from the start of the file; 0 switches evaluation off."""
    max_new_tokens: int = 32
    """Length limit of an answer in evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of one set of prompts."""

    prompts: int
    tokens: int
    cycles: int
    tau: float
    """Mean tokens per draft-and-verify cycle over all cycles, bonus token included: 1 to the block size."""
    tau_by_prompt: float
    """Mean over prompts of each prompt's own mean."""
    lossless: bool
    """Every answer equals plain greedy decoding of the target, token for token."""
    differing: tuple[int, ...]
    """Prompts (from 0) whose answer differs."""


class Evaluator:
    """Holds the target's plain answers, which are made once and serve before and after training."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stops: frozenset[int],
        mask_token: int,
        poll: Callable[[], None],
    ) -> None:
        self._target = target
        self._prompts = prompts
        self._limit = max_new_tokens
        self._stops = stops
        self._mask_token = mask_token
        self._poll = poll
        self._plain: list[list[int]] = []

    def __call__(self, drafter: Drafter, progress: Callable[[int, int], None]) -> Evaluation:
        """Decodes every prompt with the drafter; `progress` gets (done, all). `poll` may raise to give up."""
        decoded: list[Decoded] = []
        for index, prompt in enumerate(self._prompts):
            if index == len(self._plain):
                self._plain.append(greedy_decode(self._target, prompt, self._limit, self._stops, self._poll))
            decoded.append(
                speculative_decode(
                    self._target, drafter, prompt, self._limit, self._stops, self._mask_token, self._poll
                )
            )
            progress(index + 1, len(self._prompts))
        return summarise(decoded, self._plain)


def summarise(decoded: Sequence[Decoded], plain: Sequence[list[int]]) -> Evaluation:
    """Figures of answers against the target's own."""
    differing = tuple(index for index, (ours, own) in enumerate(zip(decoded, plain, strict=True)) if ours.tokens != own)
    cycles = sum(len(answer.accepted) for answer in decoded)
    tokens = sum(sum(answer.accepted) for answer in decoded)
    return Evaluation(
        prompts=len(decoded),
        tokens=sum(len(answer.tokens) for answer in decoded),
        cycles=cycles,
        tau=tokens / cycles if cycles else 1.0,
        tau_by_prompt=sum(answer.acceptance_length for answer in decoded) / len(decoded),
        lossless=not differing,
        differing=differing,
    )

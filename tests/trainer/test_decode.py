"""Speculative decoding never changes the answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dflash.decode import Decoded, greedy_decode, speculative_decode
from dflash.drafter import Drafter
from dflash.evaluate import summarise
from dflash.flat import OptimizerConfig
from dflash.target import Target
from tests.trainer.tiny import EOS, MASK_TOKEN, make_batch, tiny_drafter, training_step

NEW = 24
PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44, 45], [99, 3, 200, 17]]


def generated(target: Target, prompt: list[int], new: int = NEW) -> list[int]:
    """transformers' own greedy answer."""
    row = torch.tensor([prompt])
    output = target.model.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def overfitted(target: Target, steps: int = 150) -> Drafter:
    """A drafter that has learnt the target's answers to PROMPTS by heart."""
    drafter = tiny_drafter(target, block_size=4)
    rows = [prompt + generated(target, prompt) for prompt in PROMPTS]
    length = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    places = torch.arange(length)
    lengths = torch.tensor([len(row) for row in rows])
    starts = torch.tensor([[len(prompt)] for prompt in PROMPTS])
    batch = make_batch(target, tokens, (places >= starts) & (places < lengths.unsqueeze(1)), lengths)
    config = OptimizerConfig(learning_rate=3e-3)
    step = training_step(target, drafter, rows=3, length=length, anchors=length, optimizer=config)
    for _ in range(steps):
        step.forward_backward(batch)
        step.update(3e-3)
    return drafter


def decode(target: Target, drafter: Drafter, prompt: list[int], new: int = NEW) -> Decoded:
    return speculative_decode(target, drafter, prompt, new, frozenset({EOS}), MASK_TOKEN)


def test_a_random_drafter_leaves_the_answer_of_transformers_generate_as_it_is(target: Target) -> None:
    drafter = tiny_drafter(target)
    for prompt in PROMPTS:
        answer = generated(target, prompt)
        assert len(set(answer)) > 5, "a loop would prove little"
        assert greedy_decode(target, prompt, NEW, frozenset({EOS})) == answer
        assert decode(target, drafter, prompt).tokens == answer


def test_overfitting_raises_acceptance_from_one_to_the_block_size_without_changing_the_answer(target: Target) -> None:
    before = [decode(target, tiny_drafter(target), prompt).acceptance_length for prompt in PROMPTS]
    drafter = overfitted(target)
    for prompt, untrained in zip(PROMPTS, before, strict=True):
        decoded = decode(target, drafter, prompt)
        assert decoded.tokens == generated(target, prompt)
        assert untrained < 1.3
        assert decoded.acceptance_length > 3.5, "of at most 4"


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 6, 7])
def test_every_length_limit_is_kept_exactly(target: Target, new: int) -> None:
    drafter = tiny_drafter(target)
    decoded = decode(target, drafter, PROMPTS[0], new)
    assert decoded.tokens == generated(target, PROMPTS[0], new)
    assert 1 + sum(decoded.accepted) == len(decoded.tokens) == new


class KnowsTheAnswer(Drafter):
    """Drafts the right tokens at chosen places, by looking them up: all ways a block can end come up."""

    def __init__(self, target: Target, answer: list[int], prompt: int, wrong: set[int]) -> None:
        base = tiny_drafter(target)
        super().__init__(base.shape, base.rotary)
        self._head, self._answer, self._prompt, self._wrong = target.head, answer, prompt, wrong

    def draft(self, features: Tensor, block: Tensor, cache) -> Tensor:  # type: ignore[no-untyped-def]
        super().draft(features, block, cache)
        start = cache.length - self._prompt
        places = range(start, start + block.shape[1])
        right = [self._answer[place] if place < len(self._answer) else 0 for place in places]
        wanted = [token + (place in self._wrong) for token, place in zip(right, places, strict=True)]
        # The random rows of the head are nearly orthogonal, so a row's own token gets the highest logit.
        return self._head[wanted].unsqueeze(0)


@pytest.mark.parametrize("wrong", [set(), {1}, {2}, {3}, {4}, {3, 4, 9}, {7, 8}])
def test_accepted_counts_follow_the_first_wrong_slot(target: Target, wrong: set[int]) -> None:
    prompt = PROMPTS[1]
    answer = generated(target, prompt)
    drafter = KnowsTheAnswer(target, answer, len(prompt), wrong)
    decoded = decode(target, drafter, prompt)
    assert decoded.tokens == answer
    expected, known = [], 1
    while known < NEW:
        size = min(4, NEW - known)
        accepted = 0
        while accepted < size - 1 and known + accepted not in wrong:
            accepted += 1
        expected.append(accepted + 1)
        known += accepted + 1
    assert decoded.accepted == expected


def test_tokens_behind_a_stop_token_are_neither_returned_nor_counted(target: Target) -> None:
    prompt = PROMPTS[1]
    answer = generated(target, prompt)
    stop = answer[6]
    end = answer.index(stop) + 1
    drafter = KnowsTheAnswer(target, answer, len(prompt), set())
    decoded = speculative_decode(target, drafter, prompt, NEW, frozenset({stop}), MASK_TOKEN)
    assert decoded.tokens == answer[:end] == greedy_decode(target, prompt, NEW, frozenset({stop}))
    assert 1 + sum(decoded.accepted) == end


def test_acceptance_length_is_over_cycles_and_differences_are_named() -> None:
    decoded = [Decoded([1, 2, 3, 4, 5], [4]), Decoded([1, 2, 3], [1, 1])]
    found = summarise(decoded, [[1, 2, 3, 4, 5], [1, 2, 9]])
    assert found.tau == 2.0  # 6 tokens in 3 cycles
    assert found.tau_by_prompt == 2.5
    assert not found.lossless
    assert found.differing == (1,)

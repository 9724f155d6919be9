"""The drafter against the published description: same numbers in training and inference, and no leaks."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.drafter import ContextCache, Drafter
from dflash.masks import dense_mask
from dflash.target import Target
from tests.trainer.reference import draft_block
from tests.trainer.tiny import tiny_drafter, tiny_target

LENGTH = 40
BLOCK = 4


def parallel(drafter: Drafter, features: Tensor, blocks: Tensor, anchors: list[int]) -> Tensor:
    """Hidden rows [N, B, H] of all blocks at once, as in training."""
    places = torch.tensor([anchors])
    mask = dense_mask(places, BLOCK, LENGTH)
    slots = (places.unsqueeze(-1) + torch.arange(BLOCK)).flatten(1)
    dtype = features.dtype
    context_rope = drafter.rotary.at(torch.arange(LENGTH).unsqueeze(0), dtype)
    hidden = drafter(features, blocks.flatten(0, 1).unsqueeze(0), context_rope, drafter.rotary.at(slots, dtype), mask)
    rows: Tensor = hidden.view(len(anchors), BLOCK, -1)
    return rows


def inputs(target: Target, anchors: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (1, LENGTH), generator=generator)
    with torch.no_grad():
        features = target.features(tokens)
    return features, torch.randn(anchors, BLOCK, 64, generator=generator).to(features.dtype)


def test_blocks_trained_in_parallel_equal_blocks_drafted_one_by_one(target: Target) -> None:
    anchors = [3, 5, 6, 20, 21, 35]  # some overlap
    drafter = tiny_drafter(target)
    features, blocks = inputs(target, len(anchors))
    together = parallel(drafter, features, blocks, anchors)
    for index, anchor in enumerate(anchors):
        cache = ContextCache(2)
        # The context arrives in two parts, as it does while decoding; the first block is only there to be forgotten.
        drafter.draft(features[:, : anchor - 2], blocks[0:1], cache)
        alone = drafter.draft(features[:, anchor - 2 : anchor], blocks[index : index + 1], cache)
        torch.testing.assert_close(alone[0], together[index], rtol=0, atol=2e-5)


def test_the_drafter_equals_an_independent_one_written_from_the_description() -> None:
    target = tiny_target("qwen3", torch.float64)
    drafter = tiny_drafter(target)
    for parameter in drafter.parameters():  # norms and biases must not hide behind ones
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)).to(parameter)
    anchors = [2, 9, 10, 31]
    features, blocks = inputs(target, len(anchors))
    ours = parallel(drafter, features, blocks, anchors)
    base = target.config.rope_parameters["rope_theta"]
    for index, anchor in enumerate(anchors):
        sizes = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
        theirs = draft_block(drafter.state_dict(), features[0], blocks[index], anchor, **sizes, base=base, eps=1e-6)
        # The angles are made in float32 (as transformers does), the rest in float64.
        torch.testing.assert_close(ours[index], theirs, rtol=0, atol=1e-5)


def test_a_block_sees_nothing_at_or_after_its_anchor_and_no_other_block(target: Target) -> None:
    drafter = tiny_drafter(target)
    anchors = [4, 6, 30]
    features, blocks = inputs(target, len(anchors))
    before = parallel(drafter, features, blocks, anchors)

    changed = features.clone()
    changed[:, 6:] += 1.0
    after = parallel(drafter, changed, blocks, anchors)
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert not torch.allclose(after[2], before[2])

    changed = features.clone()
    changed[:, 5] += 1.0
    after = parallel(drafter, changed, blocks, anchors)
    assert torch.equal(after[0], before[0])
    assert not torch.allclose(after[1], before[1])

    other = blocks.clone()
    other[0] += 1.0
    after = parallel(drafter, features, other, anchors)
    assert not torch.allclose(after[0], before[0])
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-6)

    after = parallel(drafter, features, blocks, [8, 6, 30])
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-6)


def test_every_slot_of_a_block_sees_every_other(target: Target) -> None:
    drafter = tiny_drafter(target)
    features, blocks = inputs(target, 1)
    before = parallel(drafter, features, blocks, [10])
    blocks[0, 3] += 1.0
    after = parallel(drafter, features, blocks, [10])
    assert all(not torch.allclose(after[0, slot], before[0, slot]) for slot in range(BLOCK))


def test_parameters_are_drawn_from_the_seed_alone(target: Target) -> None:
    first, second = tiny_drafter(target, seed=1), tiny_drafter(target, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.fc.weight, tiny_drafter(target, seed=2).fc.weight)
    second.initialise(1, final_norm=3.0)
    assert second.norm.weight.tolist() == [3.0] * 64

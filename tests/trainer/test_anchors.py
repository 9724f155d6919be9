"""Anchors, labels and loss weights."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.anchors import Anchors, build_blocks, eligible, integer_hash, sample_anchors


def mask(*answers: tuple[int, int], length: int) -> torch.Tensor:
    """[1, length] with the half-open ranges set."""
    row = torch.zeros(1, length, dtype=torch.bool)
    for first, last in answers:
        row[0, first:last] = True
    return row


def test_anchors_need_an_answer_token_here_and_next() -> None:
    # Two answers: 3..6 and 9..12; the sequence ends at 12. Position 6 and 11 have no supervised successor.
    found = eligible(mask((3, 7), (9, 12), length=16), torch.tensor([12]))
    assert found[0].nonzero().flatten().tolist() == [3, 4, 5, 9, 10]


def test_an_anchor_is_at_most_the_last_but_one_real_token() -> None:
    found = eligible(mask((2, 16), length=16), torch.tensor([8]))
    assert found[0].nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 12), st.integers(0, 14), st.integers(1, 16), st.integers(0, 2**31), st.integers(0, 50))
def test_anchors_are_drawn_without_replacement_sorted_and_filled_up(
    first: int, size: int, count: int, seed: int, epoch: int
) -> None:
    length = 16
    loss_mask = mask((first, min(first + size, length)), length=length)
    lengths = torch.tensor([length])
    wanted = eligible(loss_mask, lengths)[0].nonzero().flatten().tolist()
    drawn = sample_anchors(loss_mask, lengths, seed, torch.tensor([epoch]), torch.tensor([3]), count)
    real = drawn.position[0][drawn.keep[0]].tolist()
    assert drawn.position.shape == drawn.keep.shape == (1, count)
    assert real == sorted(set(real))
    assert set(real) <= set(wanted)
    assert len(real) == min(count, len(wanted))
    assert drawn.keep[0].tolist() == sorted(drawn.keep[0].tolist(), reverse=True), "filler blocks come last"
    assert (drawn.context_length[~drawn.keep] == 0).all()


def test_a_visit_has_the_same_anchors_wherever_it_happens_and_others_have_others() -> None:
    loss_mask, lengths = mask((10, 200), length=256).expand(3, -1), torch.full((3,), 256)
    epochs, samples = torch.tensor([0, 0, 1]), torch.tensor([5, 6, 5])
    together = sample_anchors(loss_mask, lengths, 9, epochs, samples, 8).position
    for row in range(3):
        alone = sample_anchors(loss_mask[:1], lengths[:1], 9, epochs[row : row + 1], samples[row : row + 1], 8)
        assert torch.equal(alone.position[0], together[row])
    assert len({tuple(row) for row in together.tolist()}) == 3
    other_seed = sample_anchors(loss_mask, lengths, 10, epochs, samples, 8).position
    assert not torch.equal(other_seed, together)


def test_the_hash_is_the_integer_it_always_was() -> None:
    """Resumed runs and other devices must draw the same anchors, so the figures are part of the format."""
    found = integer_hash(torch.tensor(1), torch.tensor(2), torch.arange(4))
    assert found.tolist() == [2812088286, 3457897556, 1772161372, 980552453]
    assert (found >= 0).all()
    assert (found < 2**32).all()


def test_the_hash_spreads_evenly() -> None:
    values = integer_hash(torch.tensor(0), torch.arange(20000)).double() / 2**32
    assert abs(values.mean().item() - 0.5) < 0.01
    counts = torch.histc(values, 20, 0, 1)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_slot_j_is_asked_for_token_anchor_plus_j() -> None:
    tokens = torch.arange(100, 116).unsqueeze(0)
    anchors = Anchors(torch.tensor([[4, 9]]), torch.tensor([[True, True]]))
    blocks = build_blocks(tokens, mask((4, 16), length=16), torch.tensor([16]), anchors, 4, 7, 4.0)
    assert blocks.tokens.tolist() == [[104, 7, 7, 7, 109, 7, 7, 7]]
    assert blocks.positions.tolist() == [[4, 5, 6, 7, 9, 10, 11, 12]]
    assert blocks.labels.tolist() == [[[105, 106, 107], [110, 111, 112]]]


def test_weights_decay_and_stop_at_the_end_of_the_answer() -> None:
    # Answer 4..9, end of the sequence 10; the next turn's answer starts at 12.
    tokens = torch.arange(16).unsqueeze(0)
    loss_mask = mask((4, 10), (12, 16), length=16)
    anchors = Anchors(torch.tensor([[5, 8, 0]]), torch.tensor([[True, True, False]]))
    blocks = build_blocks(tokens, loss_mask, torch.tensor([14]), anchors, 7, 0, 2.0)
    e = [math.exp(-j / 2.0) for j in range(6)]
    expected = torch.tensor(
        [
            # slots 1..6 of anchor 5 are tokens 6..11: 6, 7, 8, 9 are supervised, 10 and 11 are the user's
            [e[0], e[1], e[2], e[3], 0, 0],
            # anchor 8: token 9, then the user's 10 and 11, then 12 and 13 of the next answer, 14 is padding
            [e[0], 0, 0, e[3], e[4], 0],
            [0, 0, 0, 0, 0, 0],
        ]
    )
    torch.testing.assert_close(blocks.weights[0], expected)

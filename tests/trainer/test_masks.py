"""The flex mask and the dense mask are one mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dflash.anchors import Anchors
from dflash.masks import TILE, FlexMask, dense_mask

CPU = torch.device("cpu")


def some_anchors(positions: list[int], filler: int) -> Anchors:
    kept = sorted(positions)
    return Anchors(
        torch.tensor([kept + [0] * filler]),
        torch.tensor([[True] * len(kept) + [False] * filler]),
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2 * TILE - 2), min_size=1, max_size=40, unique=True),
    st.integers(0, 6),
    st.sampled_from([4, 6, 8, 10, 16]),
)
def test_tiles_and_mask_function_give_exactly_the_dense_mask(positions: list[int], filler: int, size: int) -> None:
    length = 2 * TILE
    anchors = some_anchors(positions, filler)
    count = len(positions) + filler
    dense = dense_mask(anchors.context_length, size, length)[0, 0]
    flex = FlexMask(1, count, size, length, CPU).update(anchors.context_length)

    queries, keys = count * size, length + count * size
    q, kv = torch.meshgrid(torch.arange(queries), torch.arange(keys), indexing="ij")
    assert torch.equal(flex.mask_mod(torch.tensor(0), torch.tensor(0), q, kv), dense)

    # Tiles: a full one must be visible throughout, and a pair that is visible must lie in some tile.
    listed = torch.zeros(-(-queries // TILE), -(-keys // TILE), dtype=torch.long)
    for kind, (number, indices) in enumerate(
        [(flex.kv_num_blocks, flex.kv_indices), (flex.full_kv_num_blocks, flex.full_kv_indices)], start=1
    ):
        assert number is not None
        assert indices is not None
        for tile in range(listed.shape[0]):
            for other in indices[0, 0, tile, : int(number[0, 0, tile])].tolist():
                assert listed[tile, other] == 0, "a tile is partial or full, once"
                listed[tile, other] = kind
    for tile in range(listed.shape[0]):
        for other in range(listed.shape[1]):
            part = dense[tile * TILE : (tile + 1) * TILE, other * TILE : (other + 1) * TILE]
            if listed[tile, other] == 0:
                assert not part.any()
            if listed[tile, other] == 2:
                assert part.all()


def test_flex_attention_gives_the_numbers_of_dense_attention() -> None:
    anchors, size, length = some_anchors([0, 3, 4, 90, 126, 127], 2), 16, TILE
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 8 * size, 16, generator=generator)
    key, value = (torch.randn(1, 2, length + 8 * size, 16, generator=generator) for _ in range(2))
    block_mask = FlexMask(1, 8, size, length, CPU).update(anchors.context_length)
    ours = flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)
    dense = dense_mask(anchors.context_length, size, length)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=dense, enable_gqa=True)
    assert isinstance(ours, torch.Tensor)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_no_row_is_empty_so_that_filler_blocks_give_no_nan() -> None:
    anchors = some_anchors([5], 3)
    assert dense_mask(anchors.context_length, 4, 32).any(-1).all()


def test_a_length_that_does_not_fit_the_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        FlexMask(1, 4, 4, 100, CPU)

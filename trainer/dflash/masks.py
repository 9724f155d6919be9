"""Which keys a training block may see: the context strictly before its anchor, and the whole of its own block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

TILE = 128
"""Tile of the block mask. The draft block size cannot be the tile: Inductor wants a multiple of its kernel's tile."""


def dense_mask(context_length: Tensor, block_size: int, length: int) -> Tensor:
    """[batch, 1, N * B, S + N * B] bool for SDPA; `context_length` [batch, N] is 0 for filler blocks.

    Filler blocks still see themselves: a fully masked row is NaN in a dense softmax, and NaN * 0 stays NaN in the loss.
    """
    batch, count = context_length.shape
    queries = count * block_size
    places = torch.arange(length, device=context_length.device)
    context = places < context_length.unsqueeze(-1)
    context = context.unsqueeze(2).expand(batch, count, block_size, length).reshape(batch, queries, length)
    block_of = torch.arange(queries, device=context_length.device) // block_size
    own = (block_of.unsqueeze(1) == block_of).expand(batch, queries, queries)
    return torch.cat((context, own), dim=-1).unsqueeze(1)


class FlexMask:
    """The same mask for flex attention, at fixed sizes.

    The tiles are computed directly (one comparison per tile pair) instead of by `create_block_mask`, which would
    evaluate every (query, key) pair at each step or need a compile of its own. The mask function is made once and reads
    a buffer that `update` overwrites, so new anchors cannot look like new code to the compiler.
    """

    def __init__(self, batch: int, count: int, block_size: int, length: int, device: torch.device) -> None:
        if length % TILE:
            raise ValueError(f"flex attention needs a context length that is a multiple of {TILE}, not {length}")
        self._length = length
        self._block_size = block_size
        self._queries = count * block_size
        self._limits = torch.zeros(batch, count, dtype=torch.int64, device=device)
        limits = self._limits

        def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:  # noqa: ARG001
            block = q // block_size
            own = (kv >= length) & ((kv - length) // block_size == block)
            return ((kv < length) & (kv < limits[b, block])) | own

        self._visible = visible

    def update(self, context_length: Tensor) -> BlockMask:
        """The block mask for `context_length` [batch, N]; nothing is read back from the device."""
        self._limits.copy_(context_length)
        rows = self._limits.repeat_interleave(self._block_size, dim=1)
        query_tiles = -(-self._queries // TILE)
        missing = query_tiles * TILE - self._queries
        if missing:
            rows = torch.cat((rows, rows[:, -1:].expand(-1, missing)), dim=1)
        tiled = rows.view(rows.shape[0], query_tiles, TILE)
        all_see = tiled.amin(2) // TILE
        some_see = -(-tiled.amax(2) // TILE)

        device = rows.device
        key_tiles = -(-(self._length + self._queries) // TILE)
        tile = torch.arange(key_tiles, device=device)
        own = self._length // TILE + torch.arange(query_tiles, device=device)
        full = tile < all_see.unsqueeze(-1)
        # A draft block may reach over a tile's edge when B does not divide the tile; then its neighbours count as well.
        reach = 0 if TILE % self._block_size == 0 else 1
        near = (tile - own.unsqueeze(-1)).abs() <= reach
        in_block = near & (tile >= self._length // TILE)
        partial = ((tile >= all_see.unsqueeze(-1)) & (tile < some_see.unsqueeze(-1))) | in_block
        return BlockMask.from_kv_blocks(
            *_ordered(partial),
            *_ordered(full),
            BLOCK_SIZE=TILE,
            mask_mod=self._visible,
            seq_lengths=(self._queries, self._length + self._queries),
        )


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Counts [batch, 1, q tiles] and indices [batch, 1, q tiles, kv tiles] (wanted ones first) of a bool tile map."""
    indices = tiles.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32).unsqueeze(1), indices.to(torch.int32).unsqueeze(1)

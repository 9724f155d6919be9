"""Anchors: which places of a sequence become training blocks, and what those blocks hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_INELIGIBLE = 1 << 62
_POSITION_BITS = 24
MAX_LENGTH = 1 << _POSITION_BITS


@dataclass(frozen=True)
class AnchorConfig:
    """Keys of [anchors]."""

    per_sequence: int = 512
    """Blocks per sequence, always this many: where an answer is too short the rest are filler blocks without weight."""


class Anchors(NamedTuple):
    """Anchors of a batch, ascending; filler blocks come last."""

    position: Tensor
    """[batch, N] int64; a filler block holds 0."""
    keep: Tensor
    """[batch, N] bool; False for filler blocks."""

    @property
    def context_length(self) -> Tensor:
        """[batch, N]: how many context rows a block may see (strictly before its anchor); 0 for filler."""
        return self.position * self.keep


class Blocks(NamedTuple):
    """What the drafter is asked and what it should answer."""

    tokens: Tensor
    """[batch, N * B]: the known token in slot 0, the mask token elsewhere."""
    positions: Tensor
    """[batch, N * B]: anchor + slot."""
    labels: Tensor
    """[batch, N, B - 1]: slot j of anchor a is asked for token a + j; slot 0 is known and left out."""
    weights: Tensor
    """[batch, N, B - 1] float32."""


def _mix(x: Tensor) -> Tensor:
    """The 32-bit finaliser of MurmurHash3 on int64 tensors; products wrap in int64 and their low 32 bits stay right."""
    x = (x ^ (x >> 16)) & _MASK32
    x = (x * 0x85EBCA6B) & _MASK32
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & _MASK32
    return x ^ (x >> 16)


def integer_hash(*words: Tensor) -> Tensor:
    """A hash in [0, 2**32) of integer tensors that broadcast together: the same on every device and in every thread."""
    state = torch.zeros((), dtype=torch.int64, device=words[0].device)
    for word in words:
        state = _mix((state * 0x9E3779B1 + (word & _MASK32) + 0x7F4A7C15) & _MASK32)
    return state


def eligible(loss_mask: Tensor, lengths: Tensor) -> Tensor:
    """[batch, S] bool: inside the answer (loss mask set here and at the next token), at most length - 2."""
    places = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    following = torch.zeros_like(loss_mask)
    following[:, :-1] = loss_mask[:, 1:]
    return loss_mask & following & (places <= lengths.unsqueeze(1) - 2)


def sample_anchors(
    loss_mask: Tensor, lengths: Tensor, seed: int, epochs: Tensor, samples: Tensor, count: int
) -> Anchors:
    """Draws up to `count` anchors per row without replacement by the hash of (seed, epoch, sample, position).

    loss_mask [batch, S] bool; lengths, epochs, samples [batch] int64. No generator is drawn and the device is not
    synchronised; the same visit of the same sample has the same anchors in every topology.
    """
    batch, length = loss_mask.shape
    places = torch.arange(length, device=loss_mask.device).unsqueeze(0)
    seeds = torch.full((batch, 1), seed & _MASK32, dtype=torch.int64, device=loss_mask.device)
    score = integer_hash(seeds, epochs.unsqueeze(1), samples.unsqueeze(1), places)
    # The position below the score makes every key unique, so that no device breaks a tie in its own way.
    key = (score << _POSITION_BITS) | places
    key = torch.where(eligible(loss_mask, lengths), key, _INELIGIBLE | places)
    drawn = key.topk(count, dim=1, largest=False).values
    real = drawn < _INELIGIBLE
    ordered = torch.where(real, drawn & (MAX_LENGTH - 1), length).sort(dim=1).values
    keep = ordered < length
    return Anchors(torch.where(keep, ordered, 0), keep)


def build_blocks(
    tokens: Tensor,
    loss_mask: Tensor,
    lengths: Tensor,
    anchors: Anchors,
    block_size: int,
    mask_token: int,
    gamma: float,
) -> Blocks:
    """Blocks, labels and loss weights of a batch of tokens [batch, S].

    weight[a, j] = keep * (j > 0) * (a + j < length) * loss_mask[a + j] * exp(-(j - 1) / gamma)
    """
    batch, length = tokens.shape
    slots = torch.arange(block_size, device=tokens.device)
    positions = anchors.position.unsqueeze(-1) + slots
    inside = positions.clamp(max=length - 1).flatten(1)
    labels = tokens.gather(1, inside).view(positions.shape)
    supervised = loss_mask.gather(1, inside).view(positions.shape)
    real = anchors.keep.unsqueeze(-1) & (positions < lengths.view(batch, 1, 1)) & supervised
    decay = torch.exp(-(slots[1:] - 1).float() / gamma)
    asked = torch.where(slots == 0, labels, mask_token)
    return Blocks(
        tokens=asked.flatten(1),
        positions=positions.flatten(1),
        labels=labels[..., 1:],
        weights=real[..., 1:] * decay,
    )

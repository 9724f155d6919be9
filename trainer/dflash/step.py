"""One drafter's training step: anchors, mask, forward, loss, backward; then, after the exchange, the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dflash.anchors import build_blocks, sample_anchors
from dflash.compile import Forward
from dflash.drafter import Drafter, Mask
from dflash.flat import FlatParameters
from dflash.loss import loss_sums
from dflash.masks import FlexMask, dense_mask


class Batch(NamedTuple):
    """What a target hands to a drafter. Integer tensors are on the drafter's device, like the features."""

    tokens: Tensor
    """[batch, S] int64."""
    loss_mask: Tensor
    """[batch, S] bool."""
    lengths: Tensor
    """[batch] int64: real tokens per row."""
    epochs: Tensor
    """[batch] int64."""
    samples: Tensor
    """[batch] int64: index of each row's sample; epoch and sample seed the anchors."""
    features: Tensor
    """[batch, S, captured * hidden] in the compute dtype."""


class Totals(NamedTuple):
    """Sums over all drafters of one step, on the device."""

    loss: Tensor
    weight: Tensor
    correct: Tensor
    slots: Tensor
    gradient_norm: Tensor


@dataclass(frozen=True)
class StepPlan:
    """Sizes and constants of the step; every shape of a run follows from them."""

    rows: int
    length: int
    anchors: int
    block_size: int
    mask_token: int
    gamma: float
    chunk_slots: int
    seed: int
    flex: bool


class TrainingStep:
    """The step of one drafter. `embedding` and `head` [V, H] are the target's, on the drafter's device."""

    def __init__(
        self,
        drafter: Drafter,
        parameters: FlatParameters,
        embedding: Tensor,
        head: Tensor,
        plan: StepPlan,
    ) -> None:
        self._drafter = drafter
        self._parameters = parameters
        self._embedding = embedding
        self._head = head
        self._plan = plan
        self._forward: Forward = drafter
        device, dtype = embedding.device, drafter.fc.weight.dtype
        self._context_rope = drafter.rotary.at(torch.arange(plan.length, device=device).unsqueeze(0), dtype)
        self._flex = FlexMask(plan.rows, plan.anchors, plan.block_size, plan.length, device) if plan.flex else None

    @property
    def exchange_buffer(self) -> Tensor:
        """Gradients and sums that the exchange adds up between `forward_backward` and `update`."""
        return self._parameters.exchange_buffer

    def use(self, forward: Forward) -> None:
        """Takes a compiled forward in the place of the eager one."""
        self._forward = forward

    def forward_backward(self, batch: Batch) -> None:
        """Gradients of sum(w * CE), not yet divided, and the sums go into the exchange buffer."""
        plan = self._plan
        anchors = sample_anchors(batch.loss_mask, batch.lengths, plan.seed, batch.epochs, batch.samples, plan.anchors)
        blocks = build_blocks(
            batch.tokens, batch.loss_mask, batch.lengths, anchors, plan.block_size, plan.mask_token, plan.gamma
        )
        mask: Mask
        if self._flex is not None:
            mask = self._flex.update(anchors.context_length)
        else:
            mask = dense_mask(anchors.context_length, plan.block_size, plan.length)
        embedded = functional.embedding(blocks.tokens, self._embedding)
        rope = self._drafter.rotary.at(blocks.positions, embedded.dtype)
        self._parameters.zero()
        hidden = self._forward(batch.features, embedded, self._context_rope, rope, mask)
        asked = hidden.view(plan.rows, plan.anchors, plan.block_size, -1)[:, :, 1:]
        sums = loss_sums(asked, self._head, blocks.labels, blocks.weights, plan.chunk_slots)
        sums.loss.backward()  # type: ignore[no-untyped-call]
        self._parameters.gather(*sums)

    def update(self, rate: float) -> Totals:
        """One optimizer step from the exchanged buffer."""
        loss, weight, correct, slots = self._parameters.statistics[:4].clone()
        norm = self._parameters.step(rate, weight.clamp(min=1e-12))
        return Totals(loss, weight, correct, slots, norm)

    def warm(self, feature_size: int) -> None:
        """A forward and a backward at the final shapes on made-up input; parameters and optimizer stay as they are."""
        plan, device = self._plan, self._embedding.device
        shape = (plan.rows, plan.length)
        self.forward_backward(
            Batch(
                tokens=torch.zeros(shape, dtype=torch.long, device=device),
                loss_mask=torch.ones(shape, dtype=torch.bool, device=device),
                lengths=torch.full((plan.rows,), plan.length, device=device),
                epochs=torch.zeros(plan.rows, dtype=torch.long, device=device),
                samples=torch.arange(plan.rows, device=device),
                features=torch.zeros(*shape, feature_size, dtype=self._embedding.dtype, device=device),
            )
        )
        self._parameters.zero()

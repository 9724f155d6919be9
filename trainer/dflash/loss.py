"""Weighted cross-entropy over the frozen head, in chunks, so that all logits never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossConfig:
    """Keys of [loss]."""

    gamma: float = 0.0
    """Decay of the slot weights exp(-(j - 1) / gamma); 0 takes the paper's: 7 for block 16, 5 for 10, 4 for 8."""
    chunk_slots: int = 1024
    """Slots whose logits exist at once."""


def default_gamma(block_size: int) -> float:
    """The paper's gammas (arXiv 2602.06036, section 5.1), B / 2 - 1 elsewhere, never below 1."""
    return {16: 7.0, 10: 5.0, 8: 4.0}.get(block_size, max(block_size / 2 - 1, 1.0))


class LossSums(NamedTuple):
    """Sums, not means: numerators and denominators of all drafters are added before anything is divided."""

    loss: Tensor
    """sum(weight * cross-entropy); differentiable in the hidden rows."""
    weight: Tensor
    """sum(weight)."""
    correct: Tensor
    """Supervised slots whose most likely token is the label."""
    slots: Tensor
    """Supervised slots."""


class _WeightedCrossEntropy(torch.autograd.Function):
    """The head is frozen, so the gradient of a chunk needs its logits only once: it is made right beside the loss."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        gradient = torch.empty_like(hidden)
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        correct = torch.zeros((), dtype=wide, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            label, weight = labels[part].unsqueeze(1), weights[part].to(wide).unsqueeze(1)
            logits = (hidden[part] @ head.T).to(wide)
            correct += ((logits.argmax(-1, keepdim=True) == label) & (weight > 0)).sum()
            log_probs = torch.log_softmax(logits, dim=-1)
            del logits
            loss -= (log_probs.gather(1, label) * weight).sum()
            slope = log_probs.exp_().mul_(weight)
            slope.scatter_add_(1, label, -weight)
            torch.mm(slope.to(head.dtype), head, out=gradient[part])
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _correct: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * loss_gradient.to(gradient.dtype), None, None, None, None


def loss_sums(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, chunk: int) -> LossSums:
    """Sums over all slots; hidden [..., H] (any leading dims), head [V, H] frozen, labels and weights [...].

    Softmax and sums are in float32 (float64 for float64 input), whatever the dtype of the products.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    flat_labels, flat_weights = labels.reshape(-1), weights.reshape(-1)
    loss, correct = _WeightedCrossEntropy.apply(rows, head, flat_labels, flat_weights, chunk)  # type: ignore[no-untyped-call]
    return LossSums(loss, flat_weights.to(loss.dtype).sum(), correct, (flat_weights > 0).sum().to(loss.dtype))

"""The chunked loss against the plain formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dflash.loss import default_gamma, loss_sums


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_sums_and_gradient_equal_plain_cross_entropy(chunk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, 3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 50, (2, 5, 3), generator=generator)
    weights = torch.rand(2, 5, 3, generator=generator) * (torch.rand(2, 5, 3, generator=generator) > 0.3)

    logits = hidden @ head.T
    each = functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
    expected = (each * weights).sum()
    (wanted,) = torch.autograd.grad(expected * 0.5, hidden)

    sums = loss_sums(hidden, head, labels, weights, chunk)
    (gradient,) = torch.autograd.grad(sums.loss * 0.5, hidden)
    torch.testing.assert_close(sums.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-14)
    assert sums.weight.item() == pytest.approx(weights.double().sum().item(), rel=1e-6)
    assert sums.slots.item() == (weights > 0).sum().item()
    right = ((logits.argmax(-1) == labels) & (weights > 0)).sum().item()
    assert sums.correct.item() == right


def test_slots_without_weight_count_nowhere_even_if_their_hidden_rows_are_huge() -> None:
    hidden = torch.tensor([[1.0, 0.0], [1e30, 1e30]], requires_grad=True)
    sums = loss_sums(hidden, torch.eye(2), torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), 8)
    sums.loss.backward()
    assert torch.isfinite(sums.loss)
    assert hidden.grad is not None
    assert hidden.grad[1].tolist() == [0.0, 0.0]


def test_the_softmax_of_bfloat16_hidden_rows_is_in_float32() -> None:
    hidden = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    sums = loss_sums(hidden, torch.randn(30, 8).bfloat16(), torch.arange(4), torch.ones(4), 2)
    assert sums.loss.dtype == torch.float32
    sums.loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_gammas_of_the_paper() -> None:
    assert [default_gamma(size) for size in (16, 10, 8)] == [7.0, 5.0, 4.0]

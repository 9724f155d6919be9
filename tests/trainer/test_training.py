"""Training itself: what two drafters do together, that the loss falls, that masters and compute copies agree."""

from __future__ import annotations

import threading

import pytest
import torch

from dflash.errors import TrainerError
from dflash.exchange import ThreadExchange
from dflash.flat import FlatParameters, OptimizerConfig, check_finite, learning_rate
from dflash.step import Batch, TrainingStep
from dflash.target import Target
from dflash.workers import Cancelled
from tests.trainer.tiny import make_batch, tiny_drafter, tiny_target, training_step

LENGTH = 32
STEPS = 4
CONFIG = OptimizerConfig(learning_rate=1e-2, clip=0.5)


def batch_of(target: Target, rows: int, seed: int) -> Batch:
    """Rows of unequal answer lengths."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (rows, LENGTH), generator=generator)
    lengths = torch.tensor([LENGTH - 14 * row for row in range(rows)])
    places = torch.arange(LENGTH)
    starts = torch.tensor([[4 + 6 * row] for row in range(rows)])
    return make_batch(target, tokens, (places >= starts) & (places < lengths.unsqueeze(1)), lengths)


def part(batch: Batch, row: int) -> Batch:
    return Batch(*(value[row : row + 1] for value in batch))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_two_drafters_equal_one_with_twice_the_batch(kind: str) -> None:
    target = tiny_target(kind, torch.float64)
    batches = [batch_of(target, 2, seed) for seed in range(STEPS)]

    alone = tiny_drafter(target)
    step = training_step(target, alone, rows=2, length=LENGTH, anchors=12, optimizer=CONFIG)
    expected = []
    for batch in batches:
        step.forward_backward(batch)
        totals = step.update(1e-2)
        expected.append((totals.loss / totals.weight).item())

    exchange = ThreadExchange(2, lambda: False)
    pair = [tiny_drafter(target) for _ in range(2)]
    losses: list[list[float]] = [[], []]

    def work(rank: int) -> None:
        step = training_step(target, pair[rank], rows=1, length=LENGTH, anchors=12, optimizer=CONFIG)
        for batch in batches:
            step.forward_backward(part(batch, rank))
            exchange.reduce(rank, step.exchange_buffer)
            totals = step.update(1e-2)
            losses[rank].append((totals.loss / totals.weight).item())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert losses[0] == losses[1], "both drafters read the same sums"
    assert losses[0] == pytest.approx(expected, rel=1e-10)
    for first, second, single in zip(*(model.parameters() for model in (*pair, alone)), strict=True):
        assert torch.equal(first, second), "both drafters hold the same bits"
        torch.testing.assert_close(first, single, rtol=0, atol=1e-10)


def test_the_mean_of_ratios_would_be_seen() -> None:
    """Guards the test above: the rows' weights differ, so averaging two means is another number."""
    target = tiny_target("llama", torch.float64)
    batch = batch_of(target, 2, 0)
    sums = []
    for rows in (batch, part(batch, 0), part(batch, 1)):
        drafter = tiny_drafter(target)
        step = training_step(target, drafter, rows=len(rows.lengths), length=LENGTH, anchors=12)
        step.forward_backward(rows)
        totals = step.update(0.0)
        sums.append((totals.loss.item(), totals.weight.item()))
    both, one, two = sums
    assert both[0] == pytest.approx(one[0] + two[0], rel=1e-10)
    assert abs(both[0] / both[1] - (one[0] / one[1] + two[0] / two[1]) / 2) > 1e-4


def train(step: TrainingStep, batch: Batch, steps: int, rate: float) -> list[float]:
    losses = []
    for _ in range(steps):
        step.forward_backward(batch)
        totals = step.update(rate)
        losses.append((totals.loss / totals.weight).item())
    return losses


def test_the_loss_falls_and_does_not_without_a_learning_rate(target: Target) -> None:
    batch = batch_of(target, 2, 0)
    config = OptimizerConfig(learning_rate=3e-3)
    step = training_step(target, tiny_drafter(target), rows=2, length=LENGTH, anchors=24, optimizer=config)
    losses = train(step, batch, 40, 3e-3)
    assert losses[-1] < 0.5 * losses[0]
    step = training_step(target, tiny_drafter(target), rows=2, length=LENGTH, anchors=24, optimizer=config)
    assert train(step, batch, 3, 0.0) == [losses[0]] * 3


def test_warming_up_changes_neither_parameters_nor_the_first_step(target: Target) -> None:
    batch = batch_of(target, 1, 0)
    drafters = [tiny_drafter(target) for _ in range(2)]
    steps = [training_step(target, drafter, rows=1, length=LENGTH, anchors=8) for drafter in drafters]
    steps[0].warm(drafters[0].fc.in_features)
    assert train(steps[0], batch, 3, 1e-3) == train(steps[1], batch, 3, 1e-3)


def test_bfloat16_compute_keeps_float32_masters_that_take_steps_too_small_for_bfloat16() -> None:
    target = tiny_target("llama")
    drafter = tiny_drafter(target)
    parameters = FlatParameters(drafter, torch.bfloat16, OptimizerConfig(warmup_ratio=0.0))
    assert all(parameter.dtype == torch.bfloat16 for parameter in drafter.parameters())
    weight = drafter.norm.weight
    for _ in range(20):
        parameters.zero()
        weight.grad.copy_(torch.ones_like(weight))  # type: ignore[union-attr]
        parameters.gather(torch.tensor(0.0))
        parameters.step(1e-4, torch.tensor(1.0))
    master = parameters.state()["masters.norm.weight"]
    assert master.dtype == torch.float32
    # One step of 1e-4 from 1.0 is lost in bfloat16 (its spacing there is 2**-8); twenty add up to 2e-3.
    torch.testing.assert_close(master, torch.full_like(master, 1 - 20e-4), rtol=0, atol=1e-5)
    assert torch.equal(weight.detach(), master.bfloat16())


def test_clipping_bounds_the_gradient_by_its_norm() -> None:
    target = tiny_target("llama")
    drafter = tiny_drafter(target)
    parameters = FlatParameters(drafter, torch.float32, OptimizerConfig(clip=1.0))
    parameters.zero()
    for parameter in drafter.parameters():
        parameter.grad.fill_(2.0)  # type: ignore[union-attr]
    parameters.gather(torch.tensor(0.0))
    count = sum(parameter.numel() for parameter in drafter.parameters())
    norm = parameters.step(1e-3, torch.tensor(4.0))
    assert norm.item() == pytest.approx(0.5 * count**0.5, rel=1e-5)
    assert parameters.masters.grad is not None
    assert parameters.masters.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_the_learning_rate_warms_up_and_follows_a_cosine() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_ratio=0.1, final_ratio=0.1)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55, abs=1e-9)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run(value: float) -> None:
    check_finite(2.0, 1.0, 7)
    with pytest.raises(TrainerError, match="loss of step 7"):
        check_finite(value, 1.0, 7)
    with pytest.raises(TrainerError, match="gradient norm of step 7"):
        check_finite(2.0, value, 7)


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_with_a_gradient_that_is_no_number_is_left_out(compute: torch.dtype, value: float) -> None:
    found = []
    for bad in (False, True):
        drafter = tiny_drafter(tiny_target("llama"))
        parameters = FlatParameters(drafter, compute, OptimizerConfig())
        for broken in (False, True, False) if bad else (False, False):
            parameters.zero()
            drafter.fc.weight.grad.fill_(0.5)  # type: ignore[union-attr]
            if broken:
                drafter.norm.weight.grad[3] = value  # type: ignore[index]
            parameters.gather(torch.tensor(0.0))
            norm = parameters.step(1e-2, torch.tensor(1.0))
            assert bool(torch.isfinite(norm)) is not broken
        found.append(parameters.state())
    kept, expected = found[1], found[0]
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in kept), "as if the bad step had not been"


def test_masters_are_copied_in_full_whatever_the_compute_dtype() -> None:
    target = tiny_target("llama")
    first = FlatParameters(tiny_drafter(target, seed=1), torch.bfloat16, OptimizerConfig())
    drafter = tiny_drafter(target, seed=2)
    second = FlatParameters(drafter, torch.bfloat16, OptimizerConfig())
    second.copy_from(first)
    expected = first.state()
    assert all(torch.equal(value, expected[name]) for name, value in second.state().items())
    assert torch.equal(drafter.fc.weight.detach(), expected["masters.fc.weight"].bfloat16())


def test_all_drafters_agree_on_a_stop_between_steps() -> None:
    asked = iter([False, True])
    exchange = ThreadExchange(2, lambda: next(asked))
    found: list[list[bool]] = [[], []]

    def work(rank: int) -> None:
        found[rank].extend([exchange.agree(rank), exchange.agree(rank)])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert found == [[False, True], [False, True]]


def test_the_exchange_adds_in_rank_order_and_agrees_on_stopping() -> None:
    world, size = 3, 1001
    asked = iter([False, True])
    exchange = ThreadExchange(world, lambda: next(asked))
    values = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
    buffers = [value.clone() for value in values]
    stops: list[list[bool]] = [[] for _ in range(world)]

    def work(rank: int) -> None:
        for _ in range(2):
            stops[rank].append(exchange.reduce(rank, buffers[rank]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once = values[0] + values[1] + values[2]
    twice = once + once + once
    assert all(torch.equal(buffer, twice) for buffer in buffers)
    assert stops == [[False, True]] * world


def test_cancelling_the_exchange_wakes_who_waits() -> None:
    exchange = ThreadExchange(2, lambda: False)
    ended: list[str] = []

    def work() -> None:
        try:
            exchange.reduce(0, torch.zeros(4))
        except Cancelled:
            ended.append("cancelled")

    thread = threading.Thread(target=work)
    thread.start()
    exchange.cancel()
    thread.join(timeout=10)
    assert ended == ["cancelled"]

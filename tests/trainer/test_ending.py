"""How training ends in one process: stops around saves, late compiling, what is kept of batches and samples."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash import training as training_module
from dflash.checkpoint import latest_checkpoint
from dflash.config import load_config
from dflash.drafter import Drafter
from dflash.errors import TrainerError
from dflash.metrics import MetricsFile
from dflash.setup import DrafterUnit, Loaded, build_drafters, drafter_shape, load, ticket_plan
from dflash.step import Batch
from dflash.stopping import StopFlag
from dflash.training import Training
from dflash.workers import Channel, WorkerFailed

Make = Callable[..., Training]


@pytest.fixture
def make(tiny_recipe: Path, tmp_path: Path) -> Make:
    """A training of the tiny recipe, not started; its stop flag is `_stop`, its drafters are `_units`."""

    def build(*overrides: str) -> Training:
        config = load_config(tiny_recipe, ["evaluation.prompts=0", *overrides])
        loaded = load(config, lambda _: None)
        units = build_drafters(config, loaded)
        plan = ticket_plan(config, len(loaded.store))
        return Training(config, loaded, units, plan, tmp_path, MetricsFile(tmp_path / "metrics.jsonl"), StopFlag())

    return build


def saved_steps(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def test_a_stop_that_comes_during_a_long_save_waits_for_it_and_ends_at_that_step(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make("run.steps=1000000", "run.save_every=2", "run.log_every=1000")
    real = training._write

    def slow(step: int) -> Path:
        if step == 4:
            training._stop.signal = "SIGTERM"
            time.sleep(1.5)  # far longer than the grace below
        return real(step)

    monkeypatch.setattr(training, "_write", slow)
    monkeypatch.setattr(training_module, "_GRACE_STEP", 0.3)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"cut short with {code}"))
    checkpoint = training.execute()
    assert training.finished == 4
    assert checkpoint == tmp_path / "checkpoints/step-4"
    assert saved_steps(tmp_path) == ["step-2", "step-4"]


class Left(Exception):
    """In the place of os._exit."""


def test_a_first_step_that_never_ends_is_left_with_an_error_and_no_checkpoint(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = make("run.steps=10")
    free = training_module.time.monotonic() + 60
    left: list[int] = []
    real = training._units[0].step.update

    def stuck(rate: float) -> Any:
        training._stop.signal = "SIGTERM"
        while not left and time.monotonic() < free:
            time.sleep(0.01)
        return real(rate)

    def leave(code: int) -> None:
        left.append(code)
        raise Left

    monkeypatch.setattr(training._units[0].step, "update", stuck)
    monkeypatch.setattr(training_module, "_GRACE_STEP", 0.3)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        training.execute()
    assert left == [1], "the weights may be in the middle of the step"
    assert saved_steps(tmp_path) == []
    assert "not saved: no progress of drafter-0" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "failing_call", "expected"), [(6, 1, "step-6"), (1000000, 3, "step-12")])
def test_late_compiling_is_noticed_on_the_way_and_at_the_end_and_the_step_is_saved(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, failing_call: int, expected: str
) -> None:
    training = make(f"run.steps={steps}", "run.log_every=4" if steps > 6 else "run.log_every=1000")
    calls = 0

    def late() -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise TrainerError("A graph was compiled after the gate had opened.")

    monkeypatch.setattr(training._pipeline.gate, "check", late)
    with pytest.raises((TrainerError, WorkerFailed), match="A graph was compiled"):
        training.execute()
    assert saved_steps(tmp_path) == [expected]
    assert latest_checkpoint(tmp_path / "checkpoints") is not None


def test_a_batch_is_dropped_before_the_next_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make("run.steps=5", 'topology.drafters=["cpu"]')
    step = training._units[0].step
    trained: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    real_step, real_get = step.forward_backward, Channel.get

    def record(batch: Batch) -> None:
        real_step(batch)
        trained.append(weakref.ref(batch.features))

    def get(channel: Channel[Any]) -> Any:
        if len(trained) > 1:  # the first is the one that warms up
            alive.append(trained[-1]() is not None)
        return real_get(channel)

    monkeypatch.setattr(step, "forward_backward", record)
    monkeypatch.setattr(Channel, "get", get)
    training.execute()
    assert alive == [False] * 4


def test_drafters_start_equal_from_the_numbers_of_the_seed_and_linear_weights_are_drawn_once(
    tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(tiny_recipe, ["drafter.compute_dtype=bfloat16", "run.seed=11"])
    loaded = load(config, lambda _: None)
    expected = Drafter(drafter_shape(config, loaded.target), loaded.target.rotary())
    expected.initialise(11, config.drafter.initial_norm)
    drawn: list[int] = []
    real = Drafter.initialise
    monkeypatch.setattr(Drafter, "initialise", lambda *arguments: (drawn.append(1), real(*arguments))[1])
    before = torch.random.get_rng_state()
    units: list[DrafterUnit] = build_drafters(config, loaded)
    assert torch.equal(torch.random.get_rng_state(), before), "torch's own random start is left out"
    assert len(units) == 2
    assert len(drawn) == 1
    for unit in units:
        state = unit.parameters.state()
        for name, value in expected.named_parameters():
            assert torch.equal(state[f"masters.{name}"], value.detach()), name
        assert torch.equal(unit.drafter.rotary.inverse_frequencies, expected.rotary.inverse_frequencies)
        assert torch.equal(unit.drafter.fc.weight.detach(), expected.fc.weight.detach().bfloat16())


def test_only_the_prompts_of_the_evaluation_are_kept_beside_the_rows(tiny_recipe: Path) -> None:
    loaded = load(load_config(tiny_recipe, ["evaluation.prompts=1"]), lambda _: None)
    assert {name: len(prompts) for name, prompts in loaded.prompts.items()} == {"memorised": 1, "heldout": 1}
    assert len(loaded.store) == 4
    assert loaded.prompts["memorised"][0] == loaded.store.tokens[0, : len(loaded.prompts["memorised"][0])].tolist()


def test_loading_and_building_can_be_given_up_between_their_parts(tiny_recipe: Path) -> None:
    class Enough(Exception):
        pass

    def at(last: int) -> Callable[[], None]:
        calls = iter(range(last))

        def poll() -> None:
            if next(calls, None) is None:
                raise Enough

        return poll

    config = load_config(tiny_recipe, [])
    loaded: Loaded = load(config, lambda _: None, at(3))
    for allowed in range(3):
        with pytest.raises(Enough):
            load(config, lambda _: None, at(allowed))
    for allowed in range(2):
        with pytest.raises(Enough):
            build_drafters(config, loaded, at(allowed))
    assert len(build_drafters(config, loaded, at(2))) == 2

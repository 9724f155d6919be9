"""Whole runs, started as a user starts them: what they print, write and save, and how they end."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.checkpoint import latest_checkpoint, load_drafter
from dflash.config import load_config
from dflash.metrics import MetricsFile
from dflash.setup import build_drafters, load, ticket_plan
from dflash.step import Batch
from dflash.stopping import StopFlag
from dflash.target import Target
from dflash.training import Training
from dflash.workers import WorkerFailed
from tests.trainer.conftest import REPOSITORY, Start
from tests.trainer.tiny import tiny_target


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The line with `words`; fails when the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"ended without {words!r}: {process.stderr.read() if process.stderr else ''}")


def test_a_whole_run_prints_writes_and_saves_what_it_promises(tiny_recipe: Path, start: Start, tmp_path: Path) -> None:
    process = start("--config", str(tiny_recipe), CTDEPLOY_RUN_DIR=str(tmp_path / "run"))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    for name in ("drafter-0", "drafter-1"):
        assert output.count(f"{name}: step 1 done, loss ") == 1
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 4, 6]
    wanted = {"loss", "accuracy", "tokens_per_s", "lr", "queue_depth_batches", "step_seconds", "wait_seconds"}
    assert all(wanted <= line.keys() and math.isfinite(line["loss"]) for line in steps)
    evaluations = [(line["when"], line["set"]) for line in lines if line["kind"] == "evaluation"]
    assert evaluations == [(when, name) for when in ("before", "after") for name in ("memorised", "heldout")]

    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 6
    assert result["stopped"] is False
    assert result["lossless"] is True
    assert result["first_loss"] == steps[0]["loss"]
    assert result["last_loss"] == steps[-1]["loss"]
    assert result["memorised"].keys() == result["heldout"].keys() == {"tau_before", "tau_after", "prompts"}
    assert result["checkpoint"] == str(run / "checkpoints/step-6")
    drafter, config = load_drafter(run / "checkpoints/step-6", tiny_target("llama").rotary(), torch.float32)
    assert config["block_size"] == drafter.shape.block_size == 4
    assert json.loads((run / "config.json").read_text())["run"]["steps"] == 6
    progress = json.loads((run / "checkpoints/step-6/training/progress.json").read_text())
    assert (progress["step"], progress["samples_consumed"]) == (6, 12)


def test_a_run_on_the_targets_own_answers_raises_acceptance_and_loses_nothing(
    tiny_recipe: Path, start: Start, tmp_path: Path
) -> None:
    model = tiny_recipe.parent / "target"
    command = [sys.executable, "-m", "dflash.regenerate", str(tiny_recipe.parent / "train.jsonl"), "own.jsonl"]
    options = ["--target", str(model), "--max-new-tokens", "24", "--keep-loops", "--keep-unfinished"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")}
    subprocess.run([*command, *options], cwd=tmp_path, env=environment, check=True, timeout=120)
    process = start(
        "--config", str(tiny_recipe), "--run-dir", "run", "data.train=own.jsonl", "data.heldout=", "run.steps=80",
        "anchors.per_sequence=32", "optimizer.learning_rate=2e-3", "drafter.initializer_range=0.1", "run.rows=2",
        "drafter.layers=2", "evaluation.max_new_tokens=24",
    )  # fmt: skip
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["memorised"]["tau_before"] < 1.3
    assert result["memorised"]["tau_after"] > 3.0, "of at most 4"
    assert result["lossless"] is True


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_one_drafter_with_two_rows_and_two_targets_train_on_the_same_numbers(
    tiny_recipe: Path, start: Start, tmp_path: Path
) -> None:
    common = ("--config", str(tiny_recipe), "evaluation.prompts=0", "run.log_every=1")
    layouts = {
        "pair": (),
        "again": (),
        "two-targets": ('topology.targets=["cpu","cpu"]', "topology.queue_batches=1"),
        "single": ('topology.drafters=["cpu"]', "run.rows=2"),
    }
    for name, overrides in layouts.items():
        process = start(*common, "--run-dir", name, *overrides)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    found = {name: losses(tmp_path / name) for name in layouts}
    assert found["pair"] == found["again"] == found["two-targets"], "timing decides nothing, not even a last digit"
    assert found["single"] == pytest.approx(found["pair"], rel=1e-4)


def test_every_drafter_trains_on_the_samples_of_its_tickets_with_their_own_hidden_states(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    config = load_config(
        tiny_recipe,
        ["evaluation.prompts=0", "run.steps=9", 'topology.targets=["cpu","cpu","cpu"]', "topology.queue_batches=1"],
    )
    loaded = load(config, lambda _: None)
    units = build_drafters(config, loaded)
    plan = ticket_plan(config, len(loaded.store))
    seen: dict[str, list[Batch]] = {unit.name: [] for unit in units}
    for unit in units:
        real = unit.step.forward_backward

        def record(batch: Batch, name: str = unit.name, real: Callable[[Batch], None] = real) -> None:
            seen[name].append(batch)
            real(batch)

        unit.step.forward_backward = record  # type: ignore[method-assign]
    Training(config, loaded, units, plan, tmp_path, MetricsFile(tmp_path / "metrics.jsonl"), StopFlag()).execute()
    for rank, unit in enumerate(units):
        _warm, *batches = seen[unit.name]
        assert len(batches) == 9
        for step, batch in enumerate(batches):
            epochs, samples = plan.batch(step, rank)
            tokens, mask, lengths = loaded.store.rows(samples)
            with torch.no_grad():
                features = loaded.target.features(tokens)
            for ours, expected in zip(batch, (tokens, mask, lengths, epochs, samples, features), strict=True):
                assert torch.equal(ours, expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_whole_checkpoint_and_exits_0(
    tiny_recipe: Path, start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--config", str(tiny_recipe), "--run-dir", "run", "run.steps=1000000", "evaluation.prompts=0")
    read_until(process, "drafter-1: step 1 done")
    began = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 0, errors
    assert errors == ""
    assert f"stopped by {number.name} after step" in output
    result = json.loads((tmp_path / "run/result.json").read_text())
    saved = latest_checkpoint(tmp_path / "run/checkpoints")
    assert saved is not None
    assert saved.name == f"step-{result['steps']}"
    assert result["stopped"] is True
    load_drafter(saved, tiny_target("llama").rotary(), torch.float32)


def test_a_signal_before_torch_is_imported_exits_0(tiny_recipe: Path, start: Start, tmp_path: Path) -> None:
    process = start("--config", str(tiny_recipe), "--run-dir", "run")
    system = Path(f"/proc/{process.pid}")
    deadline = time.monotonic() + 30
    while not catches(system, signal.SIGTERM):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert "libtorch" not in (system / "maps").read_text(), "the flag must stand before the heavy imports"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output == "stopped by SIGTERM before training; nothing to save\n"
    assert not (tmp_path / "run").exists()


def catches(system: Path, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for a signal."""
    caught = re.search(r"SigCgt:\t(\w+)", (system / "status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_a_signal_while_compiling_exits_0_with_a_checkpoint(tiny_recipe: Path, start: Start, tmp_path: Path) -> None:
    process = start(
        "--config", str(tiny_recipe), "--run-dir", "run", "evaluation.prompts=0", "compile.enabled=true",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "empty-cache"),
    )  # fmt: skip
    read_until(process, "drafter-0 on cpu: compiling forward (cudagraphs=False)")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 0, errors
    assert "stopped by SIGTERM" in output
    assert latest_checkpoint(tmp_path / "run/checkpoints") == tmp_path / "run/checkpoints/step-0"


def test_a_signal_during_evaluation_exits_0(tiny_recipe: Path, start: Start) -> None:
    process = start("--config", str(tiny_recipe), "--run-dir", "run", "evaluation.max_new_tokens=100000")
    read_until(process, "samples to train on")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "stopped by SIGTERM before training" in output


@pytest.mark.parametrize("worker", ["target-0", "drafter-1"])
def test_an_exception_in_a_worker_stops_all_within_seconds(
    tiny_recipe: Path, tmp_path: Path, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(tiny_recipe, ["evaluation.prompts=0", "run.steps=1000000"])
    loaded = load(config, lambda _: None)
    units = build_drafters(config, loaded)
    plan = ticket_plan(config, len(loaded.store))
    calls = 0

    def breaks(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("a cosmic ray")

    real_features, real_update = Target.features, units[1].step.update
    if worker == "target-0":
        monkeypatch.setattr(Target, "features", lambda *args: (breaks(), real_features(*args))[1])
    else:
        monkeypatch.setattr(units[1].step, "update", lambda rate: (breaks(), real_update(rate))[1])
    training = Training(config, loaded, units, plan, tmp_path, MetricsFile(tmp_path / "metrics.jsonl"), StopFlag())
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match=f"{worker} failed: RuntimeError: a cosmic ray"):
        training.execute()
    while training._pipeline.crew.alive():
        assert time.monotonic() - began < 20, f"still running: {training._pipeline.crew.alive()}"
        time.sleep(0.01)


BROKEN = """
import sys
from dflash import app, target
def features(self, tokens):
    raise RuntimeError("no hidden states today")
target.Target.features = features
sys.exit(app.main(sys.argv[1:]))
"""


def test_a_failed_worker_prints_one_traceback_and_its_name_and_exits_1(tiny_recipe: Path, tmp_path: Path) -> None:
    arguments = ["--config", str(tiny_recipe), "--run-dir", str(tmp_path / "run"), "evaluation.prompts=0"]
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "error: target-0 failed: RuntimeError: no hidden states today" in done.stderr


def test_a_user_error_is_one_sentence_and_the_next_step(tiny_recipe: Path, start: Start) -> None:
    process = start("--config", str(tiny_recipe), "compile.mode=reduce-overhead")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[0].startswith("error: compile.mode 'reduce-overhead' is refused: drafters are threads")
    assert errors.splitlines()[1] == 'next: set compile.mode = "default"'


@pytest.mark.parametrize("options", [("run.log_every=1",), ("run.log_every=1000", "run.save_every=2")])
def test_a_loss_that_is_no_number_ends_the_run_without_a_traceback_and_is_not_saved(
    tiny_recipe: Path, start: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    process = start(
        "--config", str(tiny_recipe), "--run-dir", "run", "evaluation.prompts=0", "run.steps=50",
        "optimizer.learning_rate=1e30", *options,
    )  # fmt: skip
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"drafter-0 failed: TrainerError: The (loss|gradient norm) of step", errors)
    assert "Traceback" not in errors
    for saved in (tmp_path / "run/checkpoints").glob("step-*"):
        for file in saved.rglob("*.safetensors"):
            assert all(bool(torch.isfinite(value).all()) for value in load_file(str(file)).values()), file


def test_the_folder_of_another_run_is_refused(tiny_recipe: Path, start: Start, tmp_path: Path) -> None:
    common = ("--config", str(tiny_recipe), "--run-dir", "run", "evaluation.prompts=0")
    process = start(*common, "run.steps=2")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    process = start(*common, "run.steps=3")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[0] == "error: The run folder run holds another run (checkpoints/step-2)."
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path / "run/checkpoints")
    _, errors = start(*common).communicate(timeout=60)
    assert "holds another run (metrics.jsonl)" in errors


def test_a_run_folder_that_cannot_be_made_is_one_sentence(tiny_recipe: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = start("--config", str(tiny_recipe), "--run-dir", "file/run")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[0] == "error: The run folder file/run cannot be used: Not a directory."

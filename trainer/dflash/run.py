"""One run from its configuration to its result: load, evaluate, train, evaluate, save."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dflash.checkpoint import latest_checkpoint
from dflash.config import Config
from dflash.errors import TrainerError
from dflash.evaluate import Evaluation, Evaluator
from dflash.metrics import MetricsFile, duration, say
from dflash.setup import DrafterUnit, Loaded, build_drafters, load, ticket_plan
from dflash.stopping import StopFlag, Stopped
from dflash.topology import usable_cores
from dflash.training import Training


class Run:
    """One training run in one folder."""

    def __init__(self, config: Config, folder: Path, stop: StopFlag) -> None:
        self._config = config
        self._folder = folder
        self._stop = stop
        self._began = time.monotonic()
        self._losses: dict[str, float] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_used(folder)
            (folder / "config.json").write_text(json.dumps(config.resolved(), indent=2) + "\n", encoding="utf-8")
            self._metrics = MetricsFile(folder / "metrics.jsonl")
        except OSError as error:
            raise TrainerError(
                f"The run folder {folder} cannot be used: {error.strerror}.", next="name another one with --run-dir"
            ) from error

    def execute(self) -> None:
        """Runs everything; raises TrainerError, WorkerFailed, or Stopped when stopped before training."""
        config = self._config
        torch.set_num_threads(usable_cores())
        loaded = load(config, say, self._stop.check)
        units = build_drafters(config, loaded, self._stop.check)
        evaluators = self._evaluators(loaded)
        before = self._evaluate("before", evaluators, units[0])
        plan = ticket_plan(config, len(loaded.store))
        trainer = Training(config, loaded, units, plan, self._folder, self._metrics, self._stop)
        checkpoint = trainer.execute()
        if self._stop.requested():
            say(f"stopped by {self._stop.signal} after step {trainer.finished}; checkpoint: {checkpoint}")
            self._result(trainer, checkpoint, stopped=True)
            return
        torch.set_num_threads(usable_cores())
        try:
            after = self._evaluate("after", evaluators, units[0])
        except Stopped:
            say(f"stopped by {self._stop.signal} in the last evaluation; checkpoint: {checkpoint}")
            self._result(trainer, checkpoint, stopped=True)
            return
        self._result(trainer, checkpoint, stopped=False, before=before, after=after)

    def _evaluators(self, loaded: Loaded) -> dict[str, Evaluator]:
        return {
            name: Evaluator(
                loaded.target,
                prompts,
                self._config.evaluation.max_new_tokens,
                loaded.stops,
                loaded.mask_token,
                self._stop.check,
            )
            for name, prompts in loaded.prompts.items()
            if prompts
        }

    def _evaluate(self, when: str, evaluators: dict[str, Evaluator], unit: DrafterUnit) -> dict[str, Evaluation]:
        found: dict[str, Evaluation] = {}
        for name, evaluator in evaluators.items():
            began = time.monotonic()

            def progress(done: int, count: int, name: str = name, began: float = began) -> None:
                left = (time.monotonic() - began) / done * (count - done)
                if done == count or done % 4 == 0:
                    say(f"evaluating {when} training, {name}: {done} of {count} prompts, {duration(left)} left")

            result = evaluator(unit.drafter, progress)
            seconds = time.monotonic() - began
            self._metrics.write("evaluation", when=when, set=name, seconds=round(seconds, 3), **asdict(result))
            same = "every answer equal to plain decoding" if result.lossless else f"DIFFERS: {result.differing}"
            say(f"evaluated {when} training, {name}: acceptance length {result.tau:.2f}, {same}")
            found[name] = result
        return found

    def _result(
        self,
        trainer: Training,
        checkpoint: Path,
        *,
        stopped: bool,
        before: dict[str, Evaluation] | None = None,
        after: dict[str, Evaluation] | None = None,
    ) -> None:
        result: dict[str, Any] = {
            "steps": trainer.finished,
            "stopped": stopped,
            "first_loss": trainer.first_loss,
            "last_loss": trainer.last_loss,
            "checkpoint": str(checkpoint),
        }
        for name in after or {}:
            assert before is not None
            assert after is not None
            result[name] = {
                "tau_before": round(before[name].tau, 4),
                "tau_after": round(after[name].tau, 4),
                "prompts": after[name].prompts,
            }
        if after:
            assert before is not None
            result["lossless"] = all(found.lossless for found in (*before.values(), *after.values()))
        result["seconds"] = round(time.monotonic() - self._began, 1)
        text = json.dumps(result, indent=2) + "\n"
        (self._folder / "result.json").write_text(text, encoding="utf-8")
        if not stopped:
            say(_summary(result))


def _refuse_used(folder: Path) -> None:
    """TrainerError for the folder of another run: its numbers and checkpoints must not be mixed with new ones."""
    checkpoint = latest_checkpoint(folder / "checkpoints")
    metrics = folder / "metrics.jsonl"
    found = checkpoint or (metrics if metrics.exists() else None)
    if found is not None:
        raise TrainerError(
            f"The run folder {folder} holds another run ({found.relative_to(folder)}).",
            next="name another one with --run-dir",
        )


def _summary(result: dict[str, Any]) -> str:
    lines = [
        f"done: {result['steps']} steps in {duration(result['seconds'])}, "
        f"loss {result['first_loss']:.3f} -> {result['last_loss']:.3f}"
    ]
    for name in ("memorised", "heldout"):
        if name in result:
            found = result[name]
            lines.append(
                f"  acceptance length on {found['prompts']} {name} prompts: "
                f"{found['tau_before']:.2f} -> {found['tau_after']:.2f}"
            )
    if "lossless" in result:
        lines.append(f"  speculative decoding equals plain decoding: {'yes' if result['lossless'] else 'NO'}")
    lines.append(f"  checkpoint: {result['checkpoint']}")
    return "\n".join(lines)

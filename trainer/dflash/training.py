"""The threaded part of a run: starts the pipeline, tells how it goes, saves."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash.checkpoint import published_config, save_checkpoint
from dflash.config import Config
from dflash.errors import TrainerError
from dflash.flat import check_finite
from dflash.metrics import MetricsFile, duration, say
from dflash.pipeline import Pipeline, StepReport
from dflash.setup import DrafterUnit, Loaded, drafter_shape
from dflash.stopping import StopFlag
from dflash.target import torch_dtype
from dflash.tickets import TicketPlan
from dflash.topology import threads_per_worker

_GRACE_COMPILING = 5.0
"""Seconds that a stop waits for a thread that compiles; there is nothing to lose, and a compiler cannot be asked."""
_GRACE_STEP = 60.0
"""Seconds without progress (a finished step, a finished save) after which a stop no longer waits for the step to end.
A save that is under way is always waited for."""


class Training:
    """Trains the drafters of a run; `execute` returns when all steps are done or a stop was asked for."""

    def __init__(
        self,
        config: Config,
        loaded: Loaded,
        units: list[DrafterUnit],
        plan: TicketPlan,
        folder: Path,
        metrics: MetricsFile,
        stop: StopFlag,
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._units = units
        self._plan = plan
        self._folder = folder
        self._metrics = metrics
        self._stop = stop
        self._pipeline = Pipeline(config, loaded, units, plan, self._after_step, stop.requested, say)
        self._window = (0, 0.0)
        self._last: StepReport | None = None
        self._saved: dict[int, Path] = {}
        self._saving = False
        self._progress = 0.0
        self.first_loss: float | None = None
        self.last_loss: float | None = None

    @property
    def finished(self) -> int:
        """Optimizer steps done."""
        return self._pipeline.finished

    def execute(self) -> Path:
        """Trains to the end or to a stop, and returns the checkpoint's folder."""
        config = self._config
        workers = len(config.topology.targets) + len(config.topology.drafters)
        cores = threads_per_worker(config.topology)
        say(f"training: {config.run.steps} steps, {workers} threads with {cores} core(s) each")
        if config.compile.enabled:
            say("compiling first, one drafter after another: about 30 s on two cores, some seconds with a kept cache")
        opened = False
        self._pipeline.start()
        try:
            asked: float | None = None
            while not self._pipeline.crew.wait(0.1):
                if not opened and self._pipeline.gate.open:
                    opened = True
                    say("all drafters are warm; training starts")
                if self._stop.requested():
                    asked = asked or time.monotonic()
                    compiling = self._pipeline.gate.shut()
                    if compiling:
                        self._pipeline.crew.cancel()
                    grace = _GRACE_COMPILING if compiling else _GRACE_STEP
                    if not self._saving and time.monotonic() - max(asked, self._progress) > grace:
                        self._leave_busy_threads(compiling)
            checkpoint = self._save(self.finished)
            self._pipeline.gate.check()
        except BaseException:
            self._pipeline.crew.cancel()
            raise
        finally:
            self._pipeline.gate.release()
        return checkpoint

    def _leave_busy_threads(self, compiling: bool) -> None:
        """Ends the process beside threads that cannot be interrupted: while they compile with all that there is to
        save, later with an error, since the weights may be in the middle of a step."""
        busy = ", ".join(self._pipeline.crew.alive())
        if compiling:
            checkpoint = self._save(0)
            say(f"stopped by {self._stop.signal} before the first step ({busy} busy); checkpoint: {checkpoint}")
        else:
            say(f"stopped by {self._stop.signal}, not saved: no progress of {busy} within {_GRACE_STEP:.0f} s")
        sys.stdout.flush()
        os._exit(0 if compiling else 1)

    def _after_step(self, unit: DrafterUnit, report: StepReport) -> None:
        run = self._config.run
        first, last = report.step == 1, report.step == run.steps
        if first:
            loss = _Figures.read(report).mean
            say(f"{unit.name}: step 1 done, loss {loss:.3f}")
        if unit is not self._units[0]:
            return
        self._last = report
        self._progress = time.monotonic()
        if run.saves_after(report.step):
            say(f"step {report.step}: saved {self._save(report.step)}")
        logged = report.step % run.log_every == 0
        if first or last or logged or self._stop.requested():
            self._log(report)
        if logged:
            self._check_gate(report.step)

    def _check_gate(self, step: int) -> None:
        """Raises TrainerError when something was compiled late; the step, which is a good one, is saved before."""
        try:
            self._pipeline.gate.check()
        except TrainerError:
            say(f"step {step}: saved {self._save(step)}")
            raise

    def _log(self, report: StepReport) -> None:
        """Reads the step's sums from the device (here and before a save the host waits for it) and tells them."""
        figures = _Figures.read(report)
        mean, correct, slots, norm = figures.mean, figures.correct, figures.slots, figures.gradient_norm
        self.first_loss = mean if self.first_loss is None else self.first_loss
        self.last_loss = mean
        now = time.monotonic()
        since_step, since_time = self._window
        self._window = (report.step, now)
        steps = report.step - since_step
        seconds = (now - since_time) / steps if since_step else None
        tokens = sum(self._real_tokens(step) for step in range(since_step, report.step))
        self._metrics.write(
            "train",
            step=report.step,
            loss=mean,
            accuracy=correct / slots if slots else 0.0,
            gradient_norm=norm,
            lr=report.rate,
            tokens_per_s=round(tokens / (now - since_time), 1) if since_step else None,
            step_seconds=round(seconds, 4) if seconds else None,
            wait_seconds=round(report.waited_seconds, 4),
            queue_depth_batches=list(report.depths),
        )
        if seconds:
            left = duration(seconds * (self._config.run.steps - report.step))
            say(
                f"step {report.step}/{self._config.run.steps}: loss {mean:.3f}, "
                f"accuracy {correct / max(slots, 1):.2f}, {tokens / (now - since_time):.0f} tokens/s, "
                f"{seconds:.2f} s/step, {left} left"
            )

    def _real_tokens(self, step: int) -> int:
        batches = [self._plan.batch(step, drafter)[1] for drafter in range(self._plan.drafters)]
        return int(self._loaded.store.lengths[torch.cat(batches)].sum())

    def _save(self, step: int) -> Path:
        """Saves the step unless this run has saved it; raises TrainerError when its figures are not finite."""
        if step not in self._saved:
            if self._last is not None:
                _Figures.read(self._last)
            self._saving = True
            try:
                self._saved[step] = self._write(step)
            finally:
                self._progress = time.monotonic()
                self._saving = False
        return self._saved[step]

    def _write(self, step: int) -> Path:
        config, unit, target = self._config, self._units[0], self._loaded.target
        dtype = torch_dtype(config.run.checkpoint_dtype)
        published = published_config(
            drafter_shape(config, target),
            target.config,
            num_target_layers=target.num_layers,
            layer_ids=target.layer_ids,
            mask_token=self._loaded.mask_token,
            dtype=dtype,
        )
        progress = {
            "step": step,
            "samples_consumed": step * self._plan.per_step,
            "seed": config.run.seed,
            "steps_planned": config.run.steps,
            "config": config.resolved(),
        }
        state = unit.parameters.state()
        return save_checkpoint(self._folder / "checkpoints", step, published, dtype, state, progress)


@dataclass(frozen=True)
class _Figures:
    """A step's sums as numbers of the host, all finite."""

    mean: float
    correct: float
    slots: float
    gradient_norm: float

    @classmethod
    def read(cls, report: StepReport) -> _Figures:
        """Waits for the device; raises TrainerError when loss or gradient are not finite."""
        loss, weight, correct, slots, norm = torch.stack([value.double() for value in report.totals]).tolist()
        mean = loss / weight if weight else 0.0
        check_finite(mean, norm, report.step)
        return cls(mean, correct, slots, norm)

"""The threaded part of a run: starts the pipeline, tells how it goes, saves."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from dflash.checkpoint import published_config, save_checkpoint
from dflash.config import Config
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
"""Seconds that a stop waits for the step to end, so that it can be saved."""


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
            deadline: float | None = None
            while not self._pipeline.crew.wait(0.1):
                if not opened and self._pipeline.gate.open:
                    opened = True
                    say("all drafters are warm; training starts")
                if self._stop.requested():
                    training = self._pipeline.gate.open
                    deadline = deadline or time.monotonic() + (_GRACE_STEP if training else _GRACE_COMPILING)
                    if not training:
                        self._pipeline.crew.cancel()
                    if time.monotonic() > deadline:
                        self._leave_busy_threads()
            self._pipeline.gate.check()
        except BaseException:
            self._pipeline.crew.cancel()
            raise
        finally:
            self._pipeline.gate.release()
        return self._save(self.finished)

    def _leave_busy_threads(self) -> None:
        """Ends the process beside threads that cannot be interrupted: before the first step with all that there is to
        save, later with an error, since the weights are in the middle of a step."""
        busy = ", ".join(self._pipeline.crew.alive())
        if self.finished == 0:
            checkpoint = self._save(0)
            say(f"stopped by {self._stop.signal} before the first step ({busy} busy); checkpoint: {checkpoint}")
        else:
            say(f"stopped by {self._stop.signal}, not saved: {busy} did not end within {_GRACE_STEP:.0f} s")
        sys.stdout.flush()
        os._exit(0 if self.finished == 0 else 1)

    def _after_step(self, unit: DrafterUnit, report: StepReport) -> None:
        run = self._config.run
        first, last = report.step == 1, report.step == run.steps
        if first:
            loss = float(report.totals.loss / report.totals.weight)
            check_finite(loss, report.step)
            say(f"{unit.name}: step 1 done, loss {loss:.3f}")
        if unit is not self._units[0]:
            return
        if first or last or report.step % run.log_every == 0 or self._stop.requested():
            self._log(report)
        if run.save_every and report.step % run.save_every == 0 and not last:
            say(f"step {report.step}: saved {self._save(report.step)}")

    def _log(self, report: StepReport) -> None:
        """Reads the step's sums from the device (the only place that waits for it) and tells them."""
        loss, weight, correct, slots, norm = torch.stack([value.double() for value in report.totals]).tolist()
        mean = loss / weight if weight else 0.0
        check_finite(mean, report.step)
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
        weights, state = unit.parameters.masters_by_name(), unit.parameters.state()
        return save_checkpoint(self._folder / "checkpoints", step, weights, published, dtype, state, progress)

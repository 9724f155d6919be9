"""The threads of a run: targets hand hidden states over bounded channels to drafters, which train in step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dflash.compile import Gate, compile_forward
from dflash.config import Config
from dflash.data import RowStore
from dflash.exchange import Exchange, make_exchange
from dflash.flat import learning_rate
from dflash.setup import DrafterUnit, Loaded
from dflash.step import Batch, Totals
from dflash.target import Target, torch_dtype
from dflash.tickets import TicketPlan
from dflash.topology import parse_device, threads_per_worker, worker_thread
from dflash.workers import Channel, Crew


@dataclass(frozen=True)
class Handed:
    """A batch on its way: tensors on the target's device, and the event after which its features are there."""

    batch: Batch
    ready: torch.cuda.Event | None


@dataclass(frozen=True)
class StepReport:
    """What a drafter tells after a finished step (`step` counts from 1)."""

    step: int
    totals: Totals
    rate: float
    waited_seconds: float
    """Time that this drafter waited for its batch."""
    depths: tuple[int, ...]
    """Batches that waited for this drafter when it asked, per target."""


Reporter = Callable[[DrafterUnit, StepReport], None]


class Pipeline:
    """Runs the steps of a configuration on threads. `run` returns the number of finished steps.

    `report` is called by every drafter after each step, in that drafter's thread; `stop` is asked once per step.
    """

    def __init__(
        self,
        config: Config,
        loaded: Loaded,
        units: list[DrafterUnit],
        plan: TicketPlan,
        report: Reporter,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._units = units
        self._plan = plan
        self._report = report
        self._say = say
        self._steps = config.run.steps
        self.finished = 0
        self.gate = Gate(len(units), compiling=config.compile.enabled)
        self._exchange: Exchange = make_exchange(len(units), stop)
        self._channels = [
            [Channel[Handed](config.topology.queue_batches) for _ in units] for _ in config.topology.targets
        ]
        channels = [channel.cancel for row in self._channels for channel in row]
        self.crew = Crew([self.gate.cancel, self._exchange.cancel, *channels])

    def start(self) -> None:
        """Starts all threads; they warm up one after another and then train."""
        threads = threads_per_worker(self._config.topology)
        for unit in self._units:
            if unit.device.type == "cuda":
                # Everything so far was queued on the default stream, which the workers' own streams do not wait for.
                torch.cuda.synchronize(unit.device)
        for index, name in enumerate(self._config.topology.targets):
            device = parse_device(name)
            worker = _TargetWorker(
                index, device, self._loaded.targets[device], self._plan, self._loaded.store, self._steps, threads
            )
            work = _bind(worker.run, self.gate, self._channels[index], torch_dtype(self._config.drafter.compute_dtype))
            self.crew.start(f"target-{index}", work)
        for rank, unit in enumerate(self._units):
            self.crew.start(unit.name, _bind(self._train, rank, unit, threads))

    def _train(self, rank: int, unit: DrafterUnit, threads: int) -> None:
        with worker_thread(unit.device, threads, gradients=True):
            self.gate.warm(rank, lambda: self._warm(unit))
            mine = [row[rank] for row in self._channels]
            for step in range(self._steps):
                depths = tuple(channel.depth() for channel in mine)
                asked = time.monotonic()
                batch = receive(mine[self._plan.target_of(step, rank)].get(), unit.device)
                waited = time.monotonic() - asked
                unit.step.forward_backward(batch)
                # Before the next wait: a row of hidden states is large, and the queue holds others already.
                del batch
                stopping = self._exchange.reduce(rank, unit.step.exchange_buffer)
                rate = learning_rate(self._config.optimizer, step, self._steps)
                totals = unit.step.update(rate)
                if rank == 0:
                    self.finished = step + 1
                self._report(unit, StepReport(step + 1, totals, rate, waited, depths))
                if self._config.run.saves_after(step + 1):
                    # Asked again behind the save, which may be long: a stop that came meanwhile needs no other step.
                    stopping = self._exchange.agree(rank)
                if stopping:
                    # Everybody got this step's batch before the exchange, so nobody needs the channels any more.
                    for channel in mine:
                        channel.cancel()
                    return

    def _warm(self, unit: DrafterUnit) -> None:
        unit.step.use(compile_forward(unit.drafter, unit.name, unit.device, self._config.compile, self._say))
        began = time.monotonic()
        unit.step.warm(unit.drafter.fc.in_features)
        self._say(f"{unit.name}: warm after {time.monotonic() - began:.1f} s")


class _TargetWorker:
    def __init__(
        self,
        index: int,
        device: torch.device,
        target: Target,
        plan: TicketPlan,
        store: RowStore,
        steps: int,
        threads: int,
    ) -> None:
        self._index = index
        self._device = device
        self._target = target
        self._plan = plan
        self._store = store
        self._steps = steps
        self._threads = threads

    def run(self, gate: Gate, channels: list[Channel[Handed]], dtype: torch.dtype) -> None:
        """Makes this target's batches in ticket order. No grad, but not inference mode: fc needs its input again."""
        with worker_thread(self._device, self._threads, gradients=False):
            gate.wait_open()
            for step, drafter in self._plan.made_by(self._index, 0, self._steps):
                channels[drafter].put(self._make(step, drafter, dtype))

    def _make(self, step: int, drafter: int, dtype: torch.dtype) -> Handed:
        epochs, samples = self._plan.batch(step, drafter)
        tokens, mask, lengths = (part.to(self._device) for part in self._store.rows(samples))
        features = self._target.features(tokens).to(dtype)
        batch = Batch(tokens, mask, lengths, epochs.to(self._device), samples.to(self._device), features)
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        return Handed(batch, ready)


def receive(handed: Handed, device: torch.device) -> Batch:
    """The batch on the drafter's device, safe to use on its current stream."""
    if handed.ready is None:
        return Batch(*(part.to(device) for part in handed.batch))
    source = handed.batch.features.device
    # A copy between two devices is queued on the source's stream, so that is the one that has to wait.
    stream = torch.cuda.current_stream(source)
    stream.wait_event(handed.ready)
    for part in handed.batch:
        part.record_stream(stream)
    # Copies to the CPU must be waited for: nothing would tell when the data is there.
    return Batch(*(part.to(device, non_blocking=device.type == "cuda") for part in handed.batch))


def _bind(work: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: work(*arguments)

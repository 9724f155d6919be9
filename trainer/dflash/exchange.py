"""Adding up the drafters' gradients: one interface, so that other ways (processes, NCCL) can take its place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from dflash.workers import Cancelled


class Exchange(Protocol):
    """What a drafter needs of the others once per step."""

    def reduce(self, rank: int, buffer: Tensor) -> bool:
        """Replaces each drafter's buffer by the sum of all, the same bits everywhere.

        Returns whether all shall stop after this step; all get the same answer. Raises Cancelled when another failed.
        """
        ...

    def agree(self, rank: int) -> bool:
        """Waits for all and returns whether all shall stop now; all get the same answer. Raises Cancelled."""
        ...

    def cancel(self) -> None:
        """Wakes everybody who waits; they raise Cancelled."""
        ...


class SingleExchange:
    """One drafter: nothing to add."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop

    def reduce(self, rank: int, buffer: Tensor) -> bool:  # noqa: ARG002
        return self._stop()

    def agree(self, rank: int) -> bool:  # noqa: ARG002
        return self._stop()

    def cancel(self) -> None:
        return None


class ThreadExchange:
    """Drafters that are threads of one process: a barrier, then each adds its slice of all buffers in rank order.

    The order of additions is fixed, so the sum does not depend on who arrives first. On CUDA the waiting is done by
    events on the drafters' streams; the host only meets at the barrier.
    """

    def __init__(self, world: int, stop: Callable[[], bool]) -> None:
        self._world = world
        self._stop = stop
        self._stopping = False
        # The barrier's action runs in one thread while all others wait, so all read the same answer.
        self._arrive = threading.Barrier(world, action=self._decide)
        self._leave = threading.Barrier(world)
        self._buffers: list[Tensor | None] = [None] * world
        self._ready: list[torch.cuda.Event | None] = [None] * world
        self._done: list[torch.cuda.Event | None] = [None] * world

    def _decide(self) -> None:
        self._stopping = self._stop()

    def reduce(self, rank: int, buffer: Tensor) -> bool:
        self._buffers[rank] = buffer
        self._ready[rank] = _record(buffer.device)
        self._wait(self._arrive)
        _wait_events(self._ready, buffer.device)
        buffers = [other for other in self._buffers if other is not None]
        assert len(buffers) == self._world
        mine = _slice(buffer.numel(), rank, self._world)
        total = buffers[0][mine].to(buffer.device, copy=True)
        for other in buffers[1:]:
            total += other[mine].to(buffer.device)
        for other in buffers:
            other[mine].copy_(total)
        self._done[rank] = _record(buffer.device)
        self._wait(self._leave)
        _wait_events(self._done, buffer.device)
        return self._stopping

    def agree(self, rank: int) -> bool:  # noqa: ARG002
        self._wait(self._arrive)
        # Nobody can decide anew before this thread has arrived again.
        return self._stopping

    def cancel(self) -> None:
        self._arrive.abort()
        self._leave.abort()

    @staticmethod
    def _wait(barrier: threading.Barrier) -> None:
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            raise Cancelled from None


def make_exchange(world: int, stop: Callable[[], bool]) -> Exchange:
    """The exchange for `world` drafters of this process; `stop` is asked once per step."""
    return SingleExchange(stop) if world == 1 else ThreadExchange(world, stop)


def _slice(size: int, rank: int, world: int) -> slice:
    share = -(-size // world)
    return slice(min(rank * share, size), min((rank + 1) * share, size))


def _record(device: torch.device) -> torch.cuda.Event | None:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _wait_events(events: list[torch.cuda.Event | None], device: torch.device) -> None:
    for event in events:
        if event is not None:
            torch.cuda.current_stream(device).wait_event(event)

"""Worker threads that fail together, and the bounded channels between them."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """Another worker failed or the run is over; a worker that sees it just ends."""


class WorkerFailed(Exception):
    """A worker raised; carries its name, its exception and the formatted traceback."""

    def __init__(self, worker: str, error: BaseException, trace: str) -> None:
        super().__init__(f"{worker} failed: {type(error).__name__}: {error}")
        self.worker = worker
        self.error = error
        self.trace = trace


class Channel(Generic[T]):
    """A bounded queue from one target to one drafter; cancelling wakes both ends."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._cancelled = False

    def put(self, item: T) -> None:
        """Waits for a free place; raises Cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or len(self._items) < self._capacity)
            if self._cancelled:
                raise Cancelled
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Waits for an item; raises Cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or bool(self._items))
            if self._cancelled:
                raise Cancelled
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def depth(self) -> int:
        """Items that wait now."""
        return len(self._items)

    def cancel(self) -> None:
        """Drops what waits and wakes everybody."""
        with self._changed:
            self._cancelled = True
            self._items.clear()
            self._changed.notify_all()


class Crew:
    """Starts workers and watches them: the first exception cancels all, and only that one is reported."""

    def __init__(self, cancel: Sequence[Callable[[], None]]) -> None:
        self._cancel = list(cancel)
        self._running: set[str] = set()
        self._failure: WorkerFailed | None = None
        self._wake = threading.Condition()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work` in a daemon thread called `name`."""
        with self._wake:
            self._running.add(name)
        threading.Thread(target=self._run, args=(name, work), name=name, daemon=True).start()

    def _run(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Cancelled:
            pass
        except BaseException as error:  # a worker must never die in silence, whatever it raised
            with self._wake:
                if self._failure is None:
                    self._failure = WorkerFailed(name, error, traceback.format_exc())
            self.cancel()
        finally:
            with self._wake:
                self._running.discard(name)
                self._wake.notify_all()

    def cancel(self) -> None:
        """Ends all workers at their next wait."""
        for cancel in self._cancel:
            cancel()

    def alive(self) -> list[str]:
        """Names of the workers that still run."""
        return sorted(self._running)

    def wait(self, seconds: float) -> bool:
        """Waits until all workers ended, one failed, or the time is over; True when all ended.

        Raises WorkerFailed for the first failure, as soon as it happened.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._failure is not None or not self._running, timeout=seconds)
        if self._failure is not None:
            raise self._failure
        return not self._running

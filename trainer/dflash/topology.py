"""Where the threads run: devices of targets and drafters, streams, and how many cores each thread may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash.errors import TrainerError


@dataclass(frozen=True)
class TopologyConfig:
    """Keys of [topology]: one thread per entry; a device may stand in both lists and more than once."""

    targets: tuple[str, ...] = ("cpu",)
    drafters: tuple[str, ...] = ("cpu",)
    queue_batches: int = 2
    """Batches that wait between a target and a drafter at most."""
    cpu_threads: int = 0
    """Cores per worker thread for CPU kernels; 0 shares the cores among the workers."""

    def check(self) -> None:
        """Raises TrainerError for devices that this machine does not have."""
        if not self.targets or not self.drafters or self.queue_batches < 1:
            raise TrainerError("topology needs at least one target, one drafter and queue_batches of at least 1.")
        for name in (*self.targets, *self.drafters):
            device = parse_device(name)
            if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
                raise TrainerError(f"topology names {name}, but torch sees {torch.cuda.device_count()} CUDA devices.")


def parse_device(name: str) -> torch.device:
    """`cpu`, `cuda` (taken as cuda:0) or `cuda:N`."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainerError(f"{name!r} is no device; expected cpu or cuda:N.") from error
    if device.type not in {"cpu", "cuda"}:
        raise TrainerError(f"Device {name!r} is not supported; expected cpu or cuda:N.")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def usable_cores() -> int:
    """Cores of this process: its affinity mask, cut by the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def threads_per_worker(config: TopologyConfig) -> int:
    """Kernel threads per worker: the cores shared out, at least one each."""
    workers = len(config.targets) + len(config.drafters)
    return config.cpu_threads or max(1, usable_cores() // workers)


@contextlib.contextmanager
def worker_thread(device: torch.device, cpu_threads: int, *, gradients: bool) -> Iterator[None]:
    """What is local to a thread, set for the calling one: device, stream, grad mode and number of kernel threads.

    Dynamo guards on the number of kernel threads, so it must be the same when a worker warms up and when it trains.
    """
    torch.set_num_threads(cpu_threads)
    with torch.set_grad_enabled(gradients):
        if device.type != "cuda":
            yield
            return
        torch.cuda.set_device(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
            stream.synchronize()

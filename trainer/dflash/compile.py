"""Every decision about torch.compile: what is compiled, by which backend, when, and that nothing is compiled later.

Up to torch 2.12 *calling* compiled code raises, or takes wrong branches, while another thread compiles (pytorch
#118260, #126024), so a gate keeps everybody parked until every drafter has compiled its forward and backward at the
final shapes, one after another; afterwards any recompile is an error. CUDA graphs stay off: the graph trees behind
`reduce-overhead` keep their state in the thread that imported them (pytorch #123177).
"""

from __future__ import annotations

import shutil
import sysconfig
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.utils
from torch import Tensor

from dflash.drafter import Drafter, Mask, Rope
from dflash.errors import TrainerError
from dflash.workers import Cancelled

Forward = Callable[[Tensor, Tensor, Rope, Rope, Mask], Tensor]
"""Drafter.forward: (features, block, context rope, block rope, mask) -> final hidden rows."""

_TREES = "it records CUDA graphs through graph trees, whose state belongs to one thread (pytorch #123177)"
_REFUSED = {
    "reduce-overhead": _TREES,
    "max-autotune": _TREES,
}


@dataclass(frozen=True)
class CompileConfig:
    """Keys of [compile]."""

    enabled: bool = True
    """False runs the drafter eagerly."""
    mode: str = "default"
    """Only `default`; the modes that record CUDA graphs are refused in the threaded topology."""
    cudagraphs: bool = False
    """Only false in the threaded topology."""

    def check(self) -> None:
        """Raises TrainerError with the reason for every mode that the threaded topology cannot run."""
        if self.mode in _REFUSED:
            raise TrainerError(
                f"compile.mode {self.mode!r} is refused: drafters are threads, and {_REFUSED[self.mode]}.",
                next='set compile.mode = "default"',
            )
        if self.mode != "default":
            raise TrainerError(f"compile.mode {self.mode!r} is not known.", next='set compile.mode = "default"')
        if self.cudagraphs:
            raise TrainerError(
                "compile.cudagraphs = true is refused: drafters are threads, and torch.compile's CUDA graphs belong to"
                " one thread (pytorch #123177).",
                next="set compile.cudagraphs = false",
            )


def choose_backend(device: torch.device) -> tuple[str, str]:
    """(backend, reason): Inductor, or aot_eager with a reason where a CPU has nothing to build C++ with."""
    if device.type != "cpu":
        return "inductor", ""
    missing = _missing_build_tool()
    return ("aot_eager", missing) if missing else ("inductor", "")


def _missing_build_tool() -> str:
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        compiler = get_cpp_compiler()
    except Exception:  # InvalidCxxCompiler, which has moved between torch versions
        return f"no C++ compiler ({config.cpp.cxx})"
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "no Python.h (package python3-dev)"
    return ""


def _forward(
    drafter: Drafter, features: Tensor, block: Tensor, context_rope: Rope, block_rope: Rope, mask: Mask
) -> Tensor:
    hidden: Tensor = drafter(features, block, context_rope, block_rope, mask)
    return hidden


def compile_forward(
    drafter: Drafter, name: str, device: torch.device, config: CompileConfig, say: Callable[[str], None]
) -> Forward:
    """The drafter's forward for training; says once what it does. Nothing is compiled before the first call.

    Each drafter gets a code object of its own: Dynamo keeps compiled code per code object and past its recompile limit
    falls back to eager in silence, so drafters on several devices must not share one.
    """
    if not config.enabled:
        say(f"{name} on {device}: forward runs eagerly (compile.enabled = false)")
        return drafter
    backend, reason = choose_backend(device)
    # The line that `ctdeploy verify` looks for; it stands here as a literal.
    line = f"{name} on {device}: compiling forward (cudagraphs=False)"
    say(line if not reason else f"{line}, backend {backend}: {reason}")
    own = types.FunctionType(_forward.__code__.replace(co_name=_identifier(name)), _forward.__globals__)
    compiled = torch.compile(own, dynamic=False, fullgraph=True, backend=backend)

    def forward(features: Tensor, block: Tensor, context_rope: Rope, block_rope: Rope, mask: Mask) -> Tensor:
        hidden: Tensor = compiled(drafter, features, block, context_rope, block_rope, mask)
        return hidden

    return forward


def _identifier(name: str) -> str:
    return "forward_" + "".join(c if c.isalnum() else "_" for c in name)


def compiled_graphs() -> dict[str, int]:
    """Counters of this process that grow with every graph, of Dynamo, AOTAutograd and Inductor.

    Dynamo's stance does not see a backward that was not compiled yet, so the lower layers are counted as well.
    """
    counters: Any = torch._dynamo.utils.counters
    found = {"dynamo.unique_graphs": int(counters["stats"]["unique_graphs"])}
    for group in ("aot_autograd", "inductor"):
        for key in sorted(counters[group]):
            if key in {"total", "ok"} or key.endswith(("_miss", "_hit", "_bypass")):
                found[f"{group}.{key}"] = int(counters[group][key])
    return found


class Gate:
    """Parks all workers until every drafter is warm, then forbids compiling.

    Drafters call `warm` with their turn; targets call `wait_open`. `release` ends the prohibition when the run is over.
    """

    def __init__(self, drafters: int, *, compiling: bool) -> None:
        self._drafters = drafters
        self._compiling = compiling
        self._turn = 0
        self._cancelled = False
        self._changed = threading.Condition()
        self.graphs: dict[str, int] = {}

    def warm(self, turn: int, work: Callable[[], None]) -> None:
        """Runs `work` when all earlier turns are done, then waits until the gate is open; raises Cancelled."""
        self._wait(lambda: self._turn == turn)
        work()
        with self._changed:
            if self._cancelled:
                raise Cancelled
            if turn == self._drafters - 1:
                self._seal()
            self._turn += 1
            self._changed.notify_all()
        self.wait_open()

    def wait_open(self) -> None:
        """Waits until every drafter is warm; raises Cancelled."""
        self._wait(lambda: self._turn == self._drafters)

    @property
    def open(self) -> bool:
        return self._turn == self._drafters

    def check(self) -> None:
        """Raises TrainerError when anything was compiled after the gate opened."""
        now = compiled_graphs()
        if self._compiling and self.open and now != self.graphs:
            grown = {
                key: (self.graphs.get(key, 0), count) for key, count in now.items() if count != self.graphs.get(key)
            }
            raise TrainerError(f"A graph was compiled after the gate had opened (before, now): {grown}.")

    def release(self) -> None:
        """Allows compiling again."""
        if self._compiling:
            torch.compiler.set_stance("default")

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def shut(self) -> bool:
        """Cancels unless the gate is open, and from then on it never opens; returns whether it is shut."""
        with self._changed:
            if not self.open:
                self._cancelled = True
                self._changed.notify_all()
            return not self.open

    def _seal(self) -> None:
        self.graphs = compiled_graphs()
        if self._compiling:
            torch.compiler.set_stance("fail_on_recompile")

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or ready())
            if self._cancelled:
                raise Cancelled

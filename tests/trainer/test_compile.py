"""What is compiled, when, and that nothing is compiled later."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from dflash.compile import CompileConfig, Gate, choose_backend, compile_forward, compiled_graphs
from dflash.errors import TrainerError
from dflash.workers import Cancelled
from tests.trainer.conftest import REPOSITORY, Start
from tests.trainer.test_training import LENGTH, batch_of
from tests.trainer.tiny import tiny_drafter, tiny_target, training_step

CPU = torch.device("cpu")


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_that_record_cuda_graphs_are_refused_with_the_reason(mode: str) -> None:
    with pytest.raises(TrainerError, match=r"threads.*graph trees.*123177"):
        CompileConfig(mode=mode).check()


def test_cudagraphs_are_refused_with_the_reason() -> None:
    with pytest.raises(TrainerError, match=r"threads.*one thread"):
        CompileConfig(cudagraphs=True).check()
    CompileConfig().check()


def test_no_other_file_of_the_trainer_speaks_of_compiling() -> None:
    words = ("torch.compile", "torch.compiler", "_dynamo", "_inductor", "cudagraphs=")
    found = [
        (path.name, word)
        for path in sorted((REPOSITORY / "trainer").rglob("*.py"))
        if path.name != "compile.py"
        for word in words
        if word in path.read_text()
    ]
    assert not found
    text = (REPOSITORY / "trainer/dflash/compile.py").read_text()
    assert 'f"{name} on {device}: compiling forward (cudagraphs=False)"' in text
    assert 'mode="reduce-overhead"' not in text


def test_the_gate_warms_one_drafter_after_another_and_keeps_targets_out() -> None:
    gate = Gate(3, compiling=False)
    seen: list[str] = []
    busy = threading.Lock()

    def drafter(rank: int) -> None:
        def work() -> None:
            assert busy.acquire(blocking=False), "two warm up at once"
            seen.append(f"warm {rank}")
            busy.release()

        gate.warm(rank, work)
        seen.append("trains")

    def target() -> None:
        gate.wait_open()
        seen.append("target")

    threads = [threading.Thread(target=target)]
    # Started backwards: the turn decides, not who comes first.
    threads += [threading.Thread(target=drafter, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert seen[:3] == ["warm 0", "warm 1", "warm 2"]
    assert sorted(seen[3:]) == ["target", "trains", "trains", "trains"]


def test_cancelling_the_gate_wakes_everybody() -> None:
    gate = Gate(2, compiling=False)
    ended = []

    def wait() -> None:
        try:
            gate.warm(1, lambda: None)
        except Cancelled:
            ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    gate.cancel()
    thread.join(timeout=10)
    assert ended == [True]


def test_two_compiled_drafters_train_in_threads_on_one_graph_each_and_a_new_shape_is_an_error() -> None:
    """The heart of it: compiled forward and backward, equal to eager, no graph after the gate, none allowed."""
    target = tiny_target("llama")
    lines: list[str] = []
    drafters = [tiny_drafter(target, layers=1) for _ in range(2)]
    steps = [training_step(target, drafter, rows=1, length=LENGTH, anchors=8) for drafter in drafters]
    batches = [batch_of(target, 1, seed) for seed in range(4)]
    gate = Gate(2, compiling=True)
    before = compiled_graphs()["dynamo.unique_graphs"]
    losses: list[list[float]] = [[], []]

    def work(rank: int) -> None:
        torch.set_num_threads(1)

        def warm() -> None:
            name = f"drafter-{rank}"
            steps[rank].use(compile_forward(drafters[rank], name, CPU, CompileConfig(), lines.append))
            steps[rank].warm(drafters[rank].fc.in_features)

        gate.warm(rank, warm)
        for batch in batches:
            steps[rank].forward_backward(batch)
            totals = steps[rank].update(1e-3)
            losses[rank].append((totals.loss / totals.weight).item())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert lines == [
            "drafter-0 on cpu: compiling forward (cudagraphs=False)",
            "drafter-1 on cpu: compiling forward (cudagraphs=False)",
        ]
        assert compiled_graphs()["dynamo.unique_graphs"] == before + 2, "each drafter has a code object of its own"
        gate.check()

        eager = training_step(target, tiny_drafter(target, layers=1), rows=1, length=LENGTH, anchors=8)
        expected = []
        for batch in batches:
            eager.forward_backward(batch)
            totals = eager.update(1e-3)
            expected.append((totals.loss / totals.weight).item())
        assert losses[0] == pytest.approx(expected, rel=1e-4)
        assert losses[1] == pytest.approx(expected, rel=1e-4)

        wider = training_step(target, drafters[0], rows=1, length=LENGTH, anchors=9)
        wider.use(steps[0]._forward)
        with pytest.raises(RuntimeError, match="recompile"):
            wider.forward_backward(batches[0])
    finally:
        gate.release()
    # Released: the new shape compiles, and the counters see it.
    wider.forward_backward(batches[0])
    with pytest.raises(TrainerError, match="after the gate had opened"):
        gate.check()


def test_without_a_cpp_compiler_the_backend_is_aot_eager_and_the_line_says_so(
    tiny_recipe: Path, start: Start, tmp_path: Path
) -> None:
    process = start(
        "--config", str(tiny_recipe), "--run-dir", "run", "compile.enabled=true", "evaluation.prompts=0",
        CXX="/nonexistent/c++",
    )  # fmt: skip
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    for name in ("drafter-0", "drafter-1"):
        line = f"{name} on cpu: compiling forward (cudagraphs=False), backend aot_eager: no C++ compiler"
        assert output.count(line) == 1


def test_this_machine_has_what_inductor_needs() -> None:
    """make test asks for g++ and Python headers; without them the other tests would run the fallback unnoticed."""
    assert choose_backend(CPU) == ("inductor", "")
    assert choose_backend(torch.device("cuda", 3)) == ("inductor", "")


def test_the_flex_path_does_not_recompile_for_new_anchors() -> None:
    """A fresh process, since the stance is process-wide: eager backend, so that a CPU can trace flex attention."""
    script = """
import torch
from dflash.compile import compile_forward, compiled_graphs
from dflash.masks import FlexMask
from tests.trainer.tiny import tiny_drafter, tiny_target
target = tiny_target("llama")
drafter = tiny_drafter(target, layers=1, block_size=16)
forward = torch.compile(drafter, dynamic=False, fullgraph=True, backend="eager")
mask = FlexMask(1, 8, 16, 128, torch.device("cpu"))
features, block = torch.randn(1, 128, 192), torch.randn(1, 128, 64)
context = drafter.rotary.at(torch.arange(128).unsqueeze(0), torch.float32)
def go(anchors):
    places = torch.tensor([anchors])
    slots = (places.unsqueeze(-1) + torch.arange(16)).flatten(1)
    return forward(features, block, context, drafter.rotary.at(slots, torch.float32), mask.update(places))
torch.set_grad_enabled(False)  # flex attention has no backward on CPUs
first = go([1, 2, 3, 4, 5, 6, 7, 8])
graphs = compiled_graphs()
torch.compiler.set_stance("fail_on_recompile")
second = go([1, 9, 20, 31, 45, 60, 99, 126])
assert compiled_graphs() == graphs
assert not torch.equal(first, second)
print("one graph")
"""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'trainer'}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "one graph", done.stderr

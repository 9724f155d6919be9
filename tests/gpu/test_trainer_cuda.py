"""The trainer on CUDA: flex attention, two drafter threads on one device, acceptance, losslessness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash.anchors import sample_anchors
from dflash.checkpoint import load_drafter
from dflash.compile import CompileConfig, compile_forward, compiled_graphs
from dflash.decode import greedy_decode, speculative_decode
from dflash.flat import FlatParameters, OptimizerConfig
from dflash.masks import FlexMask, dense_mask
from dflash.step import Batch, StepPlan, TrainingStep
from dflash.target import Target
from tests.trainer.tiny import (
    EOS,
    LAYER_IDS,
    MASK_TOKEN,
    make_batch,
    tiny_drafter,
    tiny_model,
    write_conversations,
    write_tiny_folder,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CUDA = torch.device("cuda", 0)
LENGTH = 128
BLOCK = 16
ANCHORS = 16
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def exact_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def cuda_target(kind: str = "llama") -> Target:
    return Target(tiny_model(kind).to(CUDA), LAYER_IDS)


def cuda_step(target: Target, *, flex: bool, rows: int = 2, seed: int = 5) -> tuple[TrainingStep, FlatParameters]:
    drafter = tiny_drafter(target, block_size=BLOCK).to(CUDA)
    parameters = FlatParameters(drafter, torch.float32, OptimizerConfig(learning_rate=3e-3))
    plan = StepPlan(rows, LENGTH, ANCHORS, BLOCK, MASK_TOKEN, 7.0, 100, seed, flex)
    step = TrainingStep(drafter, parameters, target.embedding, target.head, plan)
    if flex:
        step.use(compile_forward(drafter, "drafter-0", CUDA, CompileConfig(), print))
    return step, parameters


def batch_of(target: Target, rows: int = 2, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (rows, LENGTH), generator=generator)
    lengths = torch.tensor([LENGTH - 30 * row for row in range(rows)])
    places = torch.arange(LENGTH)
    mask = (places >= 10) & (places < lengths.unsqueeze(1))
    batch = make_batch(target, tokens.to(CUDA), mask, lengths)
    return Batch(*(part.to(CUDA) for part in batch))


def test_compiled_flex_attention_gives_the_numbers_of_dense_attention_in_float32() -> None:
    target = cuda_target("qwen3")
    batch = batch_of(target)
    found = {}
    for flex in (False, True):
        step, parameters = cuda_step(target, flex=flex)
        step.forward_backward(batch)
        gradient = parameters.exchange_buffer.clone()
        totals = step.update(1e-3)
        found[flex] = (gradient, (totals.loss / totals.weight).item())
    assert found[True][1] == pytest.approx(found[False][1], rel=1e-5)
    dense, flexed = found[False][0], found[True][0]
    assert ((dense - flexed).norm() / dense.norm()).item() < 1e-4


def test_new_anchors_compile_nothing_new_and_the_loss_falls() -> None:
    target = cuda_target()
    step, _ = cuda_step(target, flex=True)
    step.warm(target.embedding.shape[1] * len(LAYER_IDS))
    graphs = compiled_graphs()
    torch.compiler.set_stance("fail_on_recompile")
    losses = []
    try:
        batch = batch_of(target)
        for epoch in range(60):
            step.forward_backward(batch._replace(epochs=torch.full_like(batch.epochs, epoch)))
            totals = step.update(3e-3)
            losses.append((totals.loss / totals.weight).item())
    finally:
        torch.compiler.set_stance("default")
    assert compiled_graphs() == graphs
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_anchors_and_masks_on_the_device_are_those_of_the_cpu() -> None:
    loss_mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    loss_mask[0, 20:90] = True
    loss_mask[1, 100:104] = True
    lengths, epochs, samples = torch.tensor([LENGTH, 110]), torch.tensor([3, 4]), torch.tensor([7, 8])
    here = sample_anchors(loss_mask, lengths, 1, epochs, samples, ANCHORS)
    inputs = [part.to(CUDA) for part in (loss_mask, lengths)]
    there = sample_anchors(*inputs, 1, epochs.to(CUDA), samples.to(CUDA), ANCHORS)
    assert torch.equal(there.position.cpu(), here.position)
    assert torch.equal(there.keep.cpu(), here.keep)
    block_mask = FlexMask(2, ANCHORS, BLOCK, LENGTH, CUDA).update(there.context_length)
    queries, keys = ANCHORS * BLOCK, LENGTH + ANCHORS * BLOCK
    q, kv = torch.meshgrid(torch.arange(queries, device=CUDA), torch.arange(keys, device=CUDA), indexing="ij")
    dense = dense_mask(there.context_length, BLOCK, LENGTH)
    for row in range(2):
        zero = torch.tensor(0, device=CUDA)
        visible = block_mask.mask_mod(torch.tensor(row, device=CUDA), zero, q, kv)
        assert torch.equal(visible, dense[row, 0])


RECIPE = """
[target]
model = "{model}"
layers = 3
[drafter]
layers = 2
block_size = 8
mask_token_id = 263
compute_dtype = "{dtype}"
initializer_range = 0.1
[data]
train = "train.jsonl"
max_length = 128
[anchors]
per_sequence = 32
[optimizer]
learning_rate = 2e-3
[run]
steps = 200
rows = 2
log_every = 20
[topology]
targets = ["{target}"]
drafters = ["{drafter}", "{drafter}"]
[evaluation]
prompts = 4
max_new_tokens = 32
"""


@pytest.mark.parametrize(
    ("dtype", "target", "drafter"),
    [
        ("float32", "cuda:0", "cuda:0"),
        ("bfloat16", "cuda:0", "cuda:0"),
        ("float32", "cpu", "cuda:0"),
        ("float32", "cuda:0", "cpu"),
    ],
)
def test_two_drafter_threads_on_one_device_learn_and_stay_lossless(
    tmp_path: Path, dtype: str, target: str, drafter: str
) -> None:
    """A whole run as a user starts it: answers are the tiny target's own, so that acceptance can rise."""
    folder = write_tiny_folder(tmp_path / "target")
    write_conversations(tmp_path / "train.jsonl", 8)
    (tmp_path / "tiny.toml").write_text(RECIPE.format(model=folder, dtype=dtype, target=target, drafter=drafter))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")}
    regenerate = [sys.executable, "-m", "dflash.regenerate", "train.jsonl", "train.jsonl", "--target", str(folder)]
    options = ["--max-new-tokens", "40", "--keep-loops", "--keep-unfinished"]
    subprocess.run([*regenerate, *options], cwd=tmp_path, env=environment, check=True, timeout=300)
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "trainer/dflash_train.py"), "--config", "tiny.toml", "--run-dir", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("drafter-0", "drafter-1"):
        assert done.stdout.count(f"{name} on {drafter}: compiling forward (cudagraphs=False)") == 1
        assert done.stdout.count(f"{name}: step 1 done, loss ") == 1
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["last_loss"] < 0.5 * result["first_loss"]
    assert result["memorised"]["tau_after"] > result["memorised"]["tau_before"] + 1.0
    assert result["lossless"] is True


def test_decoding_on_the_device_equals_plain_decoding_and_the_cpu() -> None:
    target = cuda_target("qwen3")
    drafter = tiny_drafter(target).to(CUDA)
    for prompt in ([1, 2, 3], [40, 41, 42, 43]):
        plain = greedy_decode(target, prompt, 24, frozenset({EOS}))
        assert speculative_decode(target, drafter, prompt, 24, frozenset({EOS}), MASK_TOKEN).tokens == plain


def test_a_saved_drafter_loads_onto_the_device(tmp_path: Path) -> None:
    from tests.trainer.test_checkpoint import save

    target = cuda_target()
    folder = save(target, tiny_drafter(target).to(CUDA), tmp_path, step=1)
    drafter, _ = load_drafter(folder, target.rotary(), torch.float32)
    features = torch.zeros(1, 3, 64 * len(LAYER_IDS), device=CUDA)
    from dflash.drafter import ContextCache

    out = drafter.to(CUDA).draft(features, torch.zeros(1, 4, 64, device=CUDA), ContextCache(2))
    assert torch.isfinite(out).all()

"""The published checkpoint layout, typed out from its description, and that a checkpoint is whole or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dflash.checkpoint import latest_checkpoint, load_drafter, published_config, save_checkpoint
from dflash.drafter import Drafter, DrafterShape
from dflash.errors import TrainerError
from dflash.target import Target, rope_parameters
from tests.trainer.conftest import REPOSITORY
from tests.trainer.tiny import tiny_drafter, tiny_target, training_step


class Qwen3Like:
    """The config of Qwen3-8B, as far as a checkpoint repeats it."""

    rope_theta = 1000000
    rope_scaling = None
    max_position_embeddings = 40960
    vocab_size = 151936
    bos_token_id = 151643
    eos_token_id = 151645
    pad_token_id = None


def test_config_has_every_published_key() -> None:
    shape = DrafterShape(
        hidden_size=4096,
        intermediate_size=12288,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_captured=5,
        block_size=16,
    )
    found = published_config(
        shape,
        Qwen3Like(),
        num_target_layers=36,
        layer_ids=(1, 9, 17, 25, 33),
        mask_token=151669,
        dtype=torch.bfloat16,
    )
    found.pop("transformers_version")
    assert json.loads(json.dumps(found)) == {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669, "block_size": 16},
        "num_target_layers": 36,
        "hidden_size": 4096,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * 5,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 5,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "max_position_embeddings": 40960,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "pad_token_id": None,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }


def test_transformers_reads_the_config_as_a_qwen3_config(target: Target, tmp_path: Path) -> None:
    from transformers import Qwen3Config

    folder = save(target, tiny_drafter(target), tmp_path, step=3)
    config = Qwen3Config.from_pretrained(str(folder))
    assert config.block_size == 4
    assert config.dflash_config["target_layer_ids"] == [1, 3, 5]
    assert rope_parameters(config) == rope_parameters(target.config)
    assert config.layer_types == ["full_attention", "full_attention"]


def save(target: Target, drafter: Drafter, folder: Path, step: int) -> Path:
    config = published_config(
        drafter.shape,
        target.config,
        num_target_layers=target.num_layers,
        layer_ids=target.layer_ids,
        mask_token=263,
        dtype=torch.bfloat16,
    )
    training = training_step(target, drafter, rows=1, length=16, anchors=2)
    parameters = training._parameters
    parameters.zero()
    parameters.step(1e-3, torch.tensor(1.0))
    return save_checkpoint(folder, step, config, torch.bfloat16, parameters.state(), {"step": step})


def test_the_weights_have_the_published_names_shapes_and_dtype(tmp_path: Path) -> None:
    target = tiny_target("llama")
    folder = save(target, tiny_drafter(target), tmp_path, step=8)
    assert folder == tmp_path / "step-8"
    layer = {
        "input_layernorm.weight": [64],
        "self_attn.q_proj.weight": [64, 64],
        "self_attn.k_proj.weight": [32, 64],
        "self_attn.v_proj.weight": [32, 64],
        "self_attn.o_proj.weight": [64, 64],
        "self_attn.q_norm.weight": [16],
        "self_attn.k_norm.weight": [16],
        "post_attention_layernorm.weight": [64],
        "mlp.gate_proj.weight": [96, 64],
        "mlp.up_proj.weight": [96, 64],
        "mlp.down_proj.weight": [64, 96],
    }
    expected = {"fc.weight": [64, 192], "hidden_norm.weight": [64], "norm.weight": [64]}
    expected |= {f"layers.{index}.{name}": size for index in (0, 1) for name, size in layer.items()}
    assert len(expected) == 11 * 2 + 3
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {name: list(file.get_slice(name).get_shape()) for name in file.keys()} == expected  # noqa: SIM118
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    # Engines load every safetensors file of the folder itself, so the training state must not lie there.
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "training"]


def test_the_training_state_holds_masters_and_moments_by_name(tmp_path: Path) -> None:
    target = tiny_target("llama")
    folder = save(target, tiny_drafter(target), tmp_path, step=8)
    state = load_file(str(folder / "training/state.safetensors"))
    assert len(state) == 3 * 25
    assert {name.split(".")[0] for name in state} == {"masters", "exp_avg", "exp_avg_sq"}
    assert state["masters.fc.weight"].dtype == torch.float32
    assert json.loads((folder / "training/progress.json").read_text())["step"] == 8


def test_a_loaded_drafter_is_the_saved_one(target: Target, tmp_path: Path) -> None:
    drafter = tiny_drafter(target)
    folder = save(target, drafter, tmp_path, step=1)
    loaded, config = load_drafter(folder, target.rotary(), torch.float32)
    assert config["block_size"] == 4
    for (name, ours), (other, theirs) in zip(drafter.named_parameters(), loaded.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(theirs, ours.detach().bfloat16().float())


def test_a_folder_with_a_tensor_missing_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    target = tiny_target("llama")
    folder = save(target, tiny_drafter(target), tmp_path, step=1)
    weights = load_file(str(folder / "model.safetensors"))
    del weights["norm.weight"]
    save_file(weights, str(folder / "model.safetensors"))
    with pytest.raises(TrainerError, match=r"norm\.weight"):
        load_drafter(folder, target.rotary(), torch.float32)


def test_the_latest_checkpoint_is_the_highest_step(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for name in ("step-9", "step-10", ".step-99-abc", "step-x"):
        (tmp_path / name).mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-10"


def test_a_failed_write_leaves_nothing_and_the_older_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target("llama")
    old = save(target, tiny_drafter(target), tmp_path, step=1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(target, tiny_drafter(target), tmp_path, step=2)
    assert list(tmp_path.iterdir()) == [old]


def test_a_step_that_is_there_already_is_neither_kept_in_silence_nor_replaced(tmp_path: Path) -> None:
    target = tiny_target("llama")
    folder = save(target, tiny_drafter(target, seed=1), tmp_path, step=1)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(TrainerError, match="is there already"):
        save(target, tiny_drafter(target, seed=2), tmp_path, step=1)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_what_is_not_finite_is_never_saved(tmp_path: Path, value: float) -> None:
    """3.4e38 is a number in float32 and infinite in the bfloat16 of the published weights."""
    target = tiny_target("llama")
    drafter = tiny_drafter(target)
    drafter.norm.weight.data[5] = value
    with pytest.raises(TrainerError, match=r"norm\.weight is not finite at step 4"):
        save(target, drafter, tmp_path / "checkpoints", step=4)
    assert not (tmp_path / "checkpoints").exists()


def test_a_file_that_is_cut_short_is_no_checkpoint(tmp_path: Path) -> None:
    target = tiny_target("llama")
    folder = save(target, tiny_drafter(target), tmp_path, step=1)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainerError, match="no DFlash checkpoint"):
        load_drafter(folder, target.rotary(), torch.float32)


KILLED = """
import os, signal, sys
from pathlib import Path
import dflash.checkpoint as checkpoint
from tests.trainer.test_checkpoint import save
from tests.trainer.tiny import tiny_drafter, tiny_target
calls, last = 0, int(sys.argv[2])
real = os.fsync
def counting(descriptor):
    global calls
    real(descriptor)
    calls += 1
    if calls == last:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = counting
target = tiny_target("llama")
save(target, tiny_drafter(target), Path(sys.argv[1]), step=5)
"""


@pytest.mark.parametrize("after", [1, 5])
def test_killed_in_the_middle_of_writing_there_is_no_checkpoint(tmp_path: Path, after: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'trainer'}"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(after)], env=environment, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert latest_checkpoint(tmp_path) is None
    assert [path.name[:8] for path in tmp_path.iterdir()] == [".step-5-"]
    target = tiny_target("llama")
    save(target, tiny_drafter(target), tmp_path, step=6)
    assert [path.name for path in tmp_path.iterdir()] == ["step-6"], "what was left half-written is gone"

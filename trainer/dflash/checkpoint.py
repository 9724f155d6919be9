"""Checkpoints: the published z-lab layout, written whole or not at all, with the training state in a sub-folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.drafter import Drafter, DrafterShape, RotaryTable
from dflash.errors import TrainerError
from dflash.target import rope_parameters

_STEP = re.compile(r"step-(\d+)")
_MASTERS = "masters."


def published_config(
    shape: DrafterShape,
    target_config: Any,
    *,
    num_target_layers: int,
    layer_ids: tuple[int, ...],
    mask_token: int,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """config.json as z-lab's code, SGLang and vLLM read it.

    Both rope forms are written (transformers 4.x reads rope_theta and rope_scaling, 5.x rope_parameters), and the block
    size in both of its places.
    """
    import transformers

    theta, scaling = rope_parameters(target_config)
    dtype_name = str(dtype).removeprefix("torch.")
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": shape.block_size,
        "dflash_config": {
            "target_layer_ids": list(layer_ids),
            "mask_token_id": mask_token,
            "block_size": shape.block_size,
        },
        "num_target_layers": num_target_layers,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": shape.attention_bias,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * shape.num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": shape.num_layers,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        "max_position_embeddings": target_config.max_position_embeddings,
        "vocab_size": target_config.vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": getattr(target_config, "bos_token_id", None),
        "eos_token_id": getattr(target_config, "eos_token_id", None),
        "pad_token_id": getattr(target_config, "pad_token_id", None),
        "dtype": dtype_name,
        "torch_dtype": dtype_name,
        "initializer_range": shape.initializer_range,
        "use_cache": True,
        "transformers_version": transformers.__version__,
    }


def save_checkpoint(
    folder: Path,
    step: int,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    state: Mapping[str, Tensor],
    progress: Mapping[str, Any],
) -> Path:
    """Writes `folder/step-<step>` and returns it; the published weights are the masters of `state` in `dtype`.

    Everything goes into a hidden folder beside it, is synced to disk and then renamed, so that a folder with the final
    name is always whole. The training state stands in `training/`: engines load every *.safetensors of the top folder.
    One process saves into a folder at a time; what a killed one left half-written is removed. Raises TrainerError when
    the step is there already or a value is not finite.
    """
    final = folder / f"step-{step}"
    if final.exists():
        raise TrainerError(f"The checkpoint {final} is there already.", next="give the run a folder of its own")
    weights = {
        name.removeprefix(_MASTERS): value.to(dtype).contiguous()
        for name, value in state.items()
        if name.startswith(_MASTERS)
    }
    for name, value in (*weights.items(), *state.items()):
        if not bool(torch.isfinite(value).all()):
            raise TrainerError(
                f"{name} is not finite at step {step}; nothing was saved.",
                next="lower optimizer.learning_rate, or use compute_dtype float32",
            )
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".step-*"):
        shutil.rmtree(stale, ignore_errors=True)
    working = Path(tempfile.mkdtemp(prefix=f".step-{step}-", dir=folder))
    try:
        training = working / "training"
        training.mkdir()
        save_file(weights, str(working / "model.safetensors"), metadata={"format": "pt"})
        save_file(dict(state), str(training / "state.safetensors"), metadata={"format": "pt"})
        _write_json(working / "config.json", config)
        _write_json(training / "progress.json", progress)
        for file in (*working.iterdir(), *training.iterdir()):
            _sync(file)
        _sync(working)
        working.chmod(0o755)
        working.rename(final)
        _sync(folder)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step in `folder`, if there is any."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))]
    return max(found)[1] if found else None


def load_drafter(folder: Path, rotary: RotaryTable, dtype: torch.dtype) -> tuple[Drafter, dict[str, Any]]:
    """A drafter and its config.json from a folder in the published layout.

    Raises TrainerError when a key is missing or the tensors are not exactly those of such a drafter.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(str(folder / "model.safetensors"))
        shape = DrafterShape(
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            num_captured=len(config["dflash_config"]["target_layer_ids"]),
            block_size=config["block_size"],
            rms_norm_eps=config["rms_norm_eps"],
            attention_bias=config["attention_bias"],
        )
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise TrainerError(f"{folder} is no DFlash checkpoint: {type(error).__name__}: {error}") from error
    drafter = Drafter(shape, rotary)
    try:
        drafter.load_state_dict(weights)
    except RuntimeError as error:
        raise TrainerError(f"{folder}/model.safetensors does not hold this drafter: {error}") from error
    return drafter.to(dtype), config


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

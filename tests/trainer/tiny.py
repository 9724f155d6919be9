"""Tiny random targets and drafters, built from a config without any download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.drafter import Drafter, DrafterShape
from dflash.flat import FlatParameters, OptimizerConfig
from dflash.loss import default_gamma
from dflash.step import Batch, StepPlan, TrainingStep
from dflash.target import Target

KINDS = ("llama", "qwen3")
LAYER_IDS = (1, 3, 5)
MASK_TOKEN = 263
VOCABULARY = 264
EOS = 257
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random Llama with tied embeddings, or a random Qwen3 with a head of its own; 8 layers, hidden size 64."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        # Far above the usual 0.02, so that greedy answers wander instead of repeating one token.
        "initializer_range": 0.3,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": EOS,
    }
    torch.manual_seed(7)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=False))
    return model.to(dtype).eval()


def tiny_target(kind: str, dtype: torch.dtype = torch.float32) -> Target:
    """The same as a Target with three captured layers."""
    return Target(tiny_model(kind, dtype), LAYER_IDS)


def tiny_drafter(target: Target, *, layers: int = 2, block_size: int = 4, seed: int = 3) -> Drafter:
    """A random drafter for a tiny target."""
    shape = DrafterShape(
        hidden_size=64,
        intermediate_size=96,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        num_captured=len(target.layer_ids),
        block_size=block_size,
        rms_norm_eps=1e-6,
        initializer_range=0.1,
    )
    drafter = Drafter(shape, target.rotary())
    drafter.initialise(seed)
    return drafter.to(target.embedding.dtype)


def training_step(
    target: Target,
    drafter: Drafter,
    *,
    rows: int,
    length: int,
    anchors: int,
    optimizer: OptimizerConfig | None = None,
    seed: int = 5,
) -> TrainingStep:
    """An eager training step of a drafter beside its target."""
    block_size = drafter.shape.block_size
    plan = StepPlan(
        rows=rows,
        length=length,
        anchors=anchors,
        block_size=block_size,
        mask_token=MASK_TOKEN,
        gamma=default_gamma(block_size),
        chunk_slots=37,
        seed=seed,
        flex=False,
    )
    parameters = FlatParameters(drafter, target.embedding.dtype, optimizer or OptimizerConfig())
    return TrainingStep(drafter, parameters, target.embedding, target.head, plan)


def make_batch(target: Target, tokens: Tensor, loss_mask: Tensor, lengths: Tensor, *, epoch: int = 0) -> Batch:
    """A batch of tokens [b, S] with the target's features."""
    rows = tokens.shape[0]
    with torch.no_grad():
        features = target.features(tokens)
    return Batch(tokens, loss_mask, lengths, torch.full((rows,), epoch), torch.arange(rows), features)


_LETTERS = ["\n", *map(chr, range(0x20, 0x7F)), *map(chr, range(0xA1, 0x146))]
"""A letter per token, so that whatever a random target says is a text that gives the same tokens again."""


def write_tiny_folder(folder: Path, kind: str = "llama") -> Path:
    """A tiny target with a tokenizer of single letters and a chat template, as from_pretrained reads it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    special = ["<|start|>", "<|end|>"]
    words = {word: index for index, word in enumerate([*_LETTERS[:256], *special, *_LETTERS[256:]])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(str(folder))
    tiny_model(kind).save_pretrained(str(folder))
    assert wrapped.eos_token_id == EOS
    assert len(words) == MASK_TOKEN, "the mask token is the only row without a letter"
    return folder


def write_conversations(path: Path, count: int = 4) -> Path:
    """Short conversations of letters; the answers are made up, which a loss does not mind."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"question {chr(97 + index)}"},
                {"role": "assistant", "content": f"answer {chr(97 + index)} " + "abcdefgh"[index % 8 :]},
            ]
        }
        for index in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

"""An independent drafter, written from the published description one block at a time, for comparison only.

It shares no code with the trainer: weights come by name, attention is a loop over heads, the context is cut by slicing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def turn(x: Tensor, position: int, base: float) -> Tensor:
    """One head [head_dim] at a position: pairs (i, i + head_dim / 2), angle position / base**(2i / head_dim)."""
    half = x.shape[-1] // 2
    angles = torch.tensor([position / base ** (2 * i / (2 * half)) for i in range(half)], dtype=x.dtype)
    first, second = x[:half], x[half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])


def draft_block(
    weights: Mapping[str, Tensor],
    features: Tensor,
    block: Tensor,
    anchor: int,
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    base: float,
    eps: float,
) -> Tensor:
    """Final hidden rows [B, H] of one embedded block [B, H] whose context is features[:anchor] ([S, n * H])."""
    context = norm(features[:anchor] @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    x = block
    positions = [*range(anchor), *range(anchor, anchor + len(block))]
    for layer in range(layers):
        w = {k.removeprefix(f"layers.{layer}."): v for k, v in weights.items() if k.startswith(f"layers.{layer}.")}
        y = norm(x, w["input_layernorm.weight"], eps)
        rows = torch.cat([context, y])
        queries = (y @ w["self_attn.q_proj.weight"].T).view(len(y), heads, head_dim)
        keys = (rows @ w["self_attn.k_proj.weight"].T).view(len(rows), kv_heads, head_dim)
        values = (rows @ w["self_attn.v_proj.weight"].T).view(len(rows), kv_heads, head_dim)
        mixed = torch.zeros(len(y), heads * head_dim, dtype=x.dtype)
        for head in range(heads):
            group = head // (heads // kv_heads)
            turned = torch.stack(
                [
                    turn(norm(keys[t, group], w["self_attn.k_norm.weight"], eps), p, base)
                    for t, p in enumerate(positions)
                ]
            )
            for slot in range(len(y)):
                q = turn(norm(queries[slot, head], w["self_attn.q_norm.weight"], eps), anchor + slot, base)
                share = torch.softmax(turned @ q / math.sqrt(head_dim), dim=0)
                mixed[slot, head * head_dim : (head + 1) * head_dim] = share @ values[:, group]
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        z = norm(x, w["post_attention_layernorm.weight"], eps)
        gate = z @ w["mlp.gate_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (z @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return norm(x, weights["norm.weight"], eps)

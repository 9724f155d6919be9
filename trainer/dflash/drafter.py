"""The DFlash drafter: Qwen3-type layers that attend to the target's hidden states and to their own block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Rope = tuple[Tensor, Tensor]
"""cos and sin, each [batch or 1, tokens, head_dim]."""

Mask = Tensor | BlockMask | None


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of a drafter; hidden size and vocabulary are the target's, since embedding and head are shared."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_captured: int
    """Captured target layers; a feature row has `num_captured * hidden_size` values."""
    block_size: int
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    initializer_range: float = 0.02


class RMSNorm(nn.Module):
    """RMSNorm as Qwen3 has it: statistics in at least float32, the weight applied in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class RotaryTable(nn.Module):
    """Rotary angles from the target's own inverse frequencies, so that its rope scaling is carried over.

    `inverse_frequencies` is [head_dim / 2]; `scaling` multiplies cos and sin (1 except for YaRN-like ropes).
    """

    def __init__(self, inverse_frequencies: Tensor, scaling: float = 1.0) -> None:
        super().__init__()
        self.inverse_frequencies: Tensor
        self.register_buffer("inverse_frequencies", inverse_frequencies.detach().float().clone(), persistent=False)
        self.scaling = scaling

    def at(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        """cos and sin for integer `positions` [batch, tokens]; angles are made in float32 whatever the dtype."""
        angles = positions.unsqueeze(-1).float() * self.inverse_frequencies.float()
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate x [batch, heads, tokens, head_dim] in the "rotate half" form of Llama and Qwen."""
    cos, sin = rope[0].unsqueeze(1), rope[1].unsqueeze(1)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Grouped-query attention with scale head_dim**-0.5: a BlockMask goes to flex attention, the rest to SDPA."""
    if isinstance(mask, BlockMask):
        out = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


class Attention(nn.Module):
    """Attention whose keys and values come from the context and from the block, by the same matrices."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        hidden, head, bias = shape.hidden_size, shape.head_dim, shape.attention_bias
        self.head_dim = head
        self.q_proj = nn.Linear(hidden, shape.num_heads * head, bias=bias)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * head, bias=bias)
        self.v_proj = nn.Linear(hidden, shape.num_kv_heads * head, bias=bias)
        self.o_proj = nn.Linear(shape.num_heads * head, hidden, bias=bias)
        self.q_norm = RMSNorm(head, shape.rms_norm_eps)
        self.k_norm = RMSNorm(head, shape.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Normalised, rotated keys and plain values of x [batch, tokens, hidden]: [batch, kv heads, tokens, dim]."""
        key = self.k_norm(self._heads(self.k_proj(x))).transpose(1, 2)
        return rotate(key, rope), self._heads(self.v_proj(x)).transpose(1, 2)

    def forward(self, block: Tensor, context: tuple[Tensor, Tensor], rope: Rope, mask: Mask) -> Tensor:
        query = rotate(self.q_norm(self._heads(self.q_proj(block))).transpose(1, 2), rope)
        key, value = self.keys_values(block, rope)
        key = torch.cat((context[0], key), dim=2)
        value = torch.cat((context[1], value), dim=2)
        return self.o_proj(attend(query, key, value, mask).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One draft layer; the context gets no input norm, makes no queries and is never updated."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, block: Tensor, context: tuple[Tensor, Tensor], rope: Rope, mask: Mask) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), context, rope, mask)
        return block + self.mlp(self.post_attention_layernorm(block))  # type: ignore[no-any-return]


class ContextCache:
    """Keys and values of the context rows seen so far, per layer; block rows are never kept."""

    def __init__(self, num_layers: int) -> None:
        self._rows: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    @property
    def length(self) -> int:
        first = self._rows[0]
        return 0 if first is None else first[0].shape[2]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds rows [batch, kv heads, tokens, head_dim] to a layer and returns all of that layer's rows."""
        old = self._rows[layer]
        rows = (key, value) if old is None else (torch.cat((old[0], key), 2), torch.cat((old[1], value), 2))
        self._rows[layer] = rows
        return rows


class Drafter(nn.Module):
    """Drafts whole blocks from target features (arXiv 2602.06036, section 4); state-dict keys are z-lab's.

    Embedding and head are the target's and no part of the module: it maps embedded blocks to final hidden rows.
    """

    def __init__(self, shape: DrafterShape, rotary: RotaryTable) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_captured * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.num_layers)])
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rotary = rotary

    @torch.no_grad()
    def initialise(self, seed: int, final_norm: Tensor | float = 1.0) -> None:
        """Normal(0, initializer_range) linears, zero biases, ones for norms, drawn on the CPU in state-dict order.

        `final_norm` ([hidden] or one value) takes the place of the ones of the last norm.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                drawn = torch.empty(parameter.shape).normal_(0.0, self.shape.initializer_range, generator=generator)
                parameter.copy_(drawn)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        self.norm.weight.copy_(torch.as_tensor(final_norm).expand(self.shape.hidden_size))

    def forward(self, features: Tensor, block: Tensor, context_rope: Rope, block_rope: Rope, mask: Mask) -> Tensor:
        """Final hidden rows [batch, Q, hidden] of embedded slots `block` [batch, Q, hidden].

        `features` [batch, S, captured * hidden] are the context rows; `mask` covers [Q, S + Q] (dflash/masks.py).
        """
        context = self.hidden_norm(self.fc(features))
        for layer in self._typed_layers():
            block = layer(block, layer.self_attn.keys_values(context, context_rope), block_rope, mask)
        return self.norm(block)  # type: ignore[no-any-return]

    def _typed_layers(self) -> list[Layer]:
        return [cast("Layer", layer) for layer in self.layers]

    def draft(self, features: Tensor, block: Tensor, cache: ContextCache) -> Tensor:
        """One block [1, B, hidden] behind all context rows; `features` [1, new, captured * hidden] join the cache."""
        start = cache.length
        end = start + features.shape[1]
        positions = torch.arange(start, end + block.shape[1], device=block.device).unsqueeze(0)
        context_rope = self.rotary.at(positions[:, : end - start], block.dtype)
        block_rope = self.rotary.at(positions[:, end - start :], block.dtype)
        context = self.hidden_norm(self.fc(features))
        for index, layer in enumerate(self._typed_layers()):
            rows = cache.append(index, *layer.self_attn.keys_values(context, context_rope))
            block = layer(block, rows, block_rope, None)
        return self.norm(block)  # type: ignore[no-any-return]

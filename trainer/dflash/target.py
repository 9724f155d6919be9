"""The frozen target: a Hugging Face causal LM, its captured hidden states, and what the drafter shares with it."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dflash import smollm2
from dflash.drafter import RotaryTable
from dflash.errors import TrainerError

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_STATIC_ROPES = {"default", "linear", "llama3", "yarn"}
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier")


@dataclass(frozen=True)
class TargetConfig:
    """Keys of [target]."""

    model: str = smollm2.NAME
    """`smollm2-135m-instruct` (built in), a local folder, or a Hugging Face id."""
    dtype: str = "float32"
    layers: int = 5
    """How many layers are captured, evenly spaced by the published rule; ignored when `layer_ids` is given."""
    layer_ids: tuple[int, ...] = field(default=())
    """Decoder layers (0-based) whose outputs are captured."""


def torch_dtype(name: str, key: str = "dtype") -> torch.dtype:
    """The dtype of a config word; TrainerError with the `key` for an unknown one."""
    if name not in _DTYPES:
        raise TrainerError(f"{key} is no dtype: {name!r}; known are {', '.join(sorted(_DTYPES))}.")
    return _DTYPES[name]


def choose_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """Evenly spaced from the second layer to the third from the end, rounded half to even (z-lab/dflash, model.py)."""
    if count == 1:
        return (num_layers // 2,)
    first, last = 1, num_layers - 3
    if last - first + 1 < count:
        raise TrainerError(f"A target of {num_layers} layers has no {count} layers to capture between 1 and {last}.")
    return tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))


class Target:
    """A causal LM without gradients, with hooks that capture the chosen layers' outputs.

    Layer id i is `output_hidden_states[i + 1]` in transformers. Calls from several threads keep their captures apart.
    """

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.config: Any = self.model.config
        layers = _decoder_layers(self.model)
        refuse_unsupported(self.config)
        if 2 * self.model.model.rotary_emb.inv_freq.numel() != head_dim(self.config):
            raise TrainerError("Targets with partial rotary embeddings are not supported.")
        self.layer_ids = tuple(layer_ids)
        _check_layer_ids(self.layer_ids, len(layers))
        self.num_layers = len(layers)
        self._captured = threading.local()
        for index in self.layer_ids:
            layers[index].register_forward_hook(self._hook(index))
        self._trunk = self._cut(self.layer_ids[-1] + 1)
        parameters = inspect.signature(self.model.forward).parameters
        # transformers renamed the argument in 5.x and keeps the old name for a while.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def embedding(self) -> Tensor:
        """[V, H], frozen; the drafter embeds its blocks with it."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Tensor:
        """[V, H], frozen; the same tensor as the embedding when they are tied."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def final_norm(self) -> Tensor:
        """[H]: the weight of the target's last norm."""
        weight: Tensor = self.model.model.norm.weight
        return weight

    def rotary(self) -> RotaryTable:
        """The target's rotary angles, scaling included."""
        rotary = self.model.model.rotary_emb
        return RotaryTable(rotary.inv_freq, float(rotary.attention_scaling))

    def features(self, tokens: Tensor) -> Tensor:
        """[batch, S, captured * H] of right-padded tokens [batch, S]; stops after the last captured layer.

        Padding needs no mask: it stands behind every real token, and attention is causal.
        """
        self._captured.rows = {}
        self._trunk(input_ids=tokens, use_cache=False)
        return self._take()

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Logits [1, t, V] and features [1, t, captured * H] of tokens [1, t] that follow what the cache holds."""
        self._captured.rows = {}
        output = self.model(input_ids=tokens, use_cache=True, **{self._cache_argument: cache})
        return output.logits, self._take()

    def new_cache(self) -> Any:
        """An empty transformers DynamicCache for `step`."""
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def _hook(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def capture(_module: nn.Module, _inputs: Any, output: Any) -> None:
            rows = getattr(self._captured, "rows", None)
            if rows is not None:
                rows[index] = output[0] if isinstance(output, tuple) else output

        return capture

    def _take(self) -> Tensor:
        rows: dict[int, Tensor] = self._captured.rows
        self._captured.rows = None
        return torch.cat([rows[index] for index in self.layer_ids], dim=-1)

    def _cut(self, layers: int) -> Any:
        """The decoder with its first `layers` layers and no final norm, sharing all weights with the model."""
        trunk = copy.copy(self.model.model)
        trunk._modules = dict(trunk._modules)
        trunk.layers = nn.ModuleList(list(trunk.layers)[:layers])
        trunk.norm = nn.Identity()
        return trunk


def _decoder_layers(model: Any) -> Any:
    """The decoder layers at model.model.layers; TrainerError, naming the class, for models that are built otherwise."""
    trunk: Any = getattr(model, "model", None)
    missing = [name for name in ("layers", "norm", "rotary_emb") if getattr(trunk, name, None) is None]
    if missing:
        raise TrainerError(
            f"Targets of the class {type(model).__name__} are not supported: there is no model.{missing[0]}.",
            next="take a Llama- or Qwen-type target",
        )
    return trunk.layers


def head_dim(config: Any) -> int:
    """Size of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _check_layer_ids(ids: tuple[int, ...], num_layers: int) -> None:
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
        raise TrainerError(f"target.layer_ids must be distinct layers in ascending order, not {list(ids)}.")
    if ids[-1] >= num_layers - 1:
        # Its entry in output_hidden_states is normalised, the layer's own output is not: engines would disagree.
        raise TrainerError(f"target.layer_ids must stay below the last layer {num_layers - 1}, not {ids[-1]}.")


def refuse_unsupported(config: Any) -> None:
    """Raises TrainerError, naming the reason, for targets whose embedding, head or rope the drafter cannot share."""
    for key in _SCALES:
        if getattr(config, key, None) not in (None, 1, 1.0):
            raise TrainerError(f"The target scales or caps its activations or logits ({key}), which is not supported.")
    if str(getattr(config, "model_type", "")).startswith("gemma"):
        raise TrainerError("Gemma targets scale their embeddings, which is not supported.")
    # transformers 4.x has the factor beside the rope's parameters, 5.x among them.
    inner = getattr(config, "rope_parameters", None) or {}
    for factor in (getattr(config, "partial_rotary_factor", None), inner.get("partial_rotary_factor")):
        if float(factor or 1.0) != 1.0:
            raise TrainerError("Targets with partial rotary embeddings are not supported.")
    kind = rope_parameters(config)[1]
    if kind is not None and kind.get("rope_type", kind.get("type", "default")) not in _STATIC_ROPES:
        raise TrainerError(f"The target's rope scaling {kind} changes with the length, which is not supported.")


def rope_parameters(config: Any) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling (None when there is none), from transformers 4.x or 5.x configs."""
    merged = dict(getattr(config, "rope_parameters", None) or {})
    scaling = dict(getattr(config, "rope_scaling", None) or {})
    theta = merged.pop("rope_theta", None) or getattr(config, "rope_theta", None) or scaling.pop("rope_theta", None)
    scaling.pop("rope_theta", None)
    found = merged or scaling
    if theta is None:
        raise TrainerError("The target's config names no rope_theta.")
    if found.get("rope_type", found.get("type", "default")) == "default":
        return float(theta), None
    return float(theta), found


def locate(spec: str, say: Callable[[str], None]) -> str:
    """What from_pretrained gets for `target.model`; the built-in name is converted first when needed."""
    if spec == smollm2.NAME:
        return str(smollm2.ensure(say))
    if ("/" not in spec or spec.startswith((".", "/"))) and not Path(spec).is_dir():
        raise TrainerError(f"There is no target model at {spec!r}.", next=f'set target.model to "{smollm2.NAME}"')
    return spec


def load_tokenizer(location: str) -> Any:
    """The target's fast tokenizer; slow ones cannot be loaded by name with the same tokens everywhere."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(location)
    except (OSError, ValueError, KeyError) as error:
        raise TrainerError(f"The tokenizer of {location!r} cannot be loaded: {_first_line(error)}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise TrainerError(f"The target at {location} has no tokenizer.json (fast tokenizer).")
    return tokenizer


def load_target(config: TargetConfig, location: str, device: torch.device) -> Target:
    """Loads the target to a device. Raises TrainerError for targets that cannot be shared with a drafter."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(location, dtype=torch_dtype(config.dtype))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise TrainerError(f"The target model {location!r} cannot be loaded: {_first_line(error)}") from error
    ids = config.layer_ids or choose_layers(len(_decoder_layers(model)), config.layers)
    return Target(model.to(device), ids)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def stop_tokens(target: Target, tokenizer: Any) -> frozenset[int]:
    """Token ids that end an answer: the model's own list and the tokenizer's end of text."""
    found: set[int] = set()
    generation = getattr(target.model, "generation_config", None)
    for value in (
        getattr(generation, "eos_token_id", None),
        getattr(target.config, "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def choose_mask_token(tokenizer: Any, vocab_size: int, wanted: int | None) -> int:
    """The mask token: the one asked for, the tokenizer's own, the first spare row, or a special token not in use.

    Its embedding row must exist in the target's table and the token must never appear in text (SpecForge's search
    order, without its last resorts pad, eos and unk, which do appear).
    """
    if wanted is not None:
        if not 0 <= wanted < vocab_size:
            raise TrainerError(f"drafter.mask_token_id {wanted} has no row in the target's table of {vocab_size}.")
        return wanted
    own = getattr(tokenizer, "mask_token_id", None)
    if own is not None and own < vocab_size:
        return int(own)
    if len(tokenizer) < vocab_size:
        return len(tokenizer)
    raise TrainerError(
        "The target has no mask token and no spare embedding row.",
        next="set drafter.mask_token_id to the id of a special token that never appears in the data",
    )

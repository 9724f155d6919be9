"""The whole configuration: a TOML recipe plus dotted overrides, checked key by key."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from dflash.anchors import AnchorConfig
from dflash.compile import CompileConfig
from dflash.data import DataConfig
from dflash.errors import TrainerError
from dflash.evaluate import EvaluationConfig
from dflash.flat import OptimizerConfig
from dflash.loss import LossConfig
from dflash.masks import TILE
from dflash.smollm2 import NAME
from dflash.target import TargetConfig, torch_dtype
from dflash.topology import TopologyConfig, parse_device

C = TypeVar("C")


@dataclass(frozen=True)
class DrafterConfig:
    """Keys of [drafter]. Heads and widths are the target's."""

    layers: int = 5
    block_size: int = 16
    mask_token_id: int | None = None
    """A token that never appears in text; without it the tokenizer's own, or the first spare embedding row."""
    compute_dtype: str = "float32"
    """float32, or bfloat16 with float32 masters."""
    initializer_range: float = 0.02
    """Standard deviation of the linear weights at the start; about 1 / sqrt(hidden size) is right."""
    initial_norm: float = 1.0
    """Every weight of the last norm at the start; 0 copies the target's last norm. Where a head with large rows makes
    the first loss far larger than ln(vocabulary), a smaller value brings it there."""


@dataclass(frozen=True)
class RunConfig:
    """Keys of [run]."""

    steps: int = 100
    rows: int = 1
    """Sequences per drafter and step."""
    seed: int = 0
    log_every: int = 10
    save_every: int = 0
    """Steps between checkpoints; 0 saves at the end only."""
    checkpoint_dtype: str = "bfloat16"
    """Of model.safetensors; the published drafters are bfloat16. The float32 masters are saved beside it."""

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` (from 1) on the way; the last step's is made when all have ended."""
        return self.save_every > 0 and step % self.save_every == 0 and step < self.steps


@dataclass(frozen=True)
class Config:
    """A run. Each section is documented where its owner is."""

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    data: DataConfig = field(default_factory=DataConfig)
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def check(self) -> None:
        """Raises TrainerError for values that cannot work together, before anything is loaded."""
        self.compile.check()
        self.topology.check()
        dtypes = {
            "target.dtype": self.target.dtype,
            "drafter.compute_dtype": self.drafter.compute_dtype,
            "run.checkpoint_dtype": self.run.checkpoint_dtype,
        }
        for key, name in dtypes.items():
            torch_dtype(name, key)
        on_cuda = any(parse_device(name).type == "cuda" for name in self.topology.drafters)
        if on_cuda and self.compile.enabled and self.data.max_length % TILE:
            raise TrainerError(
                f"data.max_length must be a multiple of {TILE} for drafters on CUDA, not {self.data.max_length}.",
                next=f"set data.max_length = {-(-self.data.max_length // TILE) * TILE}",
            )
        if not 2 <= self.drafter.block_size <= 64:
            raise TrainerError(f"drafter.block_size must be between 2 and 64, not {self.drafter.block_size}.")
        if not 1 <= self.anchors.per_sequence <= self.data.max_length:
            raise TrainerError(
                f"anchors.per_sequence ({self.anchors.per_sequence}) must be between 1 and data.max_length"
                f" ({self.data.max_length})."
            )
        positive = {
            "drafter.layers": self.drafter.layers,
            "run.steps": self.run.steps,
            "run.rows": self.run.rows,
            "run.log_every": self.run.log_every,
            "loss.chunk_slots": self.loss.chunk_slots,
        }
        for key, value in positive.items():
            if value < 1:
                raise TrainerError(f"{key} must be at least 1, not {value}.")
        not_negative = {
            "run.save_every": self.run.save_every,
            "evaluation.prompts": self.evaluation.prompts,
            "topology.cpu_threads": self.topology.cpu_threads,
        }
        for key, value in not_negative.items():
            if value < 0:
                raise TrainerError(f"{key} must be at least 0, not {value}.")
        if not self.data.train:
            raise TrainerError("data.train is not set.", next="name a JSON lines file in the recipe or as data.train=…")

    def resolved(self) -> dict[str, Any]:
        """Plain data for config.json."""
        return dataclasses.asdict(self)


def load_config(path: Path, overrides: list[str]) -> Config:
    """Reads a recipe and applies overrides such as `run.steps=5`; paths become absolute.

    Raises TrainerError with the key's path for unknown keys (and the nearest known one) and wrong types.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"The recipe {path} cannot be read: {error.strerror}.", next="check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainerError(f"The recipe {path} is not TOML: {error}.") from error
    _absolute_paths(tree, path.resolve().parent)
    for override in overrides:
        changed = _parse_override(override)
        _absolute_paths(changed, Path.cwd())
        _merge(tree, changed)
    config = _build(Config, tree, "")
    config.check()
    return config


def _absolute_paths(tree: dict[str, Any], base: Path) -> None:
    target = tree.get("target")
    if isinstance(target, dict) and isinstance(target.get("model"), str) and _is_folder(target["model"], base):
        target["model"] = str((base / target["model"]).resolve())
    data = tree.get("data")
    for key in ("train", "heldout"):
        if isinstance(data, dict) and isinstance(data.get(key), str) and data[key]:
            data[key] = str((base / data[key]).resolve())


def _is_folder(model: str, base: Path) -> bool:
    """Hugging Face ids look like relative paths; one is meant with a leading dot, or where there is such a folder."""
    return model.startswith(("./", "../")) or (model not in ("", NAME) and (base / model).is_dir())


def _parse_override(text: str) -> dict[str, Any]:
    """`a.b=1` -> {"a": {"b": 1}}; a value that is no TOML is taken as a string."""
    key, sign, value = text.partition("=")
    parts = key.strip().split(".")
    if not sign or not all(parts):
        raise TrainerError(f"The override {text!r} does not have the form section.key=value.")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(parts):
        parsed = {part: parsed}
    return cast("dict[str, Any]", parsed)


def _merge(tree: dict[str, Any], changed: dict[str, Any]) -> None:
    for key, value in changed.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _build(kind: type[C], tree: Any, path: str) -> C:
    if not isinstance(tree, dict):
        raise TrainerError(f"{path} must be a table, not {_word(tree)}.")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{path}.{key}" if path else key
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(hints))}"
            raise TrainerError(f"Unknown key {place!r}.", next=hint)
        hint_type = hints[key]
        if dataclasses.is_dataclass(hint_type):
            values[key] = _build(cast("type[Any]", hint_type), value, place)
        else:
            values[key] = _value(hint_type, value, place)
    return kind(**values)


def _value(kind: Any, value: Any, place: str) -> Any:
    """`value` as the annotated type; int passes for float, nothing else is converted."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        kind = next(argument for argument in arguments if argument is not type(None))
        return _value(kind, value, place)
    if origin is dict:
        if not isinstance(value, dict):
            raise TrainerError(f"{place} must be a table, not {_word(value)}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TrainerError(f"{place} must be a list, not {_word(value)}.")
        return tuple(_value(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(value))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TrainerError(f"{place} must be of type {kind.__name__}, not {_word(value)}.")
    return value


def _word(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"

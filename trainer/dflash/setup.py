"""From a configuration to everything that a run needs: targets, data, drafters, all made in the main thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash.config import Config
from dflash.data import RowStore, load_samples
from dflash.drafter import Drafter, DrafterShape
from dflash.errors import TrainerError
from dflash.flat import FlatParameters
from dflash.loss import default_gamma
from dflash.step import StepPlan, TrainingStep
from dflash.target import (
    Target,
    choose_mask_token,
    head_dim,
    load_target,
    load_tokenizer,
    locate,
    stop_tokens,
    torch_dtype,
)
from dflash.tickets import TicketPlan
from dflash.topology import parse_device

Say = Callable[[str], None]


@dataclass
class DrafterUnit:
    """One drafter with its own parameters, optimizer and compiled step."""

    name: str
    device: torch.device
    drafter: Drafter
    parameters: FlatParameters
    step: TrainingStep


@dataclass
class Loaded:
    """The target side: models by device, tokenizer, data."""

    targets: dict[torch.device, Target]
    tokenizer: Any
    mask_token: int
    stops: frozenset[int]
    prompts: dict[str, list[list[int]]]
    """What evaluation asks, by the name of the set: memorised, heldout."""
    store: RowStore
    """The samples to train on."""

    @property
    def target(self) -> Target:
        """The first target; the one that evaluation uses."""
        return next(iter(self.targets.values()))


def _never() -> None:
    return None


def load(config: Config, say: Say, poll: Callable[[], None] = _never) -> Loaded:
    """Loads one target per device and the data files; `poll` is called between the parts and may raise to give up."""
    location = locate(config.target.model, say)
    tokenizer = load_tokenizer(location)
    targets: dict[torch.device, Target] = {}
    for device in dict.fromkeys(parse_device(name) for name in config.topology.targets):
        say(f"target {config.target.model}: loading on {device} in {config.target.dtype}")
        targets[device] = load_target(config.target, location, device)
        poll()
    target = next(iter(targets.values()))
    mask_token = choose_mask_token(tokenizer, target.embedding.shape[0], config.drafter.mask_token_id)
    train = load_samples(config.data.train, tokenizer, config.data, say)
    poll()
    heldout = load_samples(config.data.heldout, tokenizer, config.data, say) if config.data.heldout else []
    poll()
    for sample in train:
        if mask_token in sample.tokens:
            raise TrainerError(f"The mask token {mask_token} appears in {config.data.train}; choose another one.")
    stops = stop_tokens(target, tokenizer)
    pad = getattr(tokenizer, "pad_token_id", None)
    store = RowStore(train, config.data.max_length, pad if pad is not None else min(stops, default=0))
    say(
        f"target: {target.num_layers} layers, captured {list(target.layer_ids)}, mask token {mask_token}; "
        f"data: {len(train)} samples to train on, {len(heldout)} held out"
    )
    prompts = {
        name: [sample.prompt for sample in samples[: config.evaluation.prompts]]
        for name, samples in (("memorised", train), ("heldout", heldout))
    }
    return Loaded(targets, tokenizer, mask_token, stops, prompts, store)


def drafter_shape(config: Config, target: Target) -> DrafterShape:
    """The drafter's sizes: the target's heads and widths, the recipe's layers and block."""
    own = target.config
    return DrafterShape(
        hidden_size=own.hidden_size,
        intermediate_size=own.intermediate_size,
        num_layers=config.drafter.layers,
        num_heads=own.num_attention_heads,
        num_kv_heads=own.num_key_value_heads,
        head_dim=head_dim(own),
        num_captured=len(target.layer_ids),
        block_size=config.drafter.block_size,
        rms_norm_eps=own.rms_norm_eps,
        initializer_range=config.drafter.initializer_range,
    )


def ticket_plan(config: Config, samples: int) -> TicketPlan:
    """The order of work of this configuration."""
    return TicketPlan(
        samples=samples,
        drafters=len(config.topology.drafters),
        rows=config.run.rows,
        targets=len(config.topology.targets),
        seed=config.run.seed,
    )


def build_drafters(config: Config, loaded: Loaded, poll: Callable[[], None] = _never) -> list[DrafterUnit]:
    """Equal drafters, one per entry of topology.drafters; nothing is compiled yet. `poll` is called before each."""
    shared: dict[torch.device, tuple[Tensor, Tensor]] = {}
    units: list[DrafterUnit] = []
    dtype = torch_dtype(config.drafter.compute_dtype)
    shape = drafter_shape(config, loaded.target)
    for rank, name in enumerate(config.topology.drafters):
        poll()
        device = parse_device(name)
        if device not in shared:
            shared[device] = _frozen_tables(loaded, device, dtype)
        embedding, head = shared[device]
        drafter = _bare_drafter(shape, loaded.target, device)
        if not units:
            drafter.initialise(config.run.seed, config.drafter.initial_norm or loaded.target.final_norm.cpu())
        parameters = FlatParameters(drafter, dtype, config.optimizer)
        if units:
            parameters.copy_from(units[0].parameters)
        worker = f"drafter-{rank}"
        plan = StepPlan(
            rows=config.run.rows,
            length=config.data.max_length,
            anchors=config.anchors.per_sequence,
            block_size=shape.block_size,
            mask_token=loaded.mask_token,
            gamma=config.loss.gamma or default_gamma(shape.block_size),
            chunk_slots=config.loss.chunk_slots,
            seed=config.run.seed,
            flex=device.type == "cuda" and config.compile.enabled,
        )
        step = TrainingStep(drafter, parameters, embedding, head, plan)
        units.append(DrafterUnit(worker, device, drafter, parameters, step))
    return units


def _bare_drafter(shape: DrafterShape, target: Target, device: torch.device) -> Drafter:
    """A drafter whose weights are not set: torch's own random start would take long and be thrown away."""
    rotary = target.rotary()
    with torch.device("meta"):
        drafter = Drafter(shape, rotary)
    drafter.to_empty(device=device)
    drafter.rotary = target.rotary().to(device)  # to_empty emptied the one inside
    return drafter


def _frozen_tables(loaded: Loaded, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Embedding and head on a drafter's device in its compute dtype; the target's own tensors where they fit."""
    target = loaded.targets.get(device, loaded.target)
    embedding = target.embedding.detach().to(device, dtype)
    tied = target.head.data_ptr() == target.embedding.data_ptr()
    return embedding, embedding if tied else target.head.detach().to(device, dtype)

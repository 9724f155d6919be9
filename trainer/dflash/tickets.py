"""Tickets: which worker trains on which sample at which step, as a function of a number and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dflash.anchors import integer_hash

_SHUFFLE = 0x5DEECE66
"""Keeps the shuffle's hash apart from the anchors'."""


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, samples: int) -> Tensor:
    """The shuffle of an epoch; kept, since every batch of the epoch asks, and targets may be an epoch ahead."""
    words = [torch.tensor(word) for word in (seed, epoch, _SHUFFLE)]
    places = torch.arange(samples)
    # The place below the hash makes every key unique: the order cannot depend on how ties are sorted.
    return ((integer_hash(*words, places) << 30) | places).argsort()


@dataclass(frozen=True)
class Ticket:
    """Ticket k is row `row` of drafter `drafter`'s batch at step `step` (all from 0)."""

    step: int
    drafter: int
    row: int


@dataclass(frozen=True)
class TicketPlan:
    """A run's order of work. Targets may be of any number and speed: who makes a batch is fixed here as well."""

    samples: int
    drafters: int
    rows: int
    targets: int
    seed: int

    @property
    def per_step(self) -> int:
        """Samples that one optimizer step consumes."""
        return self.drafters * self.rows

    def ticket(self, k: int) -> Ticket:
        """Where ticket k is trained."""
        step, rest = divmod(k, self.per_step)
        return Ticket(step, *divmod(rest, self.rows))

    def batch(self, step: int, drafter: int) -> tuple[Tensor, Tensor]:
        """(epochs [rows], sample indices [rows]) of a drafter's batch; every epoch is a shuffle of all samples."""
        first = step * self.per_step + drafter * self.rows
        visits = [divmod(k, self.samples) for k in range(first, first + self.rows)]
        epochs = torch.tensor([epoch for epoch, _ in visits])
        return epochs, torch.stack([_order(self.seed, epoch, self.samples)[place] for epoch, place in visits])

    def target_of(self, step: int, drafter: int) -> int:
        """Which target thread makes this batch: batches are dealt round."""
        return (step * self.drafters + drafter) % self.targets

    def made_by(self, target: int, first_step: int, last_step: int) -> list[tuple[int, int]]:
        """(step, drafter) of every batch that a target makes, in the order that it makes them."""
        return [
            (step, drafter)
            for step in range(first_step, last_step)
            for drafter in range(self.drafters)
            if self.target_of(step, drafter) == target
        ]

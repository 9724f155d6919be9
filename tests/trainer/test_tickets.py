"""Who trains on what is arithmetic."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash import tickets
from dflash.tickets import Ticket, TicketPlan


def plan(**changes: int) -> TicketPlan:
    return TicketPlan(**{"samples": 8, "drafters": 2, "rows": 1, "targets": 1, "seed": 0, **changes})


def test_a_ticket_has_one_place() -> None:
    wide = plan(drafters=3, rows=2)
    assert [wide.ticket(k) for k in (0, 1, 2, 5, 6, 11)] == [
        Ticket(0, 0, 0),
        Ticket(0, 0, 1),
        Ticket(0, 1, 0),
        Ticket(0, 2, 1),
        Ticket(1, 0, 0),
        Ticket(1, 2, 1),
    ]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 13), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5))
def test_the_samples_of_a_step_do_not_depend_on_the_topology(samples: int, drafters: int, rows: int, seed: int) -> None:
    split = plan(samples=samples, drafters=drafters, rows=rows, seed=seed)
    whole = plan(samples=samples, drafters=1, rows=drafters * rows, seed=seed)
    for step in range(4):
        parts = [split.batch(step, drafter) for drafter in range(drafters)]
        epochs, indices = whole.batch(step, 0)
        assert torch.equal(torch.cat([epoch for epoch, _ in parts]), epochs)
        assert torch.equal(torch.cat([index for _, index in parts]), indices)


def test_every_epoch_visits_every_sample_once_in_an_order_of_its_own() -> None:
    one = plan(samples=20, drafters=1, rows=20)
    orders = [tuple(one.batch(step, 0)[1].tolist()) for step in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len(set(orders)) == 3
    assert tuple(plan(samples=20, drafters=1, rows=20, seed=1).batch(0, 0)[1].tolist()) != orders[0]


def test_every_batch_has_one_maker_and_targets_share_alike() -> None:
    shared = plan(drafters=3, targets=2)
    made = [shared.made_by(target, 0, 10) for target in range(2)]
    assert sorted(made[0] + made[1]) == [(step, drafter) for step in range(10) for drafter in range(3)]
    assert [len(batches) for batches in made] == [15, 15]
    for target, batches in enumerate(made):
        assert batches == sorted(batches), "in the order in which drafters ask"
        assert all(shared.target_of(*batch) == target for batch in batches)


def test_an_epoch_is_sorted_once_and_not_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts: list[int] = []
    real = tickets.integer_hash
    monkeypatch.setattr(tickets, "integer_hash", lambda *words: (sorts.append(1), real(*words))[1])
    long = plan(samples=20, seed=987)
    for step in range(15):
        for drafter in range(2):
            long.batch(step, drafter)
    assert len(sorts) == 2, "thirty samples lie in two epochs"


def test_samples_are_visited_equally_often() -> None:
    odd = plan(samples=7, drafters=2)
    seen = Counter(int(odd.batch(step, drafter)[1]) for step in range(21) for drafter in range(2))
    assert set(seen.values()) == {6}

"""Threads that fail together."""

from __future__ import annotations

import threading
import time

import pytest

from dflash.workers import Cancelled, Channel, Crew, WorkerFailed


def test_a_channel_keeps_order_and_blocks_when_full() -> None:
    channel: Channel[int] = Channel(2)
    got: list[int] = []

    def produce() -> None:
        for item in range(50):
            channel.put(item)

    thread = threading.Thread(target=produce)
    thread.start()
    while channel.depth() < 2:
        time.sleep(0.001)
    assert thread.is_alive(), "the producer waits for room"
    for _ in range(50):
        assert channel.depth() <= 2
        got.append(channel.get())
    thread.join(timeout=10)
    assert got == list(range(50))


def test_the_first_exception_cancels_all_and_is_the_one_reported() -> None:
    channel: Channel[int] = Channel(1)
    crew = Crew([channel.cancel])
    ended = threading.Event()

    def waits() -> None:
        try:
            channel.get()
        except Cancelled:
            ended.set()
            raise

    def fails() -> None:
        raise RuntimeError("the disk is on fire")

    crew.start("patient", waits)
    crew.start("drafter-7", fails)
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match="drafter-7 failed: RuntimeError: the disk is on fire") as caught:
        crew.wait(30)
    assert ended.wait(10)
    assert time.monotonic() - began < 10
    assert caught.value.worker == "drafter-7"
    assert caught.value.trace.count("Traceback") == 1
    assert "in fails" in caught.value.trace


def test_waiting_ends_when_all_ended_and_names_who_did_not() -> None:
    crew = Crew([])
    release = threading.Event()
    crew.start("slow", lambda: release.wait(30) and None)
    assert not crew.wait(0.01)
    assert crew.alive() == ["slow"]
    release.set()
    deadline = time.monotonic() + 10
    while not crew.wait(0.1):
        assert time.monotonic() < deadline
    assert crew.alive() == []

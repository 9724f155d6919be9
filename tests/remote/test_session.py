"""The session itself: greeting, lock, cleaning up, and ends of every kind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest

from ctdeploy.errors import HostError, LockedError
from ctdeploy.remote.session import Session
from ctdeploy.transport.base import Output
from tests.support.box import SCRIPT, Box, bundle, manifest
from tests.support.container import until
from tests.support.local import local_place


def test_the_lock_names_its_holder_and_dies_with_it(box: Box):
    with box.session("alice@laptop") as first, box.session("bob@laptop") as second:
        first.call("lock", why="push app", wait_s=0)
        with pytest.raises(LockedError, match="alice@laptop"):
            second.call("lock", why="push app", wait_s=0.2)
        os.kill(box.transport.processes[0].popen.pid, signal.SIGKILL)
        second.call("lock", why="push app", wait_s=5)


def test_a_session_whose_client_is_gone_cleans_up_and_ends(box: Box):
    session = box.session()
    session.call("lock", why="test", wait_s=0, incoming=str(box.folder / "landed"))
    (box.folder / "landed").write_text("a bundle")
    session.call("place", manifest=manifest(main=SCRIPT), bundle=bundle(box.folder, SCRIPT))
    process = box.transport.processes[0]
    process.popen.stdin.close()  # as sshd does when the connection is gone
    until(lambda: process.popen.poll() is not None)
    assert process.popen.returncode == 0
    assert not (box.folder / "landed").exists()
    assert list((box.dest / "app" / "releases").iterdir()) == []


def test_a_silent_client_is_given_up(box: Box, monkeypatch: pytest.MonkeyPatch):
    from ctdeploy.remote import payload

    source = payload.modules().replace(b"silence_s: float = 60.0", b"silence_s: float = 0.3")
    assert source != payload.modules()
    monkeypatch.setattr(payload, "modules", lambda: source)
    box.session().call("lock", why="test", wait_s=0)
    until(lambda: box.transport.processes[0].popen.poll() is not None)
    assert not (box.dest / "app" / "lock" / "holder.json").exists()


def test_what_a_killed_session_left_is_swept_by_the_next_one(box: Box):
    session = box.session()
    session.call("lock", why="test", wait_s=0)
    session.call("place", manifest=manifest(main=SCRIPT), bundle=bundle(box.folder, SCRIPT))
    os.kill(box.transport.processes[0].popen.pid, signal.SIGKILL)
    releases = box.dest / "app" / "releases"
    assert [path.name.startswith(".incoming-") for path in releases.iterdir()] == [True]
    with box.session() as second:
        second.call("lock", why="test", wait_s=5)
        assert list(releases.iterdir()) == []


def test_a_newer_layout_is_refused_in_one_sentence(box: Box):
    box.dest.mkdir()
    (box.dest / "layout").write_text("2\n")
    session = Session(box.transport, local_place(box.dest, sys.executable), "app", "t")
    with session, pytest.raises(HostError, match="newer ctdeploy"):
        session.hello()


def test_noise_before_the_first_frame_is_no_answer(box: Box, tmp_path: Path):
    loud = tmp_path / "loud-python"
    loud.write_text(f"#!/bin/sh\necho 'Welcome! 12 34'\nexec {sys.executable} \"$@\"\n")
    loud.chmod(0o755)
    with Session(box.transport, local_place(box.dest, str(loud)), "app", "t") as session:
        assert session.hello().python == tuple(sys.version_info[:3])


def test_a_python_that_is_not_there_is_named_with_the_way_out(box: Box):
    session = Session(box.transport, local_place(box.dest, "/opt/none/bin/python"), "app", "t")
    with session, pytest.raises(HostError, match="no usable /opt/none/bin/python") as caught:
        session.hello()
    assert "python =" in (caught.value.next or "")


def test_a_holder_that_is_gone_is_not_shown_as_one(box: Box):
    box.deploy(main=SCRIPT)
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        with box.session() as other:
            assert other.call("status")["lock"]["who"] == "tester"
        os.kill(box.transport.processes[-2].popen.pid, signal.SIGKILL)
        box.transport.processes[-2].popen.wait()
    assert (box.dest / "app/lock/holder.json").exists()
    with box.session() as session:
        assert session.call("status")["lock"] is None


def test_a_push_that_does_not_get_the_lock_takes_its_bundle_with_it(box: Box):
    landed = box.folder / "landed"
    landed.write_text("a bundle")
    with box.session("alice") as first, box.session("bob") as second:
        first.call("lock", why="push", wait_s=0)
        with pytest.raises(LockedError):
            second.call("lock", why="push", wait_s=0, incoming=str(landed))
    assert not landed.exists()


class CutProcess:
    """A command that ends in the middle of an answer, as when its container is stopped."""

    exit_code = 137

    def __init__(self) -> None:
        self.sent = b""
        self.reads = 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def read(self, timeout_s: float) -> Output:
        self.reads += 1
        assert self.reads < 100, "spins"
        nonce = self.sent.split(b'"nonce": "')[1].split(b'"')[0]
        return Output(nonce + b" 100 0\n{", b"", ended=False) if self.reads == 1 else Output(b"", b"", ended=True)

    def close_stdin(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_end_in_the_middle_of_an_answer_is_told_as_what_it_is():
    transport = mock.Mock(run=lambda argv: CutProcess())
    session = Session(transport, local_place(Path("/opt"), "/usr/bin/python3"), "app", "t")
    with session, pytest.raises(HostError, match="was killed"):
        session.hello()


def test_a_program_that_is_no_python_is_named(box: Box):
    session = Session(box.transport, local_place(box.dest, "/bin/true"), "app", "t")
    with session, pytest.raises(HostError, match="did not behave as Python"):
        session.hello()

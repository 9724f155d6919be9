"""Runs in a container: launch, state, log, stop. Real processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctdeploy.errors import MissingError, UsageError
from ctdeploy.remote.payloads.runs import Runs
from tests.support.box import SCRIPT, Box
from tests.support.container import until


def test_a_run_gets_the_contract_and_nothing_of_our_environment(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_THE_LAPTOP", "x")
    stored = box.deploy(main=b"import json, os, sys\nprint(json.dumps([dict(os.environ), os.getcwd(), sys.argv]))\n")
    with box.session() as session:
        run = box.launch(session, stored, args=["--a b", "ä"], env={"PATH": "/usr/bin:/bin", "MINE": "1"})
        assert run["run"] == "r1"
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "done")
        _, log = session.call_with_data("log", run="r1", offset=0)
    environ, cwd, argv = json.loads(log)
    assert cwd == stored["path"]
    assert argv == [f"{stored['path']}/main.py", "--a b", "ä"]
    assert environ["CTDEPLOY_RUN_DIR"] == f"{box.dest}/app/runs/r1"
    assert environ["CTDEPLOY_RUN_ID"] == "r1"
    assert environ["CTDEPLOY_RELEASE"] == "1"
    assert environ["PYTHONUNBUFFERED"] == "1"
    assert environ["PYTHONPYCACHEPREFIX"].startswith(environ["CTDEPLOY_RUN_DIR"])
    assert environ["MINE"] == "1"
    assert environ["HOME"] == "/root"
    assert not [name for name in environ if "SECRET" in name or name.startswith("SSH_")]
    assert (box.dest / "app/runs/r1/env").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("code", "state", "facts"),
    [
        (b"pass", "done", {"exit_code": 0}),
        (b"raise SystemExit(3)", "failed", {"exit_code": 3}),
        (b"import os\nos.kill(os.getpid(), 9)", "failed", {"signal": "SIGKILL"}),
        (b"import os\nos.abort()", "failed", {"signal": "SIGABRT"}),
    ],
)
def test_status_json_tells_how_a_run_ended(box: Box, code: bytes, state: str, facts: dict[str, Any]):
    stored = box.deploy(main=code)
    with box.session() as session:
        box.launch(session, stored)
        run = until(lambda: (got := session.call("wait", run="r1", wait_s=1)["run"])["state"] == state and got)
    assert {key: run[key] for key in facts} == facts


def test_a_run_survives_the_session_that_started_it(box: Box):
    stored = box.deploy(main=b"import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with box.session() as session:
        box.launch(session, stored)
    with box.session() as session:
        until(lambda: session.call("status", run="r1")["runs"][0]["log_size"] == 3)
        assert session.call("status", run="r1")["runs"][0]["state"] == "running"
        session.call("stop", run="r1", grace_s=1)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "stopped")


CHILDREN = b"""
import os, signal, subprocess, sys, time
stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print('stubborn', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


def test_stop_ends_the_whole_tree_also_sessions_of_their_own_and_those_that_ignore_sigterm(box: Box):
    stored = box.deploy(main=CHILDREN)
    with box.session() as session:
        box.launch(session, stored)
        until(lambda: session.call("status", run="r1")["runs"][0]["log_size"] > 0)
        session.call("stop", run="r1", grace_s=0.5)
        answer = until(lambda: (got := session.call("wait", run="r1", wait_s=1))["run"]["state"] == "stopped" and got)
    assert answer["left"] == []
    assert len(answer["run"]["left"]) == 1
    assert "stubborn" in answer["run"]["left"][0]


def test_stop_works_when_the_supervisor_was_killed(box: Box):
    stored = box.deploy(main=b"import time\ntime.sleep(600)\n")
    with box.session() as session:
        run = box.launch(session, stored)
        supervisor = json.loads((Path(run["path"]) / "status.json").read_text())["identity"]["supervisor"]["pid"]
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not session.call("status", run="r1")["runs"][0]["supervised"])
        assert session.call("status", run="r1")["runs"][0]["state"] == "running"
        session.call("stop", run="r1", grace_s=1)
        answer = session.call("wait", run="r1", wait_s=1)
    assert answer["run"]["state"] == "stopped"
    assert answer["run"]["note"] == "its supervisor was gone"
    assert answer["left"] == []


def test_a_pid_that_was_given_to_another_process_is_not_the_run(box: Box):
    stored = box.deploy(main=b"pass")
    with box.session() as session:
        run = box.launch(session, stored)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "done")
        path = Path(run["path"]) / "status.json"
        status = json.loads(path.read_text())
        status["state"] = "running"
        for who in ("supervisor", "child"):
            status["identity"][who] = {"pid": os.getpid(), "start": 1}
        path.write_text(json.dumps(status))
        assert session.call("status", run="r1")["runs"][0]["state"] == "lost"


def test_run_ids_are_ordered_as_numbers(box: Box):
    stored = box.deploy(main=b"pass")
    for number in range(1, 12):
        (box.dest / "app/runs" / f"r{number}").mkdir(parents=True)
    with box.session() as session:
        assert box.launch(session, stored)["run"] == "r12"
        assert session.call("status", newest=2)["runs"][-1]["run"] == "r12"


def test_a_missing_run_is_named_with_the_newest_there_is(box: Box):
    stored = box.deploy(main=b"pass")
    with box.session() as session:
        with pytest.raises(MissingError, match="no run here yet"):
            session.call("log", run=None, offset=0)
        box.launch(session, stored)
        with pytest.raises(MissingError, match="no run r9 here; the newest is r1"):
            session.call("log", run="r9", offset=0)


def test_a_log_that_was_cut_is_reported_as_a_gap(box: Box):
    stored = box.deploy(main=b"print('x' * 99)")
    with box.session() as session:
        run = box.launch(session, stored)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "done")
        (Path(run["path"]) / "log").write_bytes(b"short\n")
        answer, data = session.call_with_data("log", run="r1", offset=100)
    assert (answer["offset"], answer["truncated"], data) == (0, 94, b"")


def test_a_stop_on_a_full_disk_still_ends_the_run_and_its_verdict_is_not_lost(box: Box):
    box.dest.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", box.dest], check=True)
    try:
        stored = box.deploy(main=b"import time\ntime.sleep(600)\n")
        with box.session() as session:
            run = box.launch(session, stored)
            filler = box.dest / "filler"
            with contextlib.suppress(OSError):
                filler.write_bytes(b"x" * 10_000_000)
            with contextlib.suppress(OSError), (box.dest / "rest").open("ab", buffering=0) as rest:
                while True:
                    rest.write(b"x")
            with pytest.raises(OSError, match="No space"):
                (box.dest / "proof").write_bytes(b"x" * 4096)
            session.call("stop", run="r1", grace_s=0.5)
            until(lambda: not (Path("/proc") / str(run["pid"])).exists())
            filler.unlink()
            until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "stopped")
    finally:
        subprocess.run(["umount", "-l", box.dest], check=True)


def test_stop_ends_what_a_lost_run_left_behind(box: Box):
    stored = box.deploy(main=CHILDREN)
    with box.session() as session:
        run = box.launch(session, stored)
        until(lambda: session.call("status", run="r1")["runs"][0]["log_size"] > 0)
        identity = json.loads((Path(run["path"]) / "status.json").read_text())["identity"]
        for who in ("supervisor", "child"):
            os.kill(identity[who]["pid"], signal.SIGKILL)
        until(lambda: session.call("status", run="r1")["runs"][0]["state"] == "lost")
        assert session.call("wait", run="r1", wait_s=0)["left"]
        session.call("stop", run="r1", grace_s=0.3)
        assert session.call("wait", run="r1", wait_s=0)["left"] == []


def test_a_second_stop_shortens_the_grace_of_the_first(box: Box):
    stored = box.deploy(
        main=b"import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    with box.session() as session:
        box.launch(session, stored)
        until(lambda: session.call("status", run="r1")["runs"][0]["log_size"] > 0)
        session.call("stop", run="r1", grace_s=600)
        assert session.call("wait", run="r1", wait_s=0.5)["run"]["state"] == "stopping"
        session.call("stop", run="r1", grace_s=0)
        run = until(lambda: (got := session.call("wait", run="r1", wait_s=1)["run"])["state"] == "stopped" and got)
    assert run["signal"] == "SIGKILL"


def test_a_stop_means_the_run_that_lives_and_never_guesses_between_two(box: Box):
    sleeper = b"import sys, time\ntime.sleep(float(sys.argv[1]))\n"
    stored = box.deploy(main=sleeper)
    with box.session() as session:
        box.launch(session, stored, args=["600"])
        box.launch(session, stored, args=["0"])
        until(lambda: session.call("wait", run="r2", wait_s=1)["run"]["state"] == "done")
        assert session.call("stop", run=None, grace_s=1)["run"]["run"] == "r1"
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "stopped")
        box.launch(session, stored, args=["600"])
        box.launch(session, stored, args=["600"])
        with pytest.raises(UsageError, match="r3, r4"):
            session.call("stop", run=None, grace_s=1)
        for name in ("r3", "r4"):
            session.call("stop", run=name, grace_s=1)
            until(lambda name=name: session.call("wait", run=name, wait_s=1)["run"]["state"] == "stopped")


def test_a_run_that_cannot_be_started_is_failed_at_once_with_the_reason(box: Box):
    stored = box.deploy(main=b"pass")
    (Path(stored["path"]) / "main.py").unlink()
    Path(stored["path"]).rename(box.folder / "elsewhere")
    with box.session() as session:
        run = box.launch(session, stored)
    assert run["state"] == "failed"
    assert "could not start" in run["reason"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(st.sampled_from([b"a", b"\n", b"long " * 3, b"\r"]), max_size=60).map(b"".join),
    lines=st.integers(0, 20),
)
def test_the_last_lines_of_a_log_are_those_that_tail_shows(tmp_path: Path, text: bytes, lines: int):
    (tmp_path / "runs" / "r1").mkdir(parents=True, exist_ok=True)
    log = tmp_path / "runs" / "r1" / "log"
    log.write_bytes(text)
    runs = Runs(str(tmp_path), "app")
    with mock.patch("ctdeploy.remote.payloads.runs.BLOCK", 7):
        start, end = runs.last_lines("r1", lines)
    tail = subprocess.run(["tail", "-n", str(lines), log], capture_output=True, check=True).stdout
    assert text[start:end] == tail


def test_a_run_id_is_never_given_twice_and_an_old_supervisor_never_writes_into_a_new_run(box: Box):
    stored = box.deploy(
        main=b"import os, shutil, sys, time\n"
        b"if sys.argv[1] == 'gone':\n    shutil.rmtree(os.environ['CTDEPLOY_RUN_DIR'])\nelse:\n    time.sleep(600)\n"
    )
    with box.session() as session:
        box.launch(session, stored, args=["gone"])
        until(lambda: not (box.dest / "app/runs/r1").exists())
        run = box.launch(session, stored, args=["stays"])
        assert run["run"] == "r2"
        # Even if somebody makes a folder of the old name, its supervisor keeps out of it.
        (box.dest / "app/runs/r1").mkdir()
        until(lambda: len(box.supervisors()) == 1)
        assert list((box.dest / "app/runs/r1").iterdir()) == []
        assert session.call("status", run="r2")["runs"][0]["state"] == "running"
        session.call("stop", run="r2", grace_s=1)
        until(lambda: session.call("wait", run="r2", wait_s=1)["run"]["state"] == "stopped")


def test_a_run_whose_processes_are_gone_without_a_word_is_lost_and_stays_so_when_it_is_stopped(box: Box):
    stored = box.deploy(main=b"import time\ntime.sleep(600)\n")
    with box.session() as session:
        run = box.launch(session, stored)
        identity = json.loads((Path(run["path"]) / "status.json").read_text())["identity"]
        for who in ("supervisor", "child"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity[who]["pid"], signal.SIGKILL)
        until(lambda: session.call("status", run="r1")["runs"][0]["state"] == "lost")
        session.call("stop", run="r1", grace_s=0)
        assert session.call("wait", run="r1", wait_s=0)["run"]["state"] == "lost"


@pytest.mark.parametrize("text", ["[]", "{}", '{"state": "running"}', "{", '"a"'])
def test_odd_state_files_are_read_as_unreadable_not_as_a_bug(box: Box, text: str):
    stored = box.deploy(main=b"pass")
    with box.session() as session:
        run = box.launch(session, stored)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "done")
    (Path(run["path"]) / "status.json").write_text(text)
    (Path(run["path"]) / "run.json").write_text(text)
    (Path(stored["path"]) / "RELEASE.json").write_text(text)
    (box.dest / "layout").write_text('"a"')
    with box.session() as session:
        assert session.call("status")["runs"][0]["state"] == "lost"
        session.call("stop", run="r1", grace_s=0)
    assert box.deploy(main=SCRIPT)["number"] == 2

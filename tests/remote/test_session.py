"""The session's two ends, against each other: real processes on this machine, no SSH and no pct between them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctdeploy.errors import HostError, LockedError, MissingError, UsageError, VerifyError
from ctdeploy.remote.payloads import procs
from ctdeploy.remote.payloads.runs import Runs
from ctdeploy.remote.session import Session
from ctdeploy.transport.base import Output
from tests.support.local import LocalTransport, local_place

SCRIPT = b'print("compiling forward (cudagraphs=False)", flush=True)\n'


def until(what: Callable[[], Any], limit_s: float = 15.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bundle(folder: Path, *contents: bytes) -> dict[str, Any]:
    path = folder / f"bundle-{sha(b''.join(contents))[:8]}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for content in contents:
            member = tarfile.TarInfo(sha(content))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(buffer.getvalue())
    return {"path": str(path), "size": len(buffer.getvalue()), "sha256": sha(buffer.getvalue())}


def manifest(**files: bytes) -> dict[str, Any]:
    entries = [
        {"path": f"{name}.py", "sha256": sha(content), "size": len(content), "mode": 0o644}
        for name, content in sorted(files.items())
    ]
    digest = sha(repr(entries).encode())
    return {"app": "app", "entry": "main.py", "digest": digest, "files": entries, "imports": [], "at": 1.0, "who": "t"}


class Box:
    """A folder that stands for a container."""

    def __init__(self, folder: Path) -> None:
        self.dest = folder / "opt"
        self.folder = folder
        self.transport = LocalTransport()
        self.keep = 100

    def session(self, who: str = "tester") -> Session:
        session = Session(self.transport, local_place(self.dest, sys.executable), "app", who)
        session.hello()
        return session

    def deploy(self, **files: bytes) -> dict[str, Any]:
        with self.session() as session:
            session.call("lock", why="test", wait_s=0)
            wanted = manifest(**files)
            placed = session.call("place", manifest=wanted, bundle=bundle(self.folder, *files.values()))
            stored = session.call("store", path=placed["path"], digest=wanted["digest"], facts={})
            session.call("activate", name=stored["name"], keep=self.keep)
        return stored

    def launch(self, session: Session, stored: dict[str, Any], **more: Any) -> dict[str, Any]:
        orders = {"entry": "main.py", "args": [], "env": {"PATH": "/usr/bin:/bin"}, "user": "root", "grace_s": 5}
        return session.call("launch", release=stored, **{**orders, **more})

    def supervisors(self) -> list[int]:
        """Supervisors of this box that live: they write errors into their run's folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((process / "fd/2").readlink()).startswith(f"{self.dest}/app/runs/"):
                    found += [int(process.name)] if "closefd" in procs.command_of(int(process.name)) else []
        return found

    @property
    def active(self) -> str:
        return str((self.dest / "app" / "current").readlink())


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_release_becomes_active_with_number_and_manifest(box: Box):
    stored = box.deploy(main=SCRIPT)
    assert stored["number"] == 1
    assert box.active == f"releases/{stored['name']}"
    assert (Path(stored["path"]) / "main.py").read_bytes() == SCRIPT
    assert box.deploy(main=SCRIPT + b"#2\n")["number"] == 2


def test_numbers_are_never_used_twice_even_after_a_release_was_removed(box: Box):
    box.deploy(main=SCRIPT)
    second = box.deploy(main=SCRIPT + b"#2\n")
    box.deploy(main=SCRIPT + b"#3\n")
    shutil.rmtree(box.dest / "app" / "releases" / second["name"])
    for path in (box.dest / "app" / "releases").glob("3-*"):
        shutil.rmtree(path)
    (box.dest / "app" / "current").unlink()
    assert box.deploy(main=SCRIPT + b"#4\n")["number"] == 4


@pytest.mark.parametrize("damage", ["short", "changed", "gone"])
def test_a_bundle_that_did_not_arrive_whole_is_refused_and_the_active_release_stays(box: Box, damage: str):
    before = box.deploy(main=SCRIPT)
    new = SCRIPT + b"# new\n"
    sent = bundle(box.folder, new)
    path = Path(sent["path"])
    if damage == "short":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    else:
        path.unlink()
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        with pytest.raises(VerifyError, match="pct push"):
            session.call("place", manifest=manifest(main=new), bundle=sent)
    assert box.active == f"releases/{before['name']}"
    assert [path.name for path in (box.dest / "app" / "releases").iterdir()] == [before["name"]]


def test_a_path_that_leads_out_of_the_release_is_refused(box: Box):
    wanted = manifest(main=SCRIPT)
    wanted["files"][0]["path"] = "../../../evil.py"
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        with pytest.raises(VerifyError, match="leads out"):
            session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT))
    assert not (box.folder / "evil.py").exists()


def test_content_of_older_releases_is_used_but_only_what_still_has_the_hash(box: Box):
    old = box.deploy(main=SCRIPT, helper=b"x = 1\n")
    wanted = manifest(main=SCRIPT + b"#2\n", helper=b"x = 1\n")
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        assert session.call("missing", files=wanted["files"])["missing"] == [sha(SCRIPT + b"#2\n")]
        (Path(old["path"]) / "helper.py").write_bytes(b"x = 2\n")
        missing = session.call("missing", files=wanted["files"])["missing"]
        assert missing == sorted([sha(SCRIPT + b"#2\n"), sha(b"x = 1\n")])
        with pytest.raises(VerifyError, match="did not arrive"):
            session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT + b"#2\n"))


def test_an_active_release_that_lost_its_manifest_can_be_replaced(box: Box):
    stored = box.deploy(main=SCRIPT)
    for text in (None, "{ not json"):
        path = Path(stored["path"]) / "RELEASE.json"
        path.unlink() if text is None else path.write_text(text)
        with box.session() as session, pytest.raises(VerifyError, match=r"no readable RELEASE\.json"):
            session.call("verify")
        stored = box.deploy(main=SCRIPT)
        assert box.active == f"releases/{stored['name']}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: (path / "main.py").write_bytes(SCRIPT + b"#"), "main.py: 59 bytes, expected 58"),
        (lambda path: (path / "main.py").write_bytes(SCRIPT.replace(b"False", b"Falsy")), "main.py: content differs"),
        (lambda path: (path / "main.py").unlink(), "main.py: missing"),
        (lambda path: (path / "extra.py").write_text("1"), "extra.py: not part of the release"),
        (
            lambda path: ((path / "main.py").unlink(), (path / "main.py").symlink_to("/etc/passwd")),
            "main.py: not a regular file",
        ),
    ],
)
def test_drift_is_told_file_by_file(box: Box, change: Callable[[Path], Any], says: str):
    stored = box.deploy(main=SCRIPT)
    change(Path(stored["path"]))
    with box.session() as session:
        drift = session.call("verify", markers=["cudagraphs=False"])["drift"]
    assert len(drift) == 1
    assert drift[0].startswith(says)


def test_verify_compiles_with_this_interpreter_and_writes_nothing(box: Box):
    stored = box.deploy(main=SCRIPT, helper=b"def f(:\n    pass\n")
    with box.session() as session:
        answer = session.call("verify")
    assert [(error["path"], error["line"]) for error in answer["errors"]] == [("helper.py", 1)]
    assert sorted(path.name for path in Path(stored["path"]).iterdir()) == ["RELEASE.json", "helper.py", "main.py"]


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

    source = payload.library().replace(b"silence_s: float = 60.0", b"silence_s: float = 0.3")
    assert source != payload.library()
    monkeypatch.setattr(payload, "library", lambda: source)
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


def test_a_real_directory_in_the_place_of_current_is_an_error_not_a_loss(box: Box):
    box.deploy(main=SCRIPT)
    current = box.dest / "app" / "current"
    current.unlink()
    current.mkdir()
    (current / "precious").write_text("data")
    with pytest.raises(HostError, match="not a symlink"):
        box.session()
    assert (current / "precious").read_text() == "data"


def test_a_newer_layout_is_refused_in_one_sentence(box: Box):
    box.dest.mkdir()
    (box.dest / "layout").write_text("2\n")
    session = Session(box.transport, local_place(box.dest, sys.executable), "app", "t")
    with session, pytest.raises(HostError, match="newer ctdeploy"):
        session.hello()


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


def test_a_run_whose_processes_are_gone_without_a_word_is_lost_not_running(box: Box):
    stored = box.deploy(main=b"import time\ntime.sleep(600)\n")
    with box.session() as session:
        run = box.launch(session, stored)
        identity = json.loads((Path(run["path"]) / "status.json").read_text())["identity"]
        for who in ("supervisor", "child"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity[who]["pid"], signal.SIGKILL)
        until(lambda: session.call("status", run="r1")["runs"][0]["state"] == "lost")


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


def test_imports_are_looked_for_in_the_environment_of_the_run(box: Box):
    library = box.folder / "lib"
    library.mkdir()
    (library / "only_by_pythonpath.py").write_text("raise SystemExit('was imported')\n")
    wanted = dict(manifest(main=SCRIPT), imports=["json", "only_by_pythonpath", "nowhere_at_all"])
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        placed = session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT))
        asked = {"path": placed["path"], "manifest": placed["manifest"], "user": "root"}
        assert session.call("verify", **asked, env={"PYTHONPATH": str(library)})["imports_missing"] == [
            "nowhere_at_all"
        ]
        assert "only_by_pythonpath" in session.call("verify", **asked, env={})["imports_missing"]


def test_folders_are_for_everybody_to_read_whatever_the_umask_of_the_login(box: Box):
    before = os.umask(0o077)
    try:
        stored = box.deploy(main=SCRIPT)
    finally:
        os.umask(before)
    assert Path(stored["path"]).stat().st_mode & 0o777 == 0o755
    assert (Path(stored["path"]) / "main.py").stat().st_mode & 0o777 == 0o644
    assert box.dest.stat().st_mode & 0o777 == 0o755


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


def test_a_lost_run_stays_lost_when_it_is_stopped(box: Box):
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


def test_only_the_newest_releases_are_kept_and_those_in_use(box: Box):
    box.keep = 3
    first = box.deploy(main=b"import time\ntime.sleep(600)\n")
    with box.session() as session:
        box.launch(session, first)
    for number in range(2, 8):
        box.deploy(main=SCRIPT + b"#%d\n" % number)
    names = sorted(path.name for path in (box.dest / "app/releases").iterdir())
    assert [name.split("-")[0] for name in names] == ["1", "5", "6", "7"]
    with box.session() as session:
        session.call("stop", run="r1", grace_s=1)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "stopped")
    box.deploy(main=SCRIPT + b"#8\n")
    assert sorted(path.name.split("-")[0] for path in (box.dest / "app/releases").iterdir()) == ["6", "7", "8"]
    assert box.active.startswith("releases/8-")


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


def test_a_program_that_is_no_python_is_named(box: Box):
    session = Session(box.transport, local_place(box.dest, "/bin/true"), "app", "t")
    with session, pytest.raises(HostError, match="did not behave as Python"):
        session.hello()

"""The life of a lab: it comes up once, goes without a trace, and never touches another's process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.errors import HostError, UsageError
from ctdeploy.lab import host
from ctdeploy.lab.processes import Process, start_time
from ctdeploy.lab.state import default_folder, read_record, write_record
from tests.lab.conftest import Host


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a lab of this test's own, cleaned up whatever happens."""
    monkeypatch.setenv("CTDEPLOY_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.setenv("CTDEPLOY_LAB_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    host.down(cache=True)


def processes_of(path: Path) -> list[int]:
    """Every process whose command line names this folder, or that lives in a namespace of one that does."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(path) in words:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """The process and all in its pid namespace and those below, by the kernel's lists of children."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        except OSError:
            continue
        left += [int(child) for child in children]
    return found


def mounts_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {path}" in line]


def test_down_leaves_no_process_no_mount_and_no_file(own: Path) -> None:
    host.ensure_up()
    record = read_record(default_folder())
    assert record is not None
    lived = [Process(pid, start_time(pid) or 0) for pid in descendants(record.pid)]
    assert len(lived) >= 4, "the host's first process, its SSH server, a container's monitor and its init"
    assert host.down()
    assert [process for process in lived if process.alive()] == []
    assert processes_of(own) == []
    assert mounts_below(own) == []
    assert not (own / "lab").exists()
    assert (own / "cache").exists(), "the cache is the one thing that stays"
    assert not host.down(), "there is nothing to end any more"


def test_after_kill_9_of_everything_down_leaves_nothing_either(own: Path) -> None:
    host.ensure_up()
    record = read_record(default_folder())
    assert record is not None
    for pid in reversed(descendants(record.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while record.process().alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not host.status().up
    assert not host.down()
    assert processes_of(own) == []
    assert mounts_below(own) == []
    assert not (own / "lab").exists()


def test_killing_the_first_process_alone_ends_all(own: Path) -> None:
    host.ensure_up()
    record = read_record(default_folder())
    assert record is not None
    lived = [Process(pid, start_time(pid) or 0) for pid in descendants(record.pid)]
    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(process.alive() for process in lived) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [process for process in lived if process.alive()] == []


def test_a_lab_that_was_killed_comes_up_again_with_its_files_and_its_port(own: Path) -> None:
    first = host.ensure_up()
    login = Host(first)
    login.inside("sh", "-c", "echo kept > /root/f; sync")
    login.close()
    record = read_record(default_folder())
    assert record is not None
    record.process().kill(signal.SIGKILL, wait=10)
    second = host.ensure_up()
    assert second == first
    again = Host(second)
    assert again.inside("cat", "/root/f").text == "kept\n"
    again.close()


def test_reset_makes_everything_new(own: Path) -> None:
    login = Host(host.ensure_up())
    login.inside("touch", "/root/f")
    key = login.endpoint.identity.read_text()
    login.close()
    fresh = Host(host.reset())
    assert fresh.inside("ls", "/root/f").code != 0
    assert fresh.endpoint.identity.read_text() != key
    fresh.close()


def test_two_that_ensure_at_once_get_the_same_lab(own: Path) -> None:
    program = "from ctdeploy.lab import host; e = host.ensure_up(); print(e.port, host.status().pid)"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""


def test_the_lab_outlives_who_started_it(own: Path) -> None:
    program = "from ctdeploy.lab import host; host.ensure_up()"
    subprocess.run([sys.executable, "-c", program], check=True, start_new_session=True, timeout=60)
    login = Host(host.ensure_up())
    assert login.run("pct", "list").code == 0
    login.close()


def test_a_starter_that_is_killed_on_the_way_leaves_a_lab_that_can_be_started(own: Path) -> None:
    program = "from ctdeploy.lab import host; host.ensure_up()"
    for delay in (0.05, 0.15, 0.25, 0.35):
        starter = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        time.sleep(delay)
        starter.kill()
        starter.wait()
    login = Host(host.ensure_up())
    assert login.run("pct", "list").code == 0
    login.close()
    host.down()
    deadline = time.monotonic() + 10
    while processes_of(own) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(own) == []


def test_up_to_the_first_list_takes_less_than_two_seconds(own: Path) -> None:
    before = time.monotonic()
    login = Host(host.ensure_up())
    assert "200        running" in login.run("pct", "list").text
    assert time.monotonic() - before < 2
    login.close()


def test_a_reused_pid_is_not_killed(own: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        host.ensure_up()
        folder = default_folder()
        record = read_record(folder)
        assert record is not None
        real = record.process()
        # As after a crash, when the number of the lab's first process has become somebody else's.
        fields = {**record.__dict__, "pid": stranger.pid}
        write_record(folder, type(record)(**fields))
        assert not host.status().up
        host.down()
        assert stranger.poll() is None
        real.kill(signal.SIGKILL, wait=10)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_of_another_boot_is_not_believed(own: Path) -> None:
    host.ensure_up()
    record = read_record(default_folder())
    assert record is not None
    assert record.alive()
    assert not type(record)(**{**record.__dict__, "boot": "another"}).alive()


def test_a_taken_port_is_no_obstacle(own: Path) -> None:
    first = host.ensure_up()
    record = read_record(default_folder())
    assert record is not None
    record.process().kill(signal.SIGKILL, wait=10)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", first.port))
        taken.listen()
        second = host.ensure_up()
        assert second.port != first.port
        login = Host(second)
        assert login.run("pct", "list").code == 0
        login.close()


def test_a_folder_that_is_no_labs_is_not_touched(own: Path) -> None:
    (own / "lab").mkdir()
    (own / "lab" / "thesis.tex").write_text("precious")
    with pytest.raises(HostError, match="not empty"):
        host.ensure_up()
    host.down(cache=True)
    assert (own / "lab" / "thesis.tex").read_text() == "precious"


def test_a_cache_that_is_not_the_labs_is_not_removed(own: Path) -> None:
    (own / "cache").mkdir()
    (own / "cache" / "thesis.tex").write_text("precious")
    with pytest.raises(HostError, match="not empty"):
        host.ensure_up()
    host.down(cache=True)
    assert (own / "cache" / "thesis.tex").read_text() == "precious"


def test_nothing_is_written_to_the_machines_own_folders(own: Path) -> None:
    watched = [Path("/usr/sbin/pct"), Path("/etc/pve"), Path("/run/lock/lxc"), Path("/var/lib/vz"), Path("/init")]
    before = {path: path.exists() for path in watched}
    login = Host(host.ensure_up())
    assert login.line("touch /root/mark /run/mark /etc/mark /tmp/mark; ls /usr/sbin/pct").code == 0
    login.close()
    assert {path: path.exists() for path in watched} == before
    for folder in ("/root", "/run", "/etc", "/tmp"):
        assert not (Path(folder) / "mark").exists()


def test_containers_can_be_added_changed_and_removed(own: Path) -> None:
    login = Host(host.ensure_up())
    host.add_container(201, "second", like=200)
    host.set_container(201, "tags", "gpu;lab")
    assert [row["id"] for row in host.status().containers] == [200, 201]
    assert "tags: gpu;lab" in login.run("pct", "config", "201").text
    assert login.run("pct", "exec", "201", "--", "/opt/venv/bin/python", "-c", "print(1)").text == "1\n"
    host.remove_container(201)
    assert [row["id"] for row in host.status().containers] == [200]
    login.close()
    with pytest.raises(UsageError, match="no container 201"):
        host.remove_container(201)
    with pytest.raises(UsageError, match="exists already"):
        host.add_container(200, "again")
    with pytest.raises(UsageError, match="unknown setting"):
        host.set_container(200, "colour", "red")


def test_sh_runs_words_exactly_and_gives_their_code(own: Path) -> None:
    host.ensure_up()
    words = ["a b", "$HOME", "", "'"]
    script = "import sys, json; print(json.dumps(sys.argv[1:])); sys.exit(7)"
    argv = host.enter_argv(["python3", "-c", script, *words])
    done = subprocess.run(argv, env=host.enter_environment(), capture_output=True, text=True)
    assert (json.loads(done.stdout), done.returncode) == (words, 7)


def test_importing_the_lab_is_cheap() -> None:
    program = "import sys; import ctdeploy.lab.host; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncssh", "asyncio", "paramiko", "cryptography", "ctypes"} & set(loaded)

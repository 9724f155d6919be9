"""The lab of an ordinary user: another uid of the machine, without any right of root's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.lab.processes import start_time
from tests.support.user import UID, User, ordinary_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

PROGRAM = """
import json, os
from ctdeploy.lab import host
from tests.lab.conftest import Host
said = {"uid": os.getuid()}
login = Host(host.ensure_up())
said["list"] = login.run("pct", "list").text
said["who"] = login.inside("sh", "-c", "id -u; cat /proc/self/uid_map").text.split()
login.write("/tmp/f", b"hello")
said["push"] = login.run("pct", "push", "200", "/tmp/f", "/root/f").__dict__["code"]
said["cat"] = login.inside("cat", "/root/f").text
said["venv"] = login.inside("/opt/venv/bin/python", "-c", "import sys, asyncssh; print(sys.prefix)").text
said["cache"] = login.inside("sh", "-c", "echo x > /var/cache/ctdeploy/f; cat /var/cache/ctdeploy/f").text
said["ro"] = login.inside("touch", "/usr/f", "/opt/venv/f").code
said["stop"] = [login.run("pct", *words, "200").code for words in (("stop",), ("start",), ("shutdown",), ("start",))]
said["kept"] = login.inside("cat", "/root/f").text
said["pulled"] = login.line("pct pull 200 /root/f /tmp/back && cat /tmp/back").text
said["chown"] = login.run("pct", "push", "200", "/tmp/f", "/root/g", "--user", "1000").error
host.add_container(201, "second", like=200)
said["second"] = login.run("pct", "exec", "201", "--", "hostname").text
login.close()
said["limits"] = host.status().limits
print(json.dumps(said))
"""


@pytest.fixture
def user() -> Iterator[User]:
    with ordinary_user() as found:
        yield found
        found.python("from ctdeploy.lab import host; host.down(cache=True)")
        assert processes_of_the_user() == []
        assert not (found.home / ".local/state/ctdeploy/lab").exists()
        assert not (found.home / ".cache/ctdeploy/lab").exists()


def processes_of_the_user() -> list[str]:
    """Command lines of what runs under his uid; the dead that the machine's init has yet to bury do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == UID and start_time(int(entry.name)) is not None:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_everything_but_other_ids_works(user: User) -> None:
    done = user.python(PROGRAM)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["uid"] == UID
    assert "200        running                 train" in said["list"]
    assert said["who"] == ["0", "0", "0", "1"]
    assert (said["push"], said["cat"]) == (0, "hello")
    assert said["venv"] == "/opt/venv\n"
    assert said["cache"] == "x\n"
    assert said["ro"] == 1
    assert said["stop"] == [0, 0, 0, 0]
    assert said["kept"] == said["pulled"] == "hello"
    assert said["chown"] == "failed to change file owner: Invalid argument\n"
    assert said["second"] == "second\n"
    assert "other users" in said["limits"][0]


def test_a_users_lab_ends_with_its_first_process(user: User) -> None:
    program = """
import signal
from ctdeploy.lab import host
from ctdeploy.lab.state import default_folder, read_record
host.ensure_up()
record = read_record(default_folder())
print(record.process().kill(signal.SIGKILL, wait=10))
"""
    assert user.python(program).stdout == "True\n"
    assert processes_of_the_user() == []


def test_where_namespaces_are_forbidden_one_sentence_says_so(user: User) -> None:
    # The limit of a user namespace holds for all namespaces made in it: a machine that forbids them, in small.
    program = """
import ctypes, os
uid, gid = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
from ctdeploy.errors import HostError
from ctdeploy.lab import host
try:
    host.ensure_up()
except HostError as error:
    print(error.message, "|", error.next)
"""
    done = user.python(program)
    assert done.stdout == (
        "This machine does not let you make namespaces, which the lab's containers are made of."
        " | sudo sysctl -w user.max_user_namespaces=10000\n"
    ), done.stderr

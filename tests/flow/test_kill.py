"""kill -9 of `ctdeploy push` before and after every message that its transport sends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.container import Container, until
from tests.support.program import Program, environment

HOSTS = '[defaults]\nct = "lab"\n[apps.killed]\nentry = "killed.py"\nmarkers = ["cudagraphs=False"]\n'

pytestmark = [pytest.mark.usefixtures("lab"), pytest.mark.timeout(600)]


@pytest.fixture
def project(program: Program) -> Program:
    program.write("hosts.toml", HOSTS)
    return program


def push_killed(project: Program, when: str, number: int) -> tuple[int, list[str]]:
    """A push that dies at one message: its exit code, and the messages up to there."""
    trace = project.folder / "trace"
    trace.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kill_at", when, str(number), str(trace), "push"],
        cwd=project.folder,
        env=environment({"PYTHONPATH": str(REPOSITORY)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, trace.read_text().splitlines()


def test_the_active_release_survives_a_kill_at_every_message_and_the_next_push_works(
    project: Program, container: Container
):
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/killed")
    script = project.folder / "killed.py"

    def edit(version: str) -> None:
        script.write_text(f"print('cudagraphs=False', '{version}')\n")

    edit("first")
    project.ok("push")
    edit("to enumerate")
    code, messages = push_killed(project, "never", 0)
    assert code == 0
    assert {"connect", "run session", "run stage", "put", "session write activate", "hang up"} <= set(messages)

    for number in range(1, len(messages) + 1):
        for when in ("before", "after"):
            active = container.active_and_whole("killed")
            edit(f"killed {when} {number}")
            code, sent = push_killed(project, when, number)
            assert code == -9, (when, number, sent[-1])
            until(lambda: not container.processes_of_ours())
            until(lambda: not container.left_behind())
            if container.active_and_whole("killed") != active:
                asked = sent if when == "after" else sent[:-1]
                assert "session write activate" in asked, f"nobody asked for the switch: killed {when} {sent[-1]}"
            edit(f"after {when} {number}")
            assert project.ok("push", "--json").json["activated"]
    assert not [name for name in container.listing("/opt/ctdeploy/killed/releases") if name.startswith(".")]


def test_a_push_is_one_login_and_two_pct_calls_that_overlap_and_one_of_nothing_new_a_single_call(
    project: Program, container: Container
):
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/killed")
    project.write("killed.py", "print('cudagraphs=False')\n")
    code, first = push_killed(project, "never", 0)
    assert code == 0
    assert [name for name in first if name == "connect" or name.startswith("run ")] == [
        "connect",
        "run session",
        "run stage",
    ]
    # `pct push` is on its way before the session was asked anything but its greeting.
    pushing = next(index for index, name in enumerate(first) if name.startswith("stage write push"))
    asked = [name for name in first[:pushing] if name.startswith("session write")]
    assert asked[-1] == "session write hello"
    code, again = push_killed(project, "never", 0)
    assert code == 0
    assert [name for name in again if name == "connect" or name.startswith(("run ", "put"))] == [
        "connect",
        "run session",
    ]

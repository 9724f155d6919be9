"""`pct exec` over SSH: arguments, environment, exit codes, streams, and what outlives its caller."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab.conftest import CT, Host

SHOW = "import sys, json; print(json.dumps(sys.argv[1:]))"


def until(what: Callable[[], bool], limit: float = 15) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "words",
    [
        ["", "", "x", ""],
        ["two  blanks", "tab\there", "line\nend"],
        ["it's", 'say "x"', "\\", "'\"'"],
        ["$HOME", "*", "~", "`id`", "$(id)", "a;b", "a&&b", "|", ">x", "{a,b}", "!x", "#c"],
        ["-la", "--help", "--", "-", "--keep-env", "0"],
    ],
)
def test_arguments_arrive_exactly(host: Host, words: list[str]) -> None:
    assert json.loads(host.inside("python3", "-c", SHOW, *words).text) == words


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(min_codepoint=1, max_codepoint=126), max_size=20), max_size=5))
def test_any_ascii_argument_arrives_exactly(host: Host, words: list[str]) -> None:
    assert json.loads(host.inside("python3", "-c", SHOW, *words).text) == words


def test_non_ascii_arguments_are_lost_without_a_locale_and_kept_with_one(host: Host) -> None:
    lost = host.line(f"pct exec {CT} -- printf %s äö")
    kept = host.line(f"LC_ALL=C.UTF-8 pct exec {CT} -- printf %s äö")
    assert lost.out == "\N{REPLACEMENT CHARACTER}".encode() * 4
    assert kept.out == "äö".encode()


def test_the_callers_environment_leaks_in_with_a_path_of_its_own(host: Host) -> None:
    answer = host.line(f"SECRET=1 SSL_CERT_FILE=/x PATH=/opt/x:$PATH pct exec {CT} -- env")
    found = dict(line.split("=", 1) for line in answer.text.splitlines())
    assert found["SECRET"] == "1"
    assert found["SSH_CLIENT"].startswith("127.0.0.1 ")
    assert found["PATH"] == "/sbin:/bin:/usr/sbin:/usr/bin"
    assert (found["container"], found["TERM"]) == ("lxc", "linux")
    assert "SSL_CERT_FILE" not in found


def test_without_keep_env_there_are_three_variables(host: Host) -> None:
    answer = host.line(f"SECRET=1 pct exec {CT} --keep-env 0 -- env")
    assert sorted(answer.text.splitlines()) == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM=linux",
        "container=lxc",
    ]


def test_the_working_folder_is_the_callers_where_there_is_one(host: Host) -> None:
    assert host.line(f"cd /usr/lib && pct exec {CT} -- pwd").text == "/usr/lib\n"
    assert host.line(f"mkdir -p /only/here && cd /only/here && pct exec {CT} -- pwd").text == "/\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_commands_own_code_comes_back(host: Host, script: str, code: int) -> None:
    assert host.inside("sh", "-c", script).code == code


def test_a_command_that_is_not_there_is_127_and_one_that_may_not_run_126(host: Host, folder: str) -> None:
    missing = host.inside("nosuchcommand")
    assert missing.code == 127
    assert missing.error.endswith('No such file or directory - Failed to exec "nosuchcommand"\n')
    host.inside("sh", "-c", f"echo echo > {folder}/script")
    denied = host.inside(f"{folder}/script")
    assert denied.code == 126
    assert 'Permission denied - Failed to exec "' in denied.error


def test_words_with_dashes_before_the_double_dash_are_options(host: Host) -> None:
    answer = host.run("pct", "exec", str(CT), "ls", "-la")
    assert answer.code == 255
    assert answer.error.startswith("Unknown option: la\n400 unable to parse option\n")


def test_streams_are_separate_and_eight_bit_clean(host: Host) -> None:
    data = bytes(range(256)) * 8192
    assert host.inside("cat", stdin=data).out == data
    both = host.inside("sh", "-c", "echo out; echo err >&2; exit 5")
    assert (both.code, both.out, both.err) == (5, b"out\n", b"err\n")


def test_a_process_that_reads_slowly_holds_back_the_client_and_loses_nothing(host: Host) -> None:
    data = os.urandom(8 * 1024 * 1024)
    script = "import sys, time, hashlib; time.sleep(0.5); print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    assert host.inside("python3", "-c", script, stdin=data).text.strip() == hashlib.sha256(data).hexdigest()


def test_standard_error_of_many_megabytes_arrives_beside_standard_output(host: Host) -> None:
    script = "import sys\nfor _ in range(3000): sys.stdout.write('o' * 1000); sys.stderr.write('e' * 1000)"
    channel = host.open(shlex.join(["pct", "exec", str(CT), "--", "python3", "-c", script]))
    out = err = 0
    while not (channel.exit_status_ready() and channel.eof_received and not channel.recv_ready()):
        if channel.recv_ready():
            out += len(channel.recv(65536))
        if channel.recv_stderr_ready():
            err += len(channel.recv_stderr(65536))
    err += sum(len(part) for part in iter(lambda: channel.recv_stderr(65536), b""))
    assert (out, err) == (3_000_000, 3_000_000)


def test_root_of_the_container_is_no_root_of_the_machine(host: Host) -> None:
    assert host.inside("id", "-u").text == "0\n"
    first = host.inside("cat", "/proc/self/uid_map").text.split()
    assert first[0] == "0"
    assert first[1:] == (["100000", "65536"] if os.geteuid() == 0 else ["0", "1"])
    assert host.inside("hostname").text == "train\n"
    assert host.inside("cat", "/proc/1/comm").text == "init\n"


@pytest.mark.parametrize("signal", ["TERM", "HUP", "KILL"])
def test_a_signal_to_pct_exec_ends_it_and_not_what_it_runs(host: Host, folder: str, signal: str) -> None:
    seconds = {"TERM": "7201", "HUP": "7202", "KILL": "7203"}[signal]
    line = f"pct exec {CT} -- sleep {seconds} & sleep 0.3; kill -{signal} $!; wait $!; echo $?"
    code = {"TERM": 143, "HUP": 129, "KILL": 137}[signal]
    channel = host.open(f"({line}) 2>/dev/null")
    assert channel.recv(100).split()[-1] == str(code).encode()
    assert host.inside("pgrep", "-f", f"^sleep {seconds}").code == 0
    assert host.inside("pkill", "-f", f"^sleep {seconds}").code == 0


def test_interrupt_and_quit_are_ignored_by_pct_exec(host: Host) -> None:
    line = f"pct exec {CT} -- sleep 1 & sleep 0.3; kill -INT $!; kill -QUIT $!; wait $!; echo $?"
    assert host.line(line).text.strip() == "0"


def test_a_dropped_connection_is_the_end_of_input_in_the_container(connect: Callable[[], Host], folder: str) -> None:
    victim, other = connect(), connect()
    script = f"cat > {folder}/got; echo done > {folder}/end"
    channel = victim.open(shlex.join(["pct", "exec", str(CT), "--", "sh", "-c", script]))
    channel.sendall(b"half a line")
    assert until(lambda: other.inside("cat", f"{folder}/got").out == b"half a line")
    transport = victim.client.get_transport()
    assert transport is not None
    # Not a goodbye: the socket itself is cut off.
    transport.sock.close()
    assert until(lambda: other.inside("cat", f"{folder}/end").out == b"done\n", limit=5)


def test_what_does_not_read_lives_on_when_the_connection_drops(connect: Callable[[], Host]) -> None:
    victim, other = connect(), connect()
    victim.open(f"pct exec {CT} -- sleep 7300")
    assert until(lambda: other.inside("pgrep", "-f", "^sleep 7300").code == 0)
    transport = victim.client.get_transport()
    assert transport is not None
    transport.sock.close()
    time.sleep(0.5)
    assert other.inside("pgrep", "-f", "^sleep 7300").code == 0
    assert other.line("pgrep -f 'pct exec .* sleep 7300'").code == 0
    other.inside("pkill", "-f", "^sleep 7300")


def test_a_detached_job_outlives_its_session_and_belongs_to_the_containers_init(host: Host, folder: str) -> None:
    script = f"setsid nohup sleep 7400 >/dev/null 2>&1 </dev/null & echo $! > {folder}/pid"
    assert host.inside("sh", "-c", script).code == 0
    job = host.inside("cat", f"{folder}/pid").text.strip()
    assert host.inside("ps", "-o", "ppid=,sid=", "-p", job).text.split() == ["1", job]
    host.inside("kill", job)
    assert until(lambda: host.inside("ps", "-p", job).code != 0), "the container's init left a zombie"

"""What the program promises whatever the command: exit codes, streams, JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ctdeploy.errors import ExitCode
from tests.conftest import REPOSITORY
from tests.support.container import Container
from tests.support.program import Program, environment

TABLE = REPOSITORY / "docs" / "exit-codes.md"


def test_the_exit_codes_of_the_page_are_those_of_the_program():
    rows = [line.split("|")[1].strip() for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    assert sorted(int(row) for row in rows if row.isdigit()) == sorted(int(code) for code in ExitCode)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pusk"], "No such command"),
        (["push", "--no-such-option"], "No such option"),
        (["push", "--ct"], "requires an argument"),
        (["push", "--timeout", "soon"], "valid number"),
        (["push", "nowhere.py"], "nowhere.py"),
        (["push", "--ct", "labb"], 'no container "labb"'),
        (["run", "--app", "dflash_trian"], "dflash_train"),
        (["run", "--env", "1=2"], "NAME=VALUE"),
        (["run", "--detach", "--follow"], "exclude each other"),
    ],
)
def test_usage_errors_end_with_2_in_one_message_and_with_json_in_one_document(
    program: Program, arguments: list[str], says: str
):
    plain = program(*arguments)
    assert (plain.code, plain.out) == (2, "")
    assert says in plain.err
    assert "Traceback" not in plain.err
    error = program(arguments[0], "--json", *arguments[1:]).json["error"]
    assert error["code"] == 2
    assert says in error["message"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[apps.a]\nentri = 'a.py'\n", "hosts.toml:2"),
        ("[defaults]\nct = 5\n", "hosts.toml:2"),
        ("[containers.c]\nhost = 'nope'\nct = 200\n", "hosts.toml:2"),
        ("[apps.a\n", "hosts.toml:1"),
        ("[containers.c]\nhost = 'lab'\nct = 300\npython = '/opt/vä/python'\n", "hosts.toml:4"),
    ],
)
def test_a_wrong_hosts_toml_ends_with_3_and_names_file_and_line(program: Program, text: str, says: str):
    program.write("hosts.toml", text)
    ended = program("config", "show")
    assert ended.code == 3
    assert says in ended.err


def test_a_bug_ends_with_1_and_says_where_its_traceback_is(program: Program):
    code = (
        "import sys\nfrom ctdeploy.inventory import show\n"
        "def broken(*_):\n    secret = 'hunter2'\n    raise KeyError('oops')\n"
        "show.effective = broken\nfrom ctdeploy.cli.main import main\nmain(['config', 'show'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=program.folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "this is a bug: KeyError: 'oops'" in done.stderr
    assert "Traceback" not in done.stderr
    saved = Path(done.stderr.split("the traceback is in ")[1].split()[0])
    assert "KeyError: 'oops'" in saved.read_text()
    assert saved.stat().st_mode & 0o077 == 0
    assert "hunter2" not in done.stderr


def test_init_writes_a_file_that_is_valid_and_never_overwrites_one(program: Program):
    program.write("my_train.py", "print('hello')\n")
    program.ok("init", "my_train.py")
    shown = program.ok("config", "show", "--json").json
    assert shown["file"] == str(program.folder / "hosts.toml")
    assert {"key": "apps.my_train.entry", "value": "my_train.py"}.items() <= next(
        each for each in shown["settings"] if each["key"] == "apps.my_train.entry"
    ).items()
    before = (program.folder / "hosts.toml").read_text()
    ended = program("init")
    assert (ended.code, "is there already" in ended.err) == (2, True)
    assert (program.folder / "hosts.toml").read_text() == before
    program.ok("push", "--dry-run")


SCRIPT = "import time\nfor n in range(2000):\n    print('line', n, flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def running(program: Program, container: Container):
    program.write("hosts.toml", '[defaults]\nct = "lab"\n[apps.talker]\nentry = "talker.py"\nready = "line 1999"\n')
    program.write("talker.py", SCRIPT)
    program.ok("push")
    program.ok("run")
    yield program
    program("stop", "--grace", "0")
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/talker")


def start(program: Program, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ctdeploy", *arguments],
        cwd=program.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_closed_pipe_ends_quietly_with_141(running: Program):
    following = start(running, "logs", "-f")
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline() == b"line 0\n"
    following.stdout.close()
    running.ok("stop", "--grace", "0")  # the next write finds out
    running.ok("run")
    for _ in range(2):
        ended = start(running, "logs")
        ended.stdout.close()
        ended.wait(60)
        assert ended.returncode == 141
        assert b"Traceback" not in ended.stderr.read()
    following.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_detaches_and_the_run_goes_on(running: Program, number: signal.Signals, code: int):
    following = start(running, "logs", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == b"line 0\n"
    following.send_signal(number)
    _, err = following.communicate(timeout=60)
    assert following.returncode == code
    assert b"Traceback" not in err
    assert running.ok("status", "--json").json["runs"][-1]["state"] == "running"
    with_json = start(running, "logs", "-f", "--json")
    assert with_json.stdout is not None
    with_json.stdout.readline()
    with_json.send_signal(number)
    out, _ = with_json.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["error"]["code"] == code


def test_json_logs_are_json_lines_that_hold_every_byte(running: Program):
    import base64

    lines = [json.loads(line) for line in running.ok("logs", "--json").out.splitlines()]
    data = b"".join(base64.b64decode(line["data"]) for line in lines)
    assert data.decode() == "".join(f"line {n}\n" for n in range(2000))
    assert lines[0]["offset"] == 0


def test_output_that_the_terminal_cannot_show_is_replaced_not_a_crash(program: Program):
    program.write("hello.py", "print('ä → 😀', 'cudagraphs=False')\n")
    shown = program.ok(
        "push", "hello.py", "--marker", "cudagraphs=False", "--dry-run", env={"PYTHONIOENCODING": "ascii"}
    )
    assert "hello.py" in shown.out
    assert program("config", "show", "--config", "ä.toml", env={"PYTHONIOENCODING": "ascii"}).code == 3


def test_closed_standard_streams_are_no_crash(program: Program):
    line = f"exec {sys.executable} -m ctdeploy config show >&- 2>&-"
    done = subprocess.run(["sh", "-c", line], cwd=program.folder, env=environment(), check=False, timeout=60)
    assert done.returncode == 0


def test_json_has_null_for_a_loss_that_is_no_number():
    import io

    from ctdeploy.cli.environment import Environment, Options

    out = io.StringIO()
    Environment(Options(json=True), stdout=out, stderr=io.StringIO()).document({"runs": [{"loss": float("nan")}]})
    assert json.loads(out.getvalue(), parse_constant=pytest.fail)["runs"] == [{"loss": None}]


def test_a_state_folder_that_cannot_be_used_costs_a_warning_not_the_push(program: Program, container: Container):
    program.write("solo.py", "print('hi')\n")
    pushed = program.ok("push", "--ct", "200", "solo.py", env={"XDG_STATE_HOME": "/proc/nowhere"})
    assert "could not be remembered" in pushed.err
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/solo")


def test_a_working_folder_that_is_gone_is_said_not_a_traceback(program: Program):
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m ctdeploy config show"
    done = subprocess.run(
        ["sh", "-c", line], cwd=program.folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "the working folder does not exist any more" in done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_behind_standard_output_is_no_bug(program: Program, more: list[str]):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ctdeploy", "config", "show", *more],
            cwd=program.folder,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "could not be written to standard output: No space left" in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_a_hosts_toml_that_is_no_file_never_gives_way_to_another(program: Program, kind: str):
    if kind == "folder":
        (program.folder / "hosts.toml").mkdir()
    else:
        (program.folder / "hosts.toml").symlink_to("nowhere")
    ended = program("config", "show")
    assert (ended.code, "is not a regular file" in ended.err) == (3, True)


def test_modules_of_the_working_folder_are_not_run(program: Program, container: Container):
    program.write("logging.py", "raise SystemExit('a module of the working folder ran')\n")
    program.write("ctdeploy/__init__.py", "raise SystemExit('a package of the working folder ran')\n")
    own = str(Path(sys.executable).with_name("ctdeploy"))
    for words in (["lab", "status"], ["lab", "sh", "--", "pct", "list"]):
        done = subprocess.run(
            [own, *words], cwd=program.folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "ran" not in done.stderr

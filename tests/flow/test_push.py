"""push over the lab's real SSH server and pct: what arrives, and what is said when it cannot."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from ctdeploy.lab.host import LabEndpoint
from tests.support.container import Container, until
from tests.support.program import Program

SCRIPT = """\
import time
import helper

print("compiling forward (cudagraphs=False)", flush=True)
print("step 1 done", helper.VALUE, flush=True)
time.sleep(600)
"""
HOSTS = """\
[defaults]
ct = "lab"

[apps.train]
entry = "train.py"
markers = ["cudagraphs=False"]
markers_at_start = [{ pattern = 'cudagraphs=False', count = 1 }]
ready = "step 1 done"
"""

pytestmark = pytest.mark.usefixtures("lab")


@pytest.fixture
def project(program: Program) -> Program:
    program.write("train.py", SCRIPT)
    program.write("helper.py", "VALUE = 42\n")
    program.write("hosts.toml", HOSTS)
    return program


@pytest.fixture
def container(project: Program, container: Container) -> Iterator[Container]:
    """Container 200 with nothing of the app in it, before and after."""
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/train")
    yield container
    project("stop", "--grace", "0")
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/train")


def test_the_story_push_verify_run_logs_status_stop(project: Program, container: Container):
    pushed = project.ok("push", "--json").json
    assert (pushed["release"], pushed["activated"], pushed["way"]) == (container.active("train")[9:], True, "sftp")

    verified = project.ok("verify", "--marker", "cudagraphs=False")
    assert 'train.py:4: print("compiling forward (cudagraphs=False)", flush=True)' in verified.out
    assert f"train@lab: release {pushed['release']}" in verified.out

    run = project.ok("run", "--json").json
    assert (run["run"], run["ready"], run["ready_line"]) == ("r1", True, "step 1 done 42")
    assert run["markers_at_start"] == ["compiling forward (cudagraphs=False)"]

    assert project.ok("logs").out == "compiling forward (cudagraphs=False)\nstep 1 done 42\n"
    assert [each["state"] for each in project.ok("status", "--json").json["runs"]] == ["running"]

    stopped = project.ok("stop", "--json").json
    assert (stopped["state"], stopped["signal"], stopped["left"]) == ("stopped", "SIGTERM", [])
    assert container.processes_of_ours() == []


def test_a_push_of_nothing_new_changes_nothing_and_moves_nothing(project: Program, container: Container):
    first = project.ok("push", "--json").json
    again = project.ok("push", "--json").json
    assert (again["unchanged"], again["release"], again["sent"], again["way"]) == (True, first["release"], 0, None)
    forced = project.ok("push", "--force", "--json").json
    assert (forced["number"], forced["unchanged"]) == (first["number"] + 1, False)


def test_only_changed_files_travel_and_the_release_is_whole(project: Program, container: Container):
    project.ok("push")
    project.write("helper.py", "VALUE = 43\n")
    pushed = project.ok("push", "--json").json
    assert (pushed["files"], pushed["sent"]) == (2, 1)
    assert container.listing(f"/opt/ctdeploy/train/{container.active('train')}") == [
        "RELEASE.json",
        "helper.py",
        "train.py",
    ]


def test_what_the_laptop_remembers_is_not_believed(project: Program, container: Container):
    project.ok("push")
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/train")
    pushed = project.ok("push", "--json").json
    assert (pushed["number"], pushed["activated"]) == (1, True)
    project.ok("verify")


def test_a_marker_only_in_a_comment_ends_with_4_before_any_network(project: Program, container: Container):
    project.write("train.py", "# cudagraphs=False\nprint('cudagraphs=True')\n")
    project.write("hosts.toml", HOSTS + '\n[hosts.gone]\naddress = "gone.invalid"\n')
    ended = project("push", "--ct", "200@gone")
    assert ended.code == 4
    assert "cudagraphs=False" in ended.err
    assert "train.py:1" in ended.err
    assert "comment" in ended.err


def test_a_broken_script_ends_with_4_and_the_line_also_when_no_host_can_be_asked(project: Program):
    project.write("train.py", SCRIPT + "def broken(:\n")
    project.write("hosts.toml", HOSTS + '\n[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n')
    for ct in ("200@gone", "lab"):
        ended = project("push", "--ct", ct)
        assert ended.code == 4
        assert "train.py:7" in ended.err
        assert "def broken(:" in ended.err


def test_a_stopped_container_ends_with_6_and_the_next_command(project: Program, container: Container):
    container.host("pct", "stop", "200")
    try:
        ended = project("push")
        assert ended.code == 6
        assert "is not running" in ended.err
        assert "ctdeploy push --start" in ended.err
        assert project("verify").code == 6
        project.ok("push", "--start")
    finally:
        if "stopped" in container.host("pct", "status", "200"):
            container.host("pct", "start", "200")


def test_a_host_that_is_down_ends_with_5(project: Program):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    project.write("hosts.toml", HOSTS + f'\n[hosts.pve1]\naddress = "127.0.0.1"\nport = {port}\n')
    ended = project("push", "--ct", "200@pve1")
    assert ended.code == 5
    assert f"cannot reach host pve1 at 127.0.0.1:{port}" in ended.err
    assert "try:" in ended.err
    assert project("push", "--ct", "200@pve1", "--json").json["error"]["code"] == 5


def test_an_unknown_host_key_ends_with_5_and_shows_the_fingerprint(project: Program, lab: LabEndpoint):
    known = project.write("known_hosts", "")
    project.write(
        "hosts.toml",
        HOSTS + f'\n[hosts.pve1]\naddress = "127.0.0.1"\nport = {lab.port}\nidentity = "{lab.identity}"\n',
    )
    home = project.folder / "home"
    (home / ".ssh").mkdir(parents=True)
    ended = project("push", "--ct", "200@pve1", env={"HOME": str(home)})
    assert ended.code == 5
    assert "is not known" in ended.err
    assert "SHA256:" in ended.err
    assert known.read_text() == ""


def test_a_container_without_the_launch_interpreter_ends_with_6_and_names_it(project: Program, container: Container):
    project.write("hosts.toml", HOSTS + '\n[containers.lab]\nhost = "lab"\nct = 200\npython = "/opt/nowhere/python"\n')
    ended = project("push")
    assert ended.code == 6
    assert "no usable /opt/nowhere/python" in ended.err


def test_a_container_that_does_not_exist_ends_with_6(project: Program):
    ended = project("push", "--ct", "999@lab")
    assert ended.code == 6
    assert "has no container 999" in ended.err or "is not running" in ended.err


def test_a_pct_push_that_writes_short_ends_with_7_and_the_old_release_goes_on(project: Program, container: Container):
    old = project.ok("push", "--json").json["release"]
    project.ok("run")
    # A full file system in the container: the real pct writes what fits, says nothing, and exits 0.
    container.run("/bin/mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", "/var/tmp")
    try:
        noise = "\n".join(f"# {n * 2654435761 % 2**32:08x}{n * 40503 % 65536:04x}" for n in range(4000))
        project.write("train.py", SCRIPT + noise)
        ended = project("push", "--json")
    finally:
        container.run("/bin/umount", "/var/tmp")
    error = ended.json["error"]
    assert (ended.code, error["code"], error["layer"]) == (7, 7, "verify")
    assert "pct push wrote 8192 of" in error["message"]
    assert container.active("train") == f"releases/{old}"
    assert project.ok("status", "--json").json["runs"][0]["state"] == "running"
    assert container.listing("/opt/ctdeploy/train/releases") == [old]
    assert not [name for name in container.listing("/var/tmp") if name.startswith(".ctdeploy")]
    assert project.ok("push", "--json").json["activated"]


def test_a_release_that_was_changed_in_the_container_ends_verify_with_7(project: Program, container: Container):
    project.ok("push")
    container.run("/bin/sh", "-c", "echo '#' >> /opt/ctdeploy/train/current/helper.py")
    ended = project("verify")
    assert ended.code == 7
    assert "helper.py: 13 bytes, expected 11" in ended.err
    assert project("run").code == 7


def test_an_import_that_the_container_lacks_is_a_warning_at_push_and_an_error_at_run(
    project: Program, container: Container
):
    project.write("train.py", SCRIPT.replace("import time\n", "import time\nimport no_such_module_anywhere\n"))
    pushed = project.ok("push")
    assert "train.py:2: the launch interpreter has no module no_such_module_anywhere" in pushed.err
    ended = project("run")
    assert ended.code == 7
    assert "no_such_module_anywhere" in ended.err
    assert container.listing("/opt/ctdeploy/train") == ["current", "history.jsonl", "lock", "releases"]


def test_no_activate_keeps_the_release_and_does_not_switch(project: Program, container: Container):
    first = project.ok("push", "--json").json["release"]
    project.write("helper.py", "VALUE = 44\n")
    kept = project.ok("push", "--no-activate", "--json").json
    assert not kept["activated"]
    assert container.active("train") == f"releases/{first}"
    assert container.listing("/opt/ctdeploy/train/releases") == [first, kept["release"]]


def test_dry_run_touches_nothing_and_shows_the_commands(project: Program, container: Container):
    document = project.ok("push", "--dry-run", "--json").json
    assert [file["path"] for file in document["files"]] == ["helper.py", "train.py"]
    session, stage = document["commands"]
    assert session[:4] == ["/usr/sbin/pct", "exec", "200", "--"]
    assert stage[3] == "ctdeploy-stage"
    assert stage[-1] == "/usr/sbin/pct"
    assert "train" not in container.listing("/opt") + container.listing("/opt/ctdeploy")


def test_diff_shows_what_would_change(project: Program, container: Container):
    project.ok("push")
    project.write("helper.py", "VALUE = 45\n")
    shown = project.ok("push", "--diff").out
    assert "-VALUE = 42\n+VALUE = 45" in shown
    assert "train.py" not in shown


def test_two_pushes_at_once_one_waits_or_is_told_who_holds_the_lock(project: Program, container: Container):
    from concurrent.futures import ThreadPoolExecutor

    project.ok("push")
    contents = [f"VALUE = {number}\n" for number in range(100, 104)]

    def push(content: str) -> int:
        other = Program(project.folder / content.split()[-1])
        other.write("train.py", SCRIPT)
        other.write("helper.py", content)
        other.write("hosts.toml", HOSTS)
        return other("push", "--lock-wait", "60").code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(push, contents)) == [0, 0, 0, 0]
    assert len(container.listing("/opt/ctdeploy/train/releases")) == 5
    project("verify")
    assert container.run("/bin/cat", "/opt/ctdeploy/train/current/helper.py") in contents


def test_history_has_a_line_for_everything_that_changed_something(project: Program, container: Container):
    project.ok("push")
    project.ok("run", "--detach")
    project.ok("stop")
    lines = container.run("/bin/cat", "/opt/ctdeploy/train/history.jsonl").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["push", "activate", "run", "stop"]


def test_a_run_that_dies_before_it_is_ready_ends_with_9_and_its_last_words(project: Program, container: Container):
    project.write("train.py", SCRIPT.replace('print("step', 'raise RuntimeError("no GPU")\nprint("step'))
    project.ok("push")
    ended = project("run")
    assert ended.code == 9
    assert "RuntimeError: no GPU" in ended.err
    assert "exit code 1" in ended.err


def test_a_run_that_is_not_ready_in_time_ends_with_124_and_lives_on(project: Program, container: Container):
    project.write("train.py", SCRIPT.replace("step 1 done", "nothing yet"))
    project.ok("push")
    ended = project("run", "--timeout", "2")
    assert ended.code == 124
    assert "it goes on" in ended.err
    assert project.ok("status", "--json").json["runs"][0]["state"] == "running"


def test_follow_prints_the_whole_log_and_ends_with_the_run(project: Program, container: Container):
    project.write("train.py", SCRIPT.replace("time.sleep(600)", "[print('line', n) for n in range(50_000)]"))
    project.ok("push")
    ended = project.ok("run", "--follow")
    expected = ["compiling forward (cudagraphs=False)", "step 1 done 42", *(f"line {n}" for n in range(50_000))]
    assert ended.out.splitlines()[: len(expected)] == expected
    assert project.ok("logs", "-n", "2").out == "line 49998\nline 49999\n"
    assert project.ok("logs", "-f", "-n", "0").out == ""
    assert project.ok("logs", "-f").out.splitlines() == expected


def test_a_script_that_needs_no_hosts_toml_is_pushed_by_its_path(program: Program):
    program.write("solo.py", "print('cudagraphs=False')\n")
    pushed = program.ok("push", "--ct", "200", "solo.py", "--marker", "cudagraphs=False", "--json").json
    assert (pushed["app"], pushed["container"], pushed["files"]) == ("solo", "lab", 1)
    assert program.ok("run", "--app", "solo", "--follow").out.startswith("cudagraphs=False\n")
    until(lambda: program.ok("status", "--app", "solo", "--json").json["runs"][-1]["state"] == "done")


def test_a_run_that_ends_well_without_ever_being_ready_ends_with_9(project: Program, container: Container):
    project.write("train.py", SCRIPT.replace("step 1 done", "something else").replace("time.sleep(600)", ""))
    project.ok("push")
    ended = project("run")
    assert ended.code == 9
    assert "never ready" in ended.err
    assert "step 1 done" in ended.err


def test_a_release_that_was_edited_in_the_container_is_mended_by_force(project: Program, container: Container):
    project.ok("push")
    container.run("/bin/sh", "-c", "echo '#' >> /opt/ctdeploy/train/current/helper.py")
    refused = project("push")
    assert refused.code == 7
    assert "ctdeploy push --force" in refused.err
    mended = project.ok("push", "--force", "--json").json
    assert mended["sent"] == 1
    project.ok("verify")


def test_hints_name_the_app_and_container_that_were_meant(project: Program, container: Container):
    project.write(
        "hosts.toml", HOSTS.replace("[apps.train]", 'app = "other"\n[apps.other]\nentry = "o.py"\n[apps.train]')
    )
    project.write("o.py", "print()\n")
    assert "next: ctdeploy run --ct 200 --app train" in project.ok("push", "--ct", "200", "--app", "train").err.replace(
        "--app train --ct 200", "--ct 200 --app train"
    )
    missing = project("logs", "r9", "--app", "train", "--json").json["error"]
    assert missing["code"] == 11
    assert missing["next"].endswith("--app train")


def test_a_log_that_grows_faster_than_it_is_read_still_has_an_end(project: Program, container: Container):
    project.write("train.py", "print('cudagraphs=False', flush=True)\nwhile True:\n    print('x' * 4000)\n")
    project.write("hosts.toml", HOSTS.replace("step 1 done", "xxx"))
    project.ok("push")
    project.ok("run")
    assert project.ok("logs", "-n", "1").out.count("\n") <= 2
    assert project.ok("logs").out.startswith("cudagraphs=False\n")
    project.ok("stop", "--grace", "0")


def test_a_push_that_fails_before_its_session_spoke_leaves_no_bundle(project: Program, container: Container):
    project.write("hosts.toml", HOSTS + '\n[containers.lab]\nhost = "lab"\nct = 200\npython = "/bin/true"\n')
    ended = project("push")
    assert ended.code == 6
    assert "did not behave as Python" in ended.err
    until(lambda: not container.left_behind())


def test_a_file_named_like_our_manifest_is_refused_before_any_network(project: Program):
    project.write("RELEASE.json", "{}")
    project.write("hosts.toml", HOSTS.replace('entry = "train.py"', 'entry = "train.py"\ninclude = ["RELEASE.json"]'))
    ended = project("push")
    assert ended.code == 4
    assert "RELEASE.json" in ended.err


def test_old_releases_go_when_more_than_keep_are_there(project: Program, container: Container):
    project.write("hosts.toml", HOSTS + "keep = 2\n")
    for number in range(4):
        project.write("helper.py", f"VALUE = {number}\n")
        project.ok("push")
    assert [name.split("-")[0] for name in container.listing("/opt/ctdeploy/train/releases")] == ["3", "4"]

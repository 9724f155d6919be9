"""Start, stop, shutdown, and what is known of a container."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ctdeploy.lab import host as lab_host
from ctdeploy.lab.host import LabEndpoint
from tests.lab.conftest import Host

SECOND = 201


@pytest.fixture
def second(lab: LabEndpoint) -> Iterator[str]:
    """A stopped container of the test's own."""
    lab_host.add_container(SECOND, "second", start=False)
    yield str(SECOND)
    lab_host.remove_container(SECOND)


def test_list_has_fixed_columns_and_an_empty_lock(host: Host, second: str) -> None:
    assert host.run("pct", "list").text == (
        "VMID       Status     Lock         Name                \n"
        "200        running                 train               \n"
        "201        stopped                 second              \n"
    )


def test_a_container_keeps_its_files_over_stop_and_start(host: Host, second: str) -> None:
    assert host.run("pct", "status", second).text == "status: stopped\n"
    assert host.run("pct", "start", second).code == 0
    host.run("pct", "exec", second, "--", "sh", "-c", "echo kept > /root/f; echo gone > /run/f")
    assert host.run("pct", "stop", second).code == 0
    assert host.run("pct", "start", second).code == 0
    assert host.run("pct", "exec", second, "--", "cat", "/root/f").text == "kept\n"
    assert host.run("pct", "exec", second, "--", "cat", "/run/f").code == 1


def test_start_takes_less_than_half_a_second(host: Host, second: str) -> None:
    before = time.monotonic()
    assert host.run("pct", "start", second).code == 0
    assert time.monotonic() - before < 0.5


def test_stop_ends_everything_in_it_and_exec_callers_see_137(host: Host, second: str) -> None:
    host.run("pct", "start", second)
    channel = host.open(f"pct exec {second} -- sh -c 'echo begun; sleep 7500'")
    assert channel.recv(10) == b"begun\n"
    assert host.run("pct", "stop", second).code == 0
    assert channel.recv_exit_status() == 137
    assert host.line("pgrep -f '^sleep 7500'").code == 1


def test_shutdown_asks_init_and_gives_up_after_the_timeout(host: Host, second: str) -> None:
    rootfs = f"/var/lib/vz/images/{second}/subvol-{second}-disk-0.subvol"
    deaf = "#!/bin/sh\ntrap : PWR\nwhile :; do sleep 1000 & wait $!; done\n"
    host.write(f"{rootfs}/init", deaf.encode())
    host.run("pct", "start", second)
    answer = host.run("pct", "shutdown", second, "--timeout", "1")
    assert answer.code == 255
    assert answer.text == f"command 'lxc-stop -n {second} --nokill --timeout 1' failed: exit code 1\n"
    assert answer.error == "container did not stop\n"
    assert host.run("pct", "status", second).text == "status: running\n"
    assert host.run("pct", "shutdown", second, "--timeout", "1", "--forceStop", "1").code == 0
    assert host.run("pct", "status", second).text == "status: stopped\n"


def test_shutdown_of_a_container_that_listens_is_quick(host: Host, second: str) -> None:
    host.run("pct", "start", second)
    before = time.monotonic()
    assert host.run("pct", "shutdown", second).code == 0
    assert time.monotonic() - before < 1
    assert host.run("pct", "status", second).text == "status: stopped\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("exec", "201", "--", "true"), 255, "container '201' not running!\n"),
        (("exec", "999", "--", "true"), 2, "Configuration file 'nodes/lab/lxc/999.conf' does not exist\n"),
        (("status", "999"), 2, "Configuration file 'nodes/lab/lxc/999.conf' does not exist\n"),
        (("push", "201", "/etc/hosts", "/root/f"), 255, "can only push files to a running CT\n"),
        (("push", "999", "/etc/hosts", "/root/f"), 255, "can only push files to a running CT\n"),
        (("stop", "201"), 255, "CT 201 not running\n"),
        (("start", "200"), 255, "CT 200 already running\n"),
        (("start", "999"), 255, "Configuration file 'nodes/lab/lxc/999.conf' does not exist\n"),
    ],
)
def test_what_cannot_be_done_is_said_as_pct_says_it(
    host: Host, second: str, words: tuple[str, ...], code: int, says: str
) -> None:
    answer = host.run("pct", *words)
    assert (answer.code, answer.out, answer.error) == (code, b"", says)


def test_a_config_lock_stops_start_and_not_exec(host: Host, second: str) -> None:
    lab_host.set_container(SECOND, "lock", "backup")
    refused = host.run("pct", "start", second)
    assert (refused.code, refused.error) == (255, "CT is locked (backup)\n")
    assert "201        stopped    backup       second" in host.run("pct", "list").text
    lab_host.set_container(SECOND, "lock", "")
    assert host.run("pct", "start", second).code == 0
    lab_host.set_container(SECOND, "lock", "backup")
    assert host.run("pct", "exec", second, "--", "echo", "ok").text == "ok\n"


def test_a_mount_without_its_source_keeps_the_container_down(host: Host, second: str) -> None:
    lab_host.set_container(SECOND, "mp1", "/no/such/folder,mp=/mnt/x")
    answer = host.run("pct", "start", second)
    assert (answer.code, answer.error) == (255, "startup for container '201' failed\n")
    assert "lxc.hook.pre-start" in answer.text


def test_a_mount_point_of_the_host_is_in_the_container(host: Host, second: str) -> None:
    host.line("mkdir -p /srv/shared; echo here > /srv/shared/f")
    lab_host.set_container(SECOND, "mp1", "/srv/shared,mp=/mnt/shared,ro=1")
    assert host.run("pct", "start", second).code == 0
    assert host.run("pct", "exec", second, "--", "cat", "/mnt/shared/f").text == "here\n"
    denied = host.run("pct", "exec", second, "--", "touch", "/mnt/shared/g")
    assert "Read-only file system" in denied.error


def test_the_cache_is_one_for_all_containers_and_writable(host: Host, second: str) -> None:
    host.run("pct", "start", second)
    assert host.run("pct", "exec", second, "--", "sh", "-c", "echo x > /var/cache/ctdeploy/probe").code == 0
    assert host.inside("cat", "/var/cache/ctdeploy/probe").text == "x\n"


def test_config_shows_the_file_sorted_with_the_raw_lines_last(host: Host) -> None:
    lines = host.run("pct", "config", "200").text.splitlines()
    settings = [line for line in lines if not line.startswith("lxc.")]
    assert settings == sorted(settings)
    assert lines == settings + [line for line in lines if line.startswith("lxc.")]
    assert "hostname: train" in settings
    assert any(line.startswith("lxc.mount.entry: ") and " opt/venv " in line for line in lines)


def test_verbose_status_names_the_first_process(host: Host) -> None:
    lines = host.run("pct", "status", "200", "--verbose").text.splitlines()
    values = dict(line.split(": ", 1) for line in lines)
    assert list(values) == sorted(values)
    assert host.line(f"cat /proc/{values['pid']}/comm").text == "init\n"

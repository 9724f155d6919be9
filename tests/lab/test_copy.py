"""`pct push` and `pct pull`, with what they do not tell."""

from __future__ import annotations

import pytest

from tests.lab.conftest import CT, Host


def push(host: Host, *words: str) -> tuple[int, str]:
    answer = host.run("pct", "push", str(CT), *words)
    assert answer.out == b""
    return answer.code, answer.error


def pull(host: Host, *words: str) -> tuple[int, str]:
    answer = host.run("pct", "pull", str(CT), *words)
    assert answer.out == b""
    return answer.code, answer.error


def stat(host: Host, path: str) -> str:
    return host.inside("stat", "-c", "%s %a %u", path).text.strip()


def test_a_new_file_is_0644_whatever_the_source_was(host: Host, folder: str) -> None:
    host.write(f"{folder}/f", b"hello\n")
    host.run("chmod", "755", f"{folder}/f")
    assert push(host, f"{folder}/f", f"{folder}/f") == (0, "")
    assert stat(host, f"{folder}/f") == "6 644 0"
    assert host.inside("cat", f"{folder}/f").out == b"hello\n"


def test_an_existing_file_keeps_mode_and_inode(host: Host, folder: str) -> None:
    host.write(f"{folder}/f", b"new\n")
    host.inside("sh", "-c", f"echo something longer > {folder}/f; chmod 700 {folder}/f")
    inode = host.inside("stat", "-c", "%i", f"{folder}/f").text
    assert push(host, f"{folder}/f", f"{folder}/f") == (0, "")
    assert stat(host, f"{folder}/f") == "4 700 0"
    assert host.inside("stat", "-c", "%i", f"{folder}/f").text == inode


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("nosuch", "f", "failed to open {folder}/nosuch for reading"),
        ("f", "no/parent", "failed to create file: {folder}/no/parent: No such file or directory"),
        ("f", "", "failed to create file: {folder}/: Is a directory"),
    ],
)
def test_a_push_that_failed_ends_with_0(host: Host, folder: str, source: str, destination: str, says: str) -> None:
    host.write(f"{folder}/f", b"x")
    done = push(host, f"{folder}/{source}", f"{folder}/{destination}")
    assert done == (0, says.format(folder=folder) + "\n")


def test_a_short_copy_is_not_even_mentioned(host: Host, folder: str) -> None:
    assert host.inside("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder).code == 0
    try:
        host.write(f"{folder}/big", b"x" * 200_000)
        assert push(host, f"{folder}/big", f"{folder}/big") == (0, "")
        assert stat(host, f"{folder}/big") == "65536 644 0"
    finally:
        host.inside("umount", folder)


def test_a_folder_as_source_makes_an_empty_file(host: Host, folder: str) -> None:
    assert push(host, folder, f"{folder}/f") == (0, "")
    assert stat(host, f"{folder}/f") == "0 644 0"


def test_perms_are_octal_and_bad_ones_touch_nothing(host: Host, folder: str) -> None:
    host.write(f"{folder}/f", b"x")
    assert push(host, f"{folder}/f", f"{folder}/f", "--perms", "750") == (0, "")
    assert stat(host, f"{folder}/f") == "1 750 0"
    host.write(f"{folder}/f", b"longer")
    assert push(host, f"{folder}/f", f"{folder}/f", "--perms", "abc") == (0, "invalid mode: '0abc'\n")
    assert stat(host, f"{folder}/f") == "1 750 0"


def test_a_link_in_the_container_cannot_reach_the_host(host: Host, folder: str) -> None:
    host.write(f"{folder}/f", b"from the host")
    host.write("/etc/issue", b"the host's own")
    host.inside("ln", "-s", "/etc/issue", f"{folder}/link")
    assert push(host, f"{folder}/f", f"{folder}/link") == (0, "")
    assert host.line("cat /etc/issue").out == b"the host's own"
    assert host.inside("cat", "/etc/issue").out == b"from the host"


def test_standard_input_can_be_pushed(host: Host, folder: str) -> None:
    data = bytes(range(256)) * 2000
    answer = host.run("pct", "push", str(CT), "/dev/stdin", f"{folder}/f", stdin=data)
    assert (answer.code, answer.err) == (0, b"")
    assert host.inside("cat", f"{folder}/f").out == data


def test_a_pull_of_what_is_not_there_destroys_the_target_and_ends_with_0(host: Host, folder: str) -> None:
    host.write(f"{folder}/model", b"precious")
    says = f"failed to open {folder}/nosuch: No such file or directory\n"
    assert pull(host, f"{folder}/nosuch", f"{folder}/model") == (0, says)
    assert host.line(f"stat -c %s {folder}/model").text == "0\n"


def test_a_pull_brings_the_bytes(host: Host, folder: str) -> None:
    host.inside("sh", "-c", f"head -c 3000000 /dev/urandom > {folder}/data; chmod 0 {folder}/data")
    assert pull(host, f"{folder}/data", f"{folder}/data") == (0, "")
    there = host.inside("sha256sum", f"{folder}/data").text.split()[0]
    assert host.run("sha256sum", f"{folder}/data").text.split()[0] == there


def test_the_containers_flock_makes_a_push_give_up_after_ten_seconds(host: Host, folder: str) -> None:
    lock = f"/run/lock/lxc/pve-config-{CT}.lock"
    host.write(f"{folder}/f", b"x")
    holder = host.open(f"flock {lock} sh -c 'echo held; cat'")
    assert holder.recv(10) == b"held\n"
    code, says = push(host, f"{folder}/f", f"{folder}/f")
    assert code == 4
    assert says == f"trying to acquire lock...\ncan't lock file '{lock}' - got timeout\n"
    assert host.inside("true").code == 0, "exec takes no lock"
    holder.close()


def test_a_push_waits_for_the_flock_and_says_so(host: Host, folder: str) -> None:
    lock = f"/run/lock/lxc/pve-config-{CT}.lock"
    host.write(f"{folder}/f", b"x")
    holder = host.open(f"flock {lock} sh -c 'echo held; sleep 1'")
    assert holder.recv(10) == b"held\n"
    assert push(host, f"{folder}/f", f"{folder}/f") == (0, "trying to acquire lock...\n OK\n")


def test_each_copy_leaves_a_task_log(host: Host, folder: str) -> None:
    push(host, f"{folder}/nosuch", f"{folder}/f")
    last = host.line("tail -n 1 /var/log/pve/tasks/index").text
    upid, _, status = last.rstrip("\n").split(" ", 2)
    assert upid.startswith("UPID:lab:")
    assert upid.endswith(f":push_file:{CT}:root@pam:")
    assert status == f"failed to open {folder}/nosuch for reading"
    assert host.line(f"cat /var/log/pve/tasks/*/{upid}").text == f"\nTASK ERROR: {status}\n"

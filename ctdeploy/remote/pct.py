"""The words of `pct`: argv to give it, and what its answers mean. No other module knows them.

Facts: pct's exit code tells little (push and pull exit 0 when they failed), so failures are recognised by text, and
success is only ever what was measured inside the container.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ctdeploy.errors import CtdeployError, HostError

PCT = "/usr/sbin/pct"
ENV = "/usr/bin/env"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# pct's caller leaks its whole environment into the container and cuts PATH (`--keep-env 0` exists from PVE 8.2 only).
CLEAN_ENVIRONMENT = (ENV, "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8")


class NotRunning(HostError):
    """The container is stopped; `--start` would start it."""

    layer = "container"


@dataclass(frozen=True)
class Pct:
    """How to call pct on one host: as root, or through `sudo -n` (the sudoers rule names /usr/sbin/pct)."""

    become: str | None = None

    def argv(self, *arguments: str) -> tuple[str, ...]:
        """A call of pct."""
        prefix = ("sudo", "-n", "--") if self.become == "sudo" else ()
        return (*prefix, PCT, *arguments)

    def exec(self, ct: int, command: Sequence[str]) -> tuple[str, ...]:
        """Run a command in a container with nothing of the host's environment.

        Arguments must be ASCII: pct in a C locale turns every other byte into U+FFFD.
        """
        for argument in command:
            if not argument.isascii():
                raise ValueError("pct destroys arguments that are not ASCII; send them on standard input")
        return self.argv("exec", str(ct), "--", *CLEAN_ENVIRONMENT, *command)

    def start(self, ct: int) -> tuple[str, ...]:
        """Start a container. Returns before the guest's init is ready."""
        return self.argv("start", str(ct))


def failure(ct: int, host: str, stderr: str, name: str | None = None) -> CtdeployError | None:
    """What pct, sudo, the shell or lxc-attach said, as an error with a way out; None for words of no known failure.

    Tails of messages are not looked at: with non-ASCII paths the real pct cuts them short.
    """
    label = name or str(ct)
    for pattern, message, next_step, layer in _FAILURES:
        match = re.search(pattern, stderr, re.MULTILINE)
        if match:
            words = {"ct": label, "id": ct, "host": host, **match.groupdict()}
            kind = NotRunning if pattern is _STOPPED else HostError
            return kind(message.format(**words), next=next_step.format(**words), layer=layer, remote=stderr)
    return None


def unknown_failure(ct: int, host: str, stderr: str, exit_code: int | None) -> HostError:
    """For an end of pct that nothing explains."""
    return HostError(
        f"pct on {host} ended with {exit_code} for container {ct}",
        next=f"try it on the host: pct exec {ct} -- /bin/true",
        layer="pct",
        remote=stderr,
    )


_STOPPED = r"^container '\d+' not running!|can only push files to a running CT|can only pull files from a running VM"

# pattern in stderr, message, next command, layer
_FAILURES: tuple[tuple[str, str, str, str], ...] = (
    (
        _STOPPED,
        "container {ct} on {host} is not running",
        "ctdeploy push --start, or on the host: pct start {id}",
        "container",
    ),
    (
        r"^Configuration file 'nodes/(?P<node>[^/]+)/(?:lxc|qemu-server)/\d+\.conf' does not exist",
        "{host} (node {node}) has no container {id}",
        "on the host: pct list; in a cluster it may live on another node, and an id may belong to a VM",
        "pct",
    ),
    (
        r"can't lock file '/run/lock/lxc/pve-config-\d+\.lock' - got timeout",
        "another pct task holds container {ct} on {host}",
        "wait for the backup, migration or push that runs there, then try again",
        "pct",
    ),
    (
        r"CT is locked \((?P<lock>[a-z-]+)\)",
        "container {ct} on {host} is locked by Proxmox ({lock})",
        "wait until that task ends; see it on the host: pct config {id}",
        "pct",
    ),
    (
        r"sudo: (?:a password is required|.*not allowed to execute|.*may not run sudo)",
        "sudo on {host} wants a password for " + PCT,
        "on the host, in /etc/sudoers.d/ctdeploy: USER ALL=(root) NOPASSWD: " + PCT,
        "host",
    ),
    (
        r"sudo: (?:command )?not found",
        "{host} has no sudo",
        "apt install sudo on the host, or log in as root",
        "host",
    ),
    (
        r"ipcc_send_rec\[\d\] failed: Unknown error -1",
        "pct on {host} must run as root",
        'say become = "sudo" in [hosts.{host}], or log in as root',
        "pct",
    ),
    (
        r"ipcc_send_rec\[\d\] failed: Connection refused",
        "the cluster file system of {host} is down",
        "on the host: systemctl restart pve-cluster",
        "host",
    ),
    (
        r"(?:pct: (?:command )?not found|/usr/sbin/pct: (?:not found|No such file))",
        "{host} has no " + PCT + ": is it a Proxmox VE host?",
        "check address in [hosts.{host}]: ctdeploy config show",
        "host",
    ),
    (
        # coreutils in two quoting styles, and busybox (Alpine).
        r"env: (?:can't execute )?.(?P<program>/[^'\u2019]+).: (?:No such file|Permission denied)",
        "container {ct} on {host} has no usable {program}",
        'say python = "/path/to/python" in its [containers.…] table',
        "container",
    ),
    (
        r"Failed to exec \"(?P<program>[^\"]+)\"",
        "container {ct} on {host} has no {program}",
        "is its /usr complete? on the host: pct enter {id}",
        "container",
    ),
    (
        r"Failed to get init pid|unable to get PID for CT",
        "container {ct} on {host} stopped just now",
        "on the host: pct status {id}",
        "container",
    ),
)

"""Calls of pct as argv, and what its words mean."""

from __future__ import annotations

import pytest

from ctdeploy.errors import ExitCode
from ctdeploy.remote import pct

CLEAN = ("/usr/bin/env", "-i", f"PATH={pct.PATH}", "HOME=/root", "LC_ALL=C.UTF-8")


@pytest.mark.parametrize(
    ("become", "call", "argv"),
    [
        (None, lambda p: p.start(200), ("/usr/sbin/pct", "start", "200")),
        ("sudo", lambda p: p.start(200), ("sudo", "-n", "--", "/usr/sbin/pct", "start", "200")),
        (
            None,
            lambda p: p.exec(200, ["/bin/echo", "a b", "", "$HOME", "--x"]),
            ("/usr/sbin/pct", "exec", "200", "--", *CLEAN, "/bin/echo", "a b", "", "$HOME", "--x"),
        ),
    ],
)
def test_argv(become, call, argv):
    assert call(pct.Pct(become)) == argv


def test_an_argument_that_pct_would_destroy_is_refused():
    with pytest.raises(ValueError, match="not ASCII"):
        pct.Pct().exec(200, ["/bin/echo", "ä"])


@pytest.mark.parametrize(
    ("words", "says", "layer"),
    [
        ("container '200' not running!\n", "is not running", "container"),
        ("can only push files to a running CT\n", "is not running", "container"),
        (
            "Configuration file 'nodes/pve2/lxc/200.conf' does not exist\n",
            "pve1 (node pve2) has no container 200",
            "pct",
        ),
        ("can't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout\n", "another pct task holds", "pct"),
        ("CT is locked (backup)\n", "locked by Proxmox (backup)", "pct"),
        ("sudo: a password is required\n", "sudo on pve1 wants a password", "host"),
        ("sh: 1: sudo: not found\n", "pve1 has no sudo", "host"),
        ("ipcc_send_rec[1] failed: Unknown error -1\n", "must run as root", "pct"),
        ("ipcc_send_rec[1] failed: Connection refused\n", "cluster file system", "host"),
        ("sh: 1: /usr/sbin/pct: not found\n", "has no /usr/sbin/pct", "host"),
        ("bash: line 1: /usr/sbin/pct: No such file or directory\n", "has no /usr/sbin/pct", "host"),
        ("/usr/bin/env: '/opt/venv/bin/python': No such file or directory\n", "no usable /opt/venv/bin/python", None),
        ("/usr/bin/env: \u2018/opt/python\u2019: Permission denied\n", "no usable /opt/python", "container"),
        ("env: can't execute '/usr/bin/python3': No such file or directory\n", "no usable /usr/bin/python3", None),
        (
            "lxc-attach: 200: ../src/lxc/attach.c: lxc_attach_run_command: 1841 No such file or directory - "
            'Failed to exec "/usr/bin/env"\n',
            "has no /usr/bin/env",
            "container",
        ),
        # A locale block before the words must not hide them, and the tail may be cut short.
        ("perl: warning: Setting locale failed.\ncontainer '200' not running!\n", "is not running", "container"),
    ],
)
def test_failures_are_told_by_their_words(words, says, layer):
    error = pct.failure(200, "pve1", words)
    assert error is not None
    assert says in error.message
    assert error.code == ExitCode.HOST
    assert error.next
    assert layer is None or error.layer == layer
    assert error.remote == words.strip()


@pytest.mark.parametrize("words", ["", "trying to acquire lock...\n OK\n", "perl: warning: Setting locale failed.\n"])
def test_noise_is_no_failure(words):
    assert pct.failure(200, "pve1", words) is None

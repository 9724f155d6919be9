"""`pct exec` and `pct enter`: a process of the caller's, in the container's namespaces.

Facts: signals that end this program leave the process running; INT and QUIT are ignored here; the process stays in the
caller's session and group, with SIGPIPE ignored, and gets the caller's descriptors as they are.
"""

from __future__ import annotations

import errno
import os
import signal

from ctdeploy.lab import conf as confs
from ctdeploy.lab.containers.attach import Namespaces, drop_capabilities
from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.layout import NODE
from ctdeploy.lab.pct.caller import Caller, say
from ctdeploy.lab.pct.errors import FAILED, NO_ENTRY, PctError, no_config
from ctdeploy.lab.pct.getopt import Call
from ctdeploy.lab.pct.query import warn

PCT_PATH = b"/sbin:/bin:/usr/sbin:/usr/bin"
CLEAR_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def execute(call: Call, caller: Caller, kind: Kind) -> int:
    """pct exec: the command's own code."""
    pid = _running(call.vmid, kind)
    if not call.rest:
        raise PctError("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 189.\n")
    argv = [word.encode("utf-8", "surrogateescape") for word in call.rest]
    return _attach(call, caller, pid, argv)


def enter(call: Call, caller: Caller, kind: Kind) -> int:
    """pct enter: root's login shell, by the container's own passwd."""
    return _attach(call, caller, _running(call.vmid, kind), None)


def _running(vmid: int, kind: Kind) -> int:
    conf = confs.load(vmid)
    if conf is None:
        raise PctError(no_config(NODE, vmid), NO_ENTRY)
    warn(conf)
    process = kind.init(vmid)
    if process is None:
        raise PctError(f"container '{vmid}' not running!\n")
    return process.pid


def _environment(caller: Caller, keep: bool) -> dict[bytes, bytes]:
    """The caller's, minus its certificates (pve-container 5.0.9), or nothing; then what LXC sets."""
    if not keep:
        return {b"PATH": CLEAR_PATH, b"container": b"lxc", b"TERM": b"linux"}
    kept = {key: value for key, value in caller.environment.items() if key not in (b"SSL_CERT_FILE", b"SSL_CERT_DIR")}
    return {**kept, b"PATH": PCT_PATH, b"container": b"lxc", b"TERM": b"linux"}


def _attach(call: Call, caller: Caller, pid: int, argv: list[bytes] | None) -> int:
    environment = _environment(caller, call.flag("keep-env", True))
    try:
        cwd = os.getcwdb()
    except FileNotFoundError:
        cwd = b"/"
    try:
        namespaces = Namespaces(pid)
    except OSError as error:
        text = f"lxc-attach: {call.vmid}: ../src/lxc/attach.c: get_attach_context: 405 Connection refused"
        raise PctError(f"{text} - Failed to get init pid\n", 1) from error
    ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGQUIT)]
    namespaces.enter_pids()
    child = os.fork()
    if child == 0:
        try:
            for number, handler in ignored:
                # Python's own handler for INT stands for the default; one that was ignored by the caller stays so.
                signal.signal(number, handler if handler is signal.SIG_IGN else signal.SIG_DFL)
            # Python ignores this one at its start, lxc-attach does not. SIGPIPE, ignored by both, stays ignored.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            drop_capabilities()
            namespaces.enter()
            try:
                os.chdir(cwd)
            except OSError:
                os.chdir("/")
            _execute(call.vmid, argv or [_login_shell()], environment)
        finally:
            os._exit(FAILED)
    namespaces.close()
    # These end lxc-attach alone.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _login_shell() -> bytes:
    try:
        with open("/etc/passwd", "rb") as file:
            for line in file:
                fields = line.rstrip(b"\n").split(b":")
                if len(fields) == 7 and fields[2] == b"0":
                    return fields[6] or b"/bin/sh"
    except OSError:
        pass
    return b"/bin/sh"


def _execute(vmid: int, argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """execvp(3) over the new environment's PATH, a text file without `#!` given to the shell; ends the process."""
    name = argv[0]
    places = [name] if b"/" in name else [folder + b"/" + name for folder in environment[b"PATH"].split(b":")]
    denied = False
    problem = errno.ENOENT
    for place in places if name else []:
        try:
            os.execve(place, argv, environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve(b"/bin/sh", [b"/bin/sh", place, *argv[1:]], environment)
            problem = error.errno or problem
            denied = denied or problem == errno.EACCES
            if problem not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                break
    if denied:
        problem = errno.EACCES
    text = f"lxc-attach: {vmid}: ../src/lxc/attach.c: lxc_attach_run_command: 1841 {os.strerror(problem)}"
    say(text.encode() + b' - Failed to exec "' + name + b'"\n')
    os._exit({errno.ENOENT: NOT_FOUND, errno.EACCES: NOT_EXECUTABLE}.get(problem, FAILED))

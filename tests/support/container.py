"""Looks into container 200 of the lab past ctdeploy: by the lab host's own pct, over one SSH connection of its own."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from typing import Any

import paramiko

from ctdeploy.lab.host import LabEndpoint

PYTHON = "/opt/venv/bin/python"

# Session payloads and supervisors have this in their command line (ctdeploy.remote.payloads.BOOT).
_PROCESSES = """
import json, os
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        command = open(f'/proc/{pid}/cmdline', 'rb').read().replace(b'\\0', b' ').decode()
    except OSError:
        continue
    if 'closefd=' + 'False' in command:
        found.append([int(pid), command])
print(json.dumps(found))
"""
_WHOLE = """
import hashlib, json, os, sys
home = sys.argv[1]
name = os.path.basename(os.readlink(home + '/current'))
manifest = json.load(open(f'{home}/releases/{name}/RELEASE.json'))
for entry in manifest['files']:
    data = open(f'{home}/releases/{name}/' + entry['path'], 'rb').read()
    assert hashlib.sha256(data).hexdigest() == entry['sha256'], entry
assert set(os.listdir(f'{home}/releases/{name}')) == {'RELEASE.json', *(e['path'] for e in manifest['files'])}
print(json.dumps(name))
"""


class Container:
    """Container 200 of a lab, and the lab's host."""

    def __init__(self, lab: LabEndpoint) -> None:
        self._client = paramiko.SSHClient()
        self._client.load_host_keys(str(lab.known_hosts))
        self._client.connect(lab.address, lab.port, lab.user, key_filename=str(lab.identity), allow_agent=False)

    def close(self) -> None:
        self._client.close()

    def host(self, *command: str) -> str:
        """A command on the lab's host; its output."""
        _, out, err = self._client.exec_command(shlex.join(command), timeout=60)
        output, errors = out.read().decode(), err.read().decode()
        assert out.channel.recv_exit_status() == 0, f"{command}: {errors}"
        return output

    def run(self, *command: str) -> str:
        """A command in the container; its output."""
        return self.host("pct", "exec", "200", "--", *command)

    def python(self, code: str, *arguments: str) -> Any:
        """What a script that prints JSON says."""
        return json.loads(self.run(PYTHON, "-I", "-S", "-c", code, *arguments))

    def processes_of_ours(self) -> list[Any]:
        """Session payloads and supervisors that live there."""
        found: list[Any] = self.python(_PROCESSES)
        return found

    def listing(self, folder: str) -> list[str]:
        """Names in a folder, also hidden ones; none where there is no such folder."""
        code = (
            "import json, os, sys\n"
            "there = os.path.isdir(sys.argv[1])\n"
            "print(json.dumps(sorted(os.listdir(sys.argv[1])) if there else []))"
        )
        found: list[str] = self.python(code, folder)
        return found

    def active(self, app: str) -> str:
        """The release that `current` points to."""
        return self.run("/bin/readlink", f"/opt/ctdeploy/{app}/current").strip()

    def active_and_whole(self, app: str) -> str:
        """The active release's name, after every file of it was hashed and compared with its manifest."""
        name: str = self.python(_WHOLE, f"/opt/ctdeploy/{app}")
        return name

    def left_behind(self) -> list[str]:
        """Temporary files of a push, in the container and on the host."""
        found = [name for name in self.listing("/var/tmp") if name.startswith(".ctdeploy")]
        return found + [name for name in self.host("ls", "-A", "/var/tmp").split() if name.startswith(".ctdeploy")]


def until(what: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait for something to become true, and say what it was."""
    deadline = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value

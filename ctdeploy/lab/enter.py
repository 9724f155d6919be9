"""Run a command in the lab's host from the machine: `python -m ctdeploy.lab.enter PID -- COMMAND...`.

Not by SSH: this also works for what the client under test must not see, and costs no login.
"""

from __future__ import annotations

import os
import signal
import sys

from ctdeploy.lab.containers.attach import Namespaces, drop_capabilities
from ctdeploy.lab.login import base_environment, root_shell


def main() -> None:
    pid, words = int(sys.argv[1]), sys.argv[3:]
    try:
        namespaces = Namespaces(pid)
        namespaces.enter_user()
        namespaces.enter_pids()
    except OSError as error:
        sys.exit(f"the lab's host cannot be entered: {error.strerror}")
    # Ctrl-C is for the command; we wait for what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            drop_capabilities()
            namespaces.enter()
            os.chdir("/root")
            os.umask(0o022)
            environment = base_environment()
            environment["TERM"] = os.environ.get("TERM", "dumb")
            argv = words or [root_shell(), "-l"]
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            print(f"{words[0] if words else 'shell'}: {error.strerror}", file=sys.stderr)
        finally:
            os._exit(127)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()

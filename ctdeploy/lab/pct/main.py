"""The program `pct` of the lab's host. Runs under `python -IS`, so it starts fast and takes nothing from its caller."""

from __future__ import annotations

import os
import sys

from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.pct.caller import Caller, narrow, say
from ctdeploy.lab.pct.errors import PctError
from ctdeploy.lab.pct.getopt import Call, Command, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

COPY_OPTIONS = (("perms", "text"), ("user", "text"), ("group", "text"))
COMMANDS = {
    command.name: command
    for command in (
        Command("config", ("vmid",), (("current", "boolean"), ("snapshot", "text"))),
        Command("enter", ("vmid",), (("keep-env", "boolean"),)),
        Command("exec", ("vmid",), (("keep-env", "boolean"),), rest=True),
        Command("list"),
        Command("pull", ("vmid", "path", "destination"), COPY_OPTIONS),
        Command("push", ("vmid", "file", "destination"), COPY_OPTIONS),
        Command("shutdown", ("vmid",), (("timeout", "integer"), ("forceStop", "boolean"))),
        Command("start", ("vmid",), (("debug", "boolean"), ("skiplock", "boolean"))),
        Command("status", ("vmid",), (("verbose", "boolean"),)),
        Command("stop", ("vmid",), (("skiplock", "boolean"), ("overrule-shutdown", "boolean"))),
    )
}
# Names that count when a beginning is looked up, though this pct cannot do them.
OTHERS = (
    "clone", "cpusets", "create", "delsnapshot", "destroy", "df", "fsck", "fstrim", "help", "listsnapshot", "migrate",
    "mount", "move-volume", "move_volume", "pending", "reboot", "remote-migrate", "rescan", "resize", "restore",
    "resume", "rollback", "set", "snapshot", "suspend", "template", "unlock", "unmount",
)  # fmt: skip


def main() -> None:
    """Run and end the process with pct's code."""
    caller = Caller()
    try:
        code = _run(caller)
    except PctError as error:
        say(narrow(error.text))
        code = error.code
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    os._exit(code)


def _run(caller: Caller) -> int:
    if not caller.arguments:
        raise PctError(f"ERROR: no command specified\n{_usage()}")
    name, words = _command(caller.arguments[0]), caller.arguments[1:]
    if os.geteuid() != 0:
        lines = [f"ipcc_send_rec[{number}] failed: Unknown error -1" for number in (1, 2, 3)]
        raise PctError("\n".join([*lines, "Unable to load access control list: Unknown error -1"]) + "\n")
    command = COMMANDS.get(name)
    if command is None:
        raise PctError(f"the lab's pct has no '{name}'\n")
    call = parse(command, words)
    return _commands(caller, command)[name](call)


def _commands(caller: Caller, command: Command) -> dict[str, Callable[[Call], int]]:
    # Imported here: `pct list` need not load what `pct push` needs.
    kind = _kind()
    from ctdeploy.lab.pct import query

    table: dict[str, Callable[[Call], int]] = {
        "list": lambda _: query.list_all(kind),
        "status": lambda call: query.status(call, kind),
        "config": lambda call: query.config(call, command),
    }
    if command.name in ("exec", "enter"):
        from ctdeploy.lab.pct import attach

        table |= {
            "exec": lambda call: attach.execute(call, caller, kind),
            "enter": lambda call: attach.enter(call, caller, kind),
        }
    elif command.name in ("push", "pull"):
        from ctdeploy.lab.pct import copy

        table |= {"push": lambda call: copy.push(call, kind), "pull": lambda call: copy.pull(call, kind)}
    elif command.name in ("start", "stop", "shutdown"):
        from ctdeploy.lab.pct import power

        table |= {
            "start": lambda call: power.start(call, kind),
            "stop": lambda call: power.stop(call, kind),
            "shutdown": lambda call: power.shutdown(call, kind),
        }
    return table


def _kind() -> Kind:
    from ctdeploy.lab.containers.namespaces import NamespaceContainers

    return NamespaceContainers()


def _command(word: str) -> str:
    """The sub-command that is meant: its name, or a beginning that only one has."""
    names = (*COMMANDS, *OTHERS)
    if word in names:
        return word
    found = {name.replace("_", "-") for name in names if word and name.startswith(word)}
    if len(found) == 1:
        return found.pop()
    if found:
        raise PctError(f"ERROR: incomplete command 'pct {word}'\n{_usage()}")
    raise PctError(f"ERROR: unknown command 'pct {word}'\n{_usage()}")


def _usage() -> str:
    lines = [f"       {command.usage}" for command in COMMANDS.values()]
    return "USAGE: pct <COMMAND> [ARGS] [OPTIONS]\n\n" + "\n".join(lines) + "\n"

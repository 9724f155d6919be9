"""ctdeploy lab: the local stand-in for a Proxmox host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import command
from ctdeploy.cli.environment import Environment

if TYPE_CHECKING:
    from ctdeploy.lab.host import LabEndpoint, LabStatus

app = typer.Typer(help="The local stand-in for a Proxmox host.", no_args_is_help=True)
containers = typer.Typer(help="Add, change and remove containers of the lab.", no_args_is_help=True)

Vmid = Annotated[int, typer.Argument(metavar="ID", help="The container's id, from 100 on.")]


def register(parent: typer.Typer) -> None:
    command(app, "up")(up)
    command(app, "down")(down)
    command(app, "status")(status)
    command(app, "reset")(reset)
    command(app, "sh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(sh)
    command(containers, "add")(add)
    command(containers, "set")(set_value)
    command(containers, "rm")(remove)
    app.add_typer(containers, name="ct")
    parent.add_typer(app, name="lab")


def up(env: Environment) -> None:
    """Start the lab if it is not up, and print where it listens."""
    from ctdeploy.lab import host

    _show_endpoint(env, host.up(env.step))


def down(
    env: Environment,
    cache: Annotated[bool, typer.Option("--cache", help="Remove the cache folder as well.")] = False,
) -> None:
    """End the lab and remove every process, mount and file of it. The containers' cache folder stays."""
    from ctdeploy.lab import host
    from ctdeploy.lab.state import default_folder

    was_up = host.down(cache=cache)
    kept = default_folder().cache
    document = {"was_up": was_up, "cache": str(kept) if kept.exists() else None}
    env.result(document, lambda: env.line("the lab is down" if was_up else "the lab was not up"))
    if kept.exists():
        env.hint(f"kept: the containers' cache {kept} (`ctdeploy lab down --cache` removes it)")


def status(env: Environment) -> None:
    """Show whether the lab runs, its containers, and what it cannot do on this machine."""
    from ctdeploy.lab import host

    found = host.status()
    env.result(found, lambda: _render_status(env, found))


def _render_status(env: Environment, found: LabStatus) -> None:
    if not found.up or found.endpoint is None:
        env.line("the lab is not up (`ctdeploy lab up` starts it)")
        return
    end = found.endpoint
    env.line(f"up at {end.user}@{end.address}:{end.port}, pid {found.pid}, ctdeploy {found.version}")
    env.line(f"ssh -i {end.identity} -o UserKnownHostsFile={end.known_hosts} -p {end.port} {end.user}@{end.address}")
    env.line(f"state {found.state}, cache {found.cache}, /opt/venv is {found.venv}")
    for row in found.containers:
        env.line(f"container {row['id']} {row['name']}: {row['status']}")
    env.line("works: push, verify, run, logs, stop; pct " + " ".join(found.commands))
    for limit in found.limits:
        env.line(f"does not work: {limit}")


def reset(env: Environment) -> None:
    """Back to new: the host, container 200 and the keys. The cache folder stays."""
    from ctdeploy.lab import host

    _show_endpoint(env, host.reset(env.step))


def sh(
    env: Environment,
    words: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD]", help="Without one, a shell.")] = None,
) -> None:
    """Run a command on the lab's host as its root: `lab sh -- pct list`."""
    import signal
    import subprocess

    from ctdeploy.lab import host

    host.ensure_up(env.step)
    env.rest()
    # Ctrl-C reaches the command by itself, and its end is ours.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    done = subprocess.run(host.enter_argv(words or []), env=host.enter_environment(), check=False)
    signal.signal(signal.SIGINT, before)
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


def add(
    env: Environment,
    vmid: Vmid,
    hostname: Annotated[str, typer.Option(help="The container's host name.")] = "",
    like: Annotated[int | None, typer.Option(metavar="ID", help="Take the settings of this container.")] = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start it at once.")] = True,
) -> None:
    """Make a container and start it."""
    from ctdeploy.lab import host

    host.ensure_up(env.step)
    host.add_container(vmid, hostname or f"CT{vmid}", like, start)
    state = "running" if start else "stopped"
    env.result({"ct": vmid, "status": state}, lambda: env.line(f"container {vmid} is {state}"))


def set_value(
    env: Environment,
    vmid: Vmid,
    key: Annotated[str, typer.Argument(help="A key of the container's .conf, such as hostname, lock, tags or mp1.")],
    value: Annotated[str, typer.Argument(help="Its value; an empty one removes the key.")],
) -> None:
    """Set a key of a container's .conf; what concerns mounts and names counts from its next start."""
    from ctdeploy.lab import host

    host.set_container(vmid, key, value)
    text = f"container {vmid}: {key}: {value}" if value else f"container {vmid}: {key} removed"
    env.result({"ct": vmid, "key": key, "value": value or None}, lambda: env.line(text))


def remove(env: Environment, vmid: Vmid) -> None:
    """Stop and remove a container with its files."""
    from ctdeploy.lab import host

    host.remove_container(vmid)
    env.result({"ct": vmid, "status": None}, lambda: env.line(f"container {vmid} is gone"))


def _show_endpoint(env: Environment, endpoint: LabEndpoint) -> None:
    text = f"{endpoint.user}@{endpoint.address}:{endpoint.port}"
    env.result(dataclasses.asdict(endpoint), lambda: env.line(text))

"""`ctdeploy lab`: the local stand-in for a Proxmox host."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="The local stand-in for a Proxmox host.", no_args_is_help=True)
containers = typer.Typer(help="Add, change and remove containers of the lab.", no_args_is_help=True)
app.add_typer(containers, name="ct")

Vmid = Annotated[int, typer.Argument(metavar="ID", help="The container's id, from 100 on.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="lab")


def _tell(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def up() -> None:
    """Start the lab if it is not up, and print where it listens."""
    from ctdeploy.lab import host

    endpoint = host.up(_tell)
    typer.echo(f"{endpoint.user}@{endpoint.address}:{endpoint.port}")


@app.command()
def down(
    cache: Annotated[bool, typer.Option("--cache", help="Remove the cache folder as well.")] = False,
) -> None:
    """End the lab and remove every process, mount and file of it. The containers' cache folder stays."""
    from ctdeploy.lab import host
    from ctdeploy.lab.state import default_folder

    was_up = host.down(cache=cache)
    folder = default_folder()
    typer.echo("the lab is down" if was_up else "the lab was not up")
    if folder.cache.exists():
        _tell(f"kept: the containers' cache {folder.cache} (`ctdeploy lab down --cache` removes it)")


@app.command()
def status() -> None:
    """Show whether the lab runs, its containers, and what it cannot do on this machine."""
    from ctdeploy.lab import host

    found = host.status()
    if not found.up or found.endpoint is None:
        typer.echo("the lab is not up (`ctdeploy lab up` starts it)")
        return
    end = found.endpoint
    typer.echo(f"up at {end.user}@{end.address}:{end.port}, pid {found.pid}, ctdeploy {found.version}")
    typer.echo(f"ssh -i {end.identity} -o UserKnownHostsFile={end.known_hosts} -p {end.port} {end.user}@{end.address}")
    typer.echo(f"state {found.state}, cache {found.cache}, /opt/venv is {found.venv}")
    for row in found.containers:
        typer.echo(f"container {row['id']} {row['name']}: {row['status']}")
    typer.echo("works: push, verify, run, logs, stop; pct " + " ".join(found.commands))
    for limit in found.limits:
        typer.echo(f"does not work: {limit}")


@app.command()
def reset() -> None:
    """Back to new: the host, container 200 and the keys. The cache folder stays."""
    from ctdeploy.lab import host

    endpoint = host.reset(_tell)
    typer.echo(f"{endpoint.user}@{endpoint.address}:{endpoint.port}")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def sh(context: typer.Context) -> None:
    """Run a command on the lab's host as its root (`lab sh -- pct list`); without one, a shell."""
    import subprocess

    from ctdeploy.lab import host

    host.ensure_up(_tell)
    done = subprocess.run(host.enter_argv(context.args), env=host.enter_environment(), check=False)
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


@containers.command("add")
def add(
    vmid: Vmid,
    hostname: Annotated[str, typer.Option(help="The container's host name.")] = "",
    like: Annotated[int | None, typer.Option(metavar="ID", help="Take the settings of this container.")] = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start it at once.")] = True,
) -> None:
    """Make a container and start it."""
    from ctdeploy.lab import host

    host.ensure_up(_tell)
    host.add_container(vmid, hostname or f"CT{vmid}", like, start)
    typer.echo(f"container {vmid} is {'running' if start else 'made'}")


@containers.command("set")
def set_value(
    vmid: Vmid,
    key: Annotated[str, typer.Argument(help="A key of the container's .conf, such as hostname, lock, tags or mp1.")],
    value: Annotated[str, typer.Argument(help="Its value; an empty one removes the key.")],
) -> None:
    """Set a key of a container's .conf; what concerns mounts and names counts from its next start."""
    from ctdeploy.lab import host

    host.set_container(vmid, key, value)
    typer.echo(f"container {vmid}: {key}: {value}" if value else f"container {vmid}: {key} removed")


@containers.command("rm")
def remove(vmid: Vmid) -> None:
    """Stop and remove a container with its files."""
    from ctdeploy.lab import host

    host.remove_container(vmid)
    typer.echo(f"container {vmid} is gone")

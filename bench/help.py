"""How long `ctdeploy --help` takes beside a Typer app of as many empty commands, in one run, taking turns.

    python bench/help.py [ROUNDS]

The limit of the project is a ratio of 1.25 between the medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMPTY = """
import typer
app = typer.Typer(name="empty", help="Empty.", no_args_is_help=True, rich_markup_mode="rich")
def make(target, name):
    @target.command(name)
    def command() -> None:
        "One line of help that says what the command does."
for name in {names!r}:
    make(app, name)
for group in {groups!r}:
    sub = typer.Typer(help="A group.")
    make(sub, "one")
    app.add_typer(sub, name=group)
app()
"""
COMMANDS = ["push", "verify", "run", "logs", "status", "stop", "init"]
GROUPS = ["config", "lab"]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(EMPTY.format(names=COMMANDS, groups=GROUPS))
        empty = [sys.executable, str(script), "--help"]
        ours = [str(Path(sys.executable).with_name("ctdeploy")), "--help"]
        for command in (empty, ours):
            seconds(command)
        times = [(seconds(empty), seconds(ours)) for _ in range(rounds)]
    base, own = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"empty Typer app {base * 1000:.0f} ms, ctdeploy {own * 1000:.0f} ms, ratio {own / base:.2f} ({rounds} rounds)"
    )


if __name__ == "__main__":
    main()

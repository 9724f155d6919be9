"""The command line of the trainer."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dflash.config import load_config
from dflash.errors import TrainerError
from dflash.metrics import say
from dflash.run import Run
from dflash.stopping import StopFlag, Stopped
from dflash.workers import WorkerFailed


def main(arguments: Sequence[str] | None = None, stop: StopFlag | None = None) -> int:
    """The command `dflash_train.py`; returns the exit code. `stop` is a flag that is installed already."""
    parser = argparse.ArgumentParser(
        prog="dflash_train.py", description="Trains a DFlash drafter, threads in one process."
    )
    parser.add_argument("--config", type=Path, required=True, help="recipe (TOML)")
    parser.add_argument("--run-dir", type=Path, help="default: $CTDEPLOY_RUN_DIR, or runs/<time>")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace keys of the recipe")
    parsed = parser.parse_intermixed_args(arguments)
    folder = parsed.run_dir or Path(os.environ.get("CTDEPLOY_RUN_DIR") or f"runs/{time.strftime('%Y%m%d-%H%M%S')}")
    if stop is None:
        stop = StopFlag()
        stop.install()
    try:
        stop.check()
        config = load_config(parsed.config, parsed.overrides)
        say(f"run folder: {folder}")
        Run(config, folder, stop).execute()
    except Stopped:
        say(f"stopped by {stop.signal} before training; nothing to save")
    except TrainerError as error:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
        if error.next:
            print(f"next: {error.next}", file=sys.stderr, flush=True)
        return 1
    except WorkerFailed as failure:
        if not isinstance(failure.error, TrainerError):
            print(failure.trace, file=sys.stderr)
        print(f"error: {failure}", file=sys.stderr, flush=True)
        # Other workers may sit in a kernel or a compiler; they are daemon threads, and nothing waits for them.
        os._exit(1)
    return 0

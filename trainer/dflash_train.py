"""Trains a DFlash drafter: `python dflash_train.py --config recipes/demo.toml [section.key=value ...]`."""

from __future__ import annotations

from dflash.stopping import StopFlag


def main() -> int:
    """Takes over the signals, then starts the trainer; returns the exit code."""
    stop = StopFlag()
    stop.install()
    # Importing torch takes seconds, in which a stop must already end the run in order.
    from dflash.app import main as train

    return train(stop=stop)


if __name__ == "__main__":
    raise SystemExit(main())

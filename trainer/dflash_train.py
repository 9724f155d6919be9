"""Trains a DFlash drafter: `python dflash_train.py --config recipes/demo.toml [section.key=value ...]`."""

from __future__ import annotations

from dflash.app import main

if __name__ == "__main__":
    raise SystemExit(main())

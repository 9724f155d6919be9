"""The console script: quiet also when Ctrl-C comes while the commands are being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ctdeploy and exit with its code."""
    try:
        from ctdeploy.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)

"""`ctdeploy --help` is what people type first and most often; it loads nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

# pydantic is not among them: typer itself loads it to read the options of a command.
HEAVY = ("paramiko", "proxmoxer", "torch", "asyncssh", "requests", "cryptography", "ctdeploy.inventory")


@pytest.mark.parametrize("arguments", [["--help"], ["push", "--help"], ["lab", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    code = (
        "import sys\nfrom ctdeploy.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print('LOADED', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    loaded = done.stderr.split("LOADED")[1].split()
    assert "typer" in loaded
    assert not [name for name in HEAVY if name in loaded]

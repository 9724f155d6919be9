"""`python -m ctdeploy`."""

from ctdeploy.cli.main import main

main()

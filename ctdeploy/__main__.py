"""`python -m ctdeploy`."""

from ctdeploy.program import main

main()

"""The command line: one file a command; parse, call, render. The only layer that prints."""

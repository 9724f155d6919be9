"""A DFlash drafter trainer: target and drafters are threads of one process."""

from __future__ import annotations

import os

# libgomp reads this when torch is imported. By default a thread that waits for its siblings burns its core for long;
# where cores are shared, the sibling then cannot run: one decoded token took 432 ms instead of 96 beside two busy
# processes on two cores, and 46 instead of 37 on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

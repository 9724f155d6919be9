"""The whole story: `ctdeploy lab demo` pushes the bundled trainer into the lab and trains a drafter there."""

from __future__ import annotations

import re

import pytest

from tests.support.container import Container
from tests.support.program import Program


@pytest.mark.timeout(1500)
def test_the_demo_trains_a_drafter_that_speculates_losslessly_on_what_it_learned(
    program: Program, container: Container
):
    done = program.ok("lab", "demo", "--json", limit_s=1400)
    result = done.json
    assert result["run"]["state"] == "done"

    lines = result["run"]["markers_at_start"]
    assert len(lines) == 2
    assert all("compiling forward (cudagraphs=False)" in line for line in lines)
    assert {re.search(r"drafter-\d", line).group(0) for line in lines} == {"drafter-0", "drafter-1"}
    marker = result["verify"]["markers"][0]
    assert (marker["path"], marker["marker"]) == ("dflash/compile.py", "cudagraphs=False")

    training = result["training"]
    assert training["last_loss"] < 0.5 * training["first_loss"]
    assert training["lossless"] is True
    assert training["memorised"]["prompts"] == training["heldout"]["prompts"] == 8
    assert result["rise"] >= 1.0
    assert result["rise"] == training["memorised"]["tau_after"] - training["memorised"]["tau_before"]
    assert {"config.json", "model.safetensors"} <= set(container.listing(result["checkpoint"]))
    # The log that people watched is the log of the run.
    assert "step 1 done" in done.err
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/dflash_train")

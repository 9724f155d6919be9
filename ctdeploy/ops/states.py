"""A run's state in words."""

from __future__ import annotations

from typing import Any


def short(run: dict[str, Any]) -> str:
    """A run's state for a table."""
    state = str(run["state"])
    if state in ("running", "starting", "stopping"):
        return state if run.get("supervised", True) else f"{state}, its supervisor is gone"
    if run.get("reason"):
        return f"{state}: {run['reason']}"
    if "signal" in run:
        cause = "out of memory" if run.get("oom_kill") else "cause unknown"
        return f"{state} ({run['signal']}, {cause})" if run["signal"] == "SIGKILL" else f"{state} ({run['signal']})"
    return f"{state} (exit code {run['exit_code']})" if run.get("exit_code") else state


def describe_end(run: dict[str, Any]) -> str:
    """How a run ended, claiming only what there is evidence for."""
    if run.get("reason"):
        return f"failed: {run['reason']}"
    state = run["state"]
    if state == "lost":
        return "is lost: its supervisor and its process are gone without a word (container restart or power cut)"
    if state == "stopped":
        how = (
            f"exit code {run['exit_code']}" if "exit_code" in run else run.get("signal") or run.get("note") or "no code"
        )
        return f"was stopped ({how})"
    if "signal" in run:
        if run["signal"] == "SIGKILL":
            if run.get("oom_kill"):
                return "was killed by the kernel for memory (SIGKILL, and the cgroup counted an OOM kill)"
            return "was killed (SIGKILL, cause unknown)"
        return f"died of {run['signal']}"
    if "exit_code" in run:
        return "ended well" if run["exit_code"] == 0 else f"failed with exit code {run['exit_code']}"
    return f"is {state}"

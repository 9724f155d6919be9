"""Whom a run runs as, and the environment that it gets: what the app and the container say, nothing of the host."""

from __future__ import annotations

import pwd
from typing import Any, Dict

from ctdeploy.remote.payloads.files import Failure


def account(user: str) -> pwd.struct_passwd:
    """The container's entry of a user. Raises Failure("host")."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise Failure("host", f"run_as: the container has no user {user}", "name one of its /etc/passwd") from None


def environment(user: str, variables: Dict[str, str]) -> Dict[str, str]:
    """`variables`, with HOME and the like of the user where they do not say otherwise."""
    entry = account(user)
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, **variables}


def child_identity(user: str) -> Dict[str, Any]:
    """Arguments of subprocess.Popen that start a child as the user; none for root."""
    entry = account(user)
    if entry.pw_uid == 0:
        return {}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

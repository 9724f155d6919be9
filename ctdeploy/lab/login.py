"""What a login gives root on the lab's host."""

from __future__ import annotations

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def root_shell() -> str:
    """Root's login shell, from the host's own passwd."""
    with open("/etc/passwd") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if fields[0] == "root":
                return fields[6] or "/bin/sh"
    return "/bin/sh"


def base_environment() -> dict[str, str]:
    """What sshd gives root without PAM, but for SSH_*; no LANG, as on a node whose client sends none."""
    return {"USER": "root", "LOGNAME": "root", "HOME": "/root", "PATH": PATH, "SHELL": root_shell()}

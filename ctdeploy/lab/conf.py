"""Container .conf files of Proxmox VE: /etc/pve/lxc/<id>.conf, read as pct reads them, warnings included.

Facts: pct.conf(5) and the recordings of `pct config` over odd files (an unknown key warns and is kept, a bad value of a
known key warns and later fails the command, a line of no known shape warns and is dropped).
"""

from __future__ import annotations

import os

from ctdeploy.lab.layout import NODE

LOCKS = (
    "backup", "create", "destroyed", "disk", "fstrim", "migrate", "mounted", "rollback", "snapshot", "snapshot-delete",
)  # fmt: skip
INTEGERS = {"console": None, "cores": (1, 8192), "memory": (16, None), "swap": (0, None), "tty": (0, 6),
            "cpuunits": (0, 500000)}  # fmt: skip
BOOLEANS = ("console", "debug", "onboot", "protection", "template", "unprivileged")
TEXTS = (
    "arch", "cmode", "cpulimit", "description", "digest", "entrypoint", "env", "features", "hookscript", "hostname",
    "lock", "nameserver", "ostype", "parent", "rootfs", "snaptime", "searchdomain", "snapstate", "startup", "tags",
    "timezone",
)  # fmt: skip
NUMBERED = {"mp": 256, "net": 32, "unused": 256, "dev": 256}
PENDING = "pve:pending"


class Section:
    """One section of a .conf file: values by key, and the raw lxc.* lines in their order."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.raw: list[tuple[str, str]] = []
        self.description = ""


class Conf:
    """A container's configuration as written, its snapshots and pending changes, and what was odd about it.

    `warnings` are pct's words without the end of line; `invalid` maps keys to why their value is none.
    """

    def __init__(self) -> None:
        self.main = Section()
        self.sections: dict[str, Section] = {}
        self.warnings: list[str] = []
        self.invalid: dict[str, str] = {}

    def value(self, key: str, default: str = "") -> str:
        return self.main.values.get(key, default)

    def flag(self, key: str) -> bool:
        return truth(self.value(key)) is True


def truth(text: str) -> bool | None:
    """A boolean as Proxmox VE reads one; None for anything else."""
    low = text.lower()
    if low in ("1", "on", "yes", "true"):
        return True
    if low in ("0", "off", "no", "false"):
        return False
    return None


def path(vmid: int, root: str = "") -> str:
    return f"{root}/etc/pve/nodes/{NODE}/lxc/{vmid}.conf"


def ids(root: str = "") -> list[int]:
    """The containers of this node, by number."""
    names = os.listdir(f"{root}/etc/pve/nodes/{NODE}/lxc")
    stems = (name.removesuffix(".conf") for name in names if name.endswith(".conf"))
    return sorted(int(stem) for stem in stems if stem.isdigit() and int(stem) >= 100)


def load(vmid: int) -> Conf | None:
    """Read a container's file; None when this node has none of that id."""
    try:
        with open(path(vmid), encoding="utf-8", errors="surrogateescape") as file:
            return parse(vmid, file.read())
    except FileNotFoundError:
        return None


def parse(vmid: int, text: str) -> Conf:
    conf = Conf()
    section = conf.main
    for line in text.split("\n"):
        if not line.strip():
            continue
        if line.startswith("[") and line.rstrip().endswith("]"):
            section = conf.sections.setdefault(line.strip()[1:-1].strip(), Section())
        elif line.startswith("#"):
            section.description += _unescape(line[1:].rstrip()) + "\n"
        else:
            _setting(vmid, conf, section, line)
    for part in (conf.main, *conf.sections.values()):
        if part.description:
            part.values["description"] = part.description
    return conf


def _setting(vmid: int, conf: Conf, section: Section, line: str) -> None:
    key, colon, value = line.partition(":")
    if line.startswith("lxc.") and not (colon and _is_lxc_key(key)):
        key, colon, value = line.partition("=")
        key = key.strip()
    value = value.strip()
    if colon and key.startswith("lxc.") and _is_lxc_key(key):
        section.raw.append((key, value))
    elif colon and key and key[0].isalpha() and all(char.isalnum() or char in "_-" for char in key):
        problem = check(key, value) if not (section is not conf.main and key == "delete") else None
        if problem:
            conf.warnings.append(f"vm {vmid} - unable to parse value of '{key}' - {problem}")
            if known(key):
                if section is conf.main:
                    conf.invalid[key] = problem
                return
        section.values[key] = value
    else:
        conf.warnings.append(f"vm {vmid} - unable to parse config: {line}")


def _is_lxc_key(key: str) -> bool:
    return all(char.isalnum() or char in "._-" for char in key)


def known(key: str) -> bool:
    if key in INTEGERS or key in BOOLEANS or key in TEXTS:
        return True
    stem = key.rstrip("0123456789")
    return stem in NUMBERED and stem != key and int(key[len(stem) :]) < NUMBERED[stem]


def check(key: str, value: str) -> str | None:
    """Why this is no setting, in pct's words; None when it is one."""
    if not known(key):
        return f"unknown setting '{key}'"
    if key in BOOLEANS:
        return None if truth(value) is not None else f"type check ('boolean') failed - got '{value}'"
    if key in INTEGERS:
        if not value.lstrip("-").isdigit():
            return f"type check ('integer') failed - got '{value}'"
        low, high = INTEGERS[key] or (None, None)
        if low is not None and int(value) < low:
            return f"value must have a minimum value of {low}"
        if high is not None and int(value) > high:
            return f"value must have a maximum value of {high}"
    if key == "lock" and value not in LOCKS:
        return f"value '{value}' does not have a value in the enumeration '{', '.join(LOCKS)}'"
    return None


def check_hostname(name: str) -> str | None:
    """Why this is no host name; None when it is one (RFC 1123)."""
    labels = name.split(".")
    for label in labels:
        plain = label.isascii() and all(char.isalnum() or char == "-" for char in label)
        if not plain or not 0 < len(label) <= 63 or label.startswith("-") or label.endswith("-"):
            return f"'{name}' does not look like a valid DNS name"
    return None


def _unescape(text: str) -> str:
    """Percent-decoding of a description, which is UTF-8 underneath."""
    if "%" not in text:
        return text
    raw, left = bytearray(), text.encode("utf-8", "surrogateescape")
    while left:
        if left[:1] == b"%" and len(left) >= 3:
            try:
                raw.append(int(left[1:3], 16))
                left = left[3:]
                continue
            except ValueError:
                pass
        raw += left[:1]
        left = left[1:]
    return raw.decode("utf-8", "surrogateescape")


def escape(text: str) -> str:
    """How a description is shown on one line."""
    out = ""
    for byte in text.encode("utf-8", "surrogateescape"):
        keep = 0x20 <= byte < 0x7F and chr(byte) not in "%:"
        out += chr(byte) if keep else f"%{byte:02X}"
    return out


def properties(text: str, default: str) -> dict[str, str]:
    """A property string such as `local:200/x.subvol,size=8G`; a part without a key belongs to `default`."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            found[key] = value
        elif part:
            found[default] = part
    return found


def replace_values(vmid: int, changes: dict[str, str | None]) -> None:
    """Set or remove keys of the main section in place, leaving every other line as it is."""
    with open(path(vmid), encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    head, bracket, tail = text, "", ""
    start = 0 if text.startswith("[") else text.find("\n[") + 1
    if text.startswith("[") or start > 0:
        head, tail = text[:start], text[start:]
        bracket = "\n" if head and not head.endswith("\n\n") else ""
    lines = [line for line in head.splitlines() if line.partition(":")[0] not in changes]
    lines += [f"{key}: {value}" for key, value in changes.items() if value is not None]
    body = "\n".join(_sorted(lines)) + "\n" if lines else ""
    write(vmid, body + (bracket + tail if tail else ""))


def _sorted(lines: list[str]) -> list[str]:
    """Comments first, settings by key, raw lxc lines last: the order in which Proxmox VE writes them."""
    comments = [line for line in lines if line.startswith("#")]
    raw = [line for line in lines if line.startswith("lxc.")]
    settings = [line for line in lines if line.strip() and not line.startswith(("#", "lxc."))]
    return comments + sorted(settings) + raw


def write(vmid: int, text: str) -> None:
    """Replace a container's file in one step."""
    part = f"{path(vmid)}.part"
    with open(part, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.rename(part, path(vmid))

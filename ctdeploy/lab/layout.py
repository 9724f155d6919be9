"""Paths inside the lab's host, where the lab differs from a Proxmox VE node. Imported by `pct`: keep it cheap."""

from __future__ import annotations

NODE = "lab"

# Runtime things of the lab itself; /run is a tmpfs, so they are as old as the host's boot.
RUN = "/run/ctdeploy-lab"
PRISTINE_USR = f"{RUN}/usr"  # the machine's /usr, without our pct in it: what containers get
VENV = f"{RUN}/venv"
BASES = f"{RUN}/base"  # BASES/N: the N-th folder that the venv's python needs
INTERPRETER = f"{RUN}/interpreter.json"  # which folder is to be mounted where for the venv's python
CODE = f"{RUN}/code"  # CODE/ctdeploy: this package
ADMIN = f"{RUN}/admin"  # the lab's own program, behind `ctdeploy lab ct`
PYCACHE = "/var/cache/ctdeploy-lab/pycache"

CACHE = "/var/lib/ctdeploy-cache"  # the user's cache folder, which survives the lab
VENV_IN_CONTAINER = "/opt/venv"
CACHE_IN_CONTAINER = "/var/cache/ctdeploy"

# Files of the machine's /etc that its /usr refers to.
SHARED_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "perl",
    "resolv.conf",
    "ssl/certs",
    "ssl/openssl.cnf",
)
# Names at the top that are links into /usr on a merged system, folders on others.
TOP_OF_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

ID_SHIFT = 100_000
ID_RANGE = 65_536

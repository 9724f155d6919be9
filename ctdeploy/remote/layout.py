"""Where things lie on the host and in the container. No other module spells such a path."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

DEST = "/opt/ctdeploy"
HOST_STAGING = "/var/tmp"  # noqa: S108  (a random 0700 folder is made below it)
INCOMING = "/var/tmp/.ctdeploy-in-"  # noqa: S108  (random name; read back by hash)
STAGING_PREFIX = ".ctdeploy-stage-"


@dataclass(frozen=True)
class Staging:
    """The names of one push: a private folder on the host, and where `pct push` lands in the container."""

    folder: str
    bundle: str
    incoming: str


def new_staging(app: str, base: str = HOST_STAGING) -> Staging:
    """Fresh random names for one push of `app`."""
    token = secrets.token_hex(8)
    folder = f"{base}/{STAGING_PREFIX}{token}"
    return Staging(folder=folder, bundle=f"{folder}/bundle", incoming=f"{INCOMING}{app}-{token}")

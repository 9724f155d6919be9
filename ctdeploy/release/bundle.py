"""Packs files of a release for the way to the container."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Collection

from ctdeploy.errors import CheckError
from ctdeploy.release.model import Release


def bundle(release: Release, hashes: Collection[str]) -> bytes:
    """A gzipped tar of the files with the given SHA-256s, each once and named by its hash.

    Equal input gives equal bytes. Raises CheckError if a file is not what it was when the release was checked, and
    KeyError for a hash that the release does not have.
    """
    by_hash = {file.sha256: file for file in release.files}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for sha256 in sorted(set(hashes)):
            file = by_hash[sha256]
            try:
                data = file.source.read_bytes()
            except OSError as error:
                raise CheckError(f"{file.path}: {error.strerror} while pushing", next="push again") from error
            if hashlib.sha256(data).hexdigest() != sha256:
                raise CheckError(f"{file.path} changed while pushing", next="push again")
            member = tarfile.TarInfo(sha256)
            member.size = len(data)
            member.mode = 0o600
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)

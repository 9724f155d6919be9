"""Shell lines for the host, as pure values. Arguments reach the shell as $1, $2; the transport quotes once."""

from __future__ import annotations

from collections.abc import Sequence

# The folder lives as long as the channel: `read` ends with it, and the trap removes the folder whatever happens.
# Sweeping takes what a crash of the host itself left (older than a day, ours by name and owner).
_STAGE = """\
umask 077
trap 'rm -rf -- "$1"' EXIT
trap 'exit 1' HUP INT TERM PIPE
find "${1%/*}" -maxdepth 1 -name '.ctdeploy-stage-*' -user "$(id -u)" -mmin +1440 -exec rm -rf -- {} + 2>/dev/null
mkdir -m 700 -- "$1" || exit 3
echo "$2 ready"
while read -r word size; do
  case $word in
    stdin) head -c "$size" > "$1/bundle" && echo "$2 stored" ;;
    push)
      have=$(wc -c < "$1/bundle") || have=none
      [ "$have" -eq "$size" ] 2>/dev/null || { echo "$2 short $have"; continue; }
      ( shift 2; exec "$@" ) </dev/null
      echo "$2 pushed $?" ;;
    *) exit 0 ;;
  esac
done
"""


def stage_argv(folder: str, nonce: str, push: Sequence[str]) -> tuple[str, ...]:
    """A helper on the host for one push: makes a private folder, waits for the bundle, runs `pct push`, cleans up.

    It speaks lines that start with `nonce` and reads: `stdin SIZE` (SIZE bytes follow), `push SIZE`, `bye`.
    """
    return ("/bin/sh", "-c", _STAGE, "ctdeploy-stage", folder, nonce, *push)

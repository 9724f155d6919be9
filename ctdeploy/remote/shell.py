"""Shell programs for the host, as pure values. Arguments reach the shell as $1, $2; the transport quotes once."""

from __future__ import annotations

from collections.abc import Sequence

# The folder lives as long as the channel: `read` ends with it, and the trap removes the folder whatever happens. A
# bundle that landed in the container is the session's to remove; when the laptop vanished the session may have ended
# before it landed, so it is removed from here unless we were told `bye`.
# `find` takes what a crash of the host itself left: older than a day, ours by name and owner.
_STAGE = """\
folder=$1 nonce=$2 ct=$3 incoming=$4 landed=
shift 4
umask 077
trap 'rm -rf -- "$folder"; [ -z "$landed" ] || "$@" exec "$ct" -- /bin/rm -f -- "$incoming" </dev/null' EXIT
trap 'exit 1' HUP INT TERM PIPE
find "${folder%/*}" -maxdepth 1 -name '.ctdeploy-stage-*' -user "$(id -u)" -mmin +1440 -exec rm -rf -- {} + 2>/dev/null
mkdir -m 700 -- "$folder" || exit 3
echo "$nonce ready"
while read -r word size; do
  case $word in
    stdin)
      head -c "$size" > "$folder/bundle" || { echo "$nonce short $(wc -c < "$folder/bundle")"; exit 4; }
      echo "$nonce stored" ;;
    push)
      have=$(wc -c < "$folder/bundle") || have=none
      [ "$have" -eq "$size" ] 2>/dev/null || { echo "$nonce short $have"; continue; }
      landed=yes
      "$@" push "$ct" "$folder/bundle" "$incoming" --perms 0600 </dev/null
      echo "$nonce pushed $?" ;;
    *) landed=; exit 0 ;;
  esac
done
"""


def stage_argv(folder: str, nonce: str, ct: int, incoming: str, pct: Sequence[str]) -> tuple[str, ...]:
    """A helper on the host for one push: makes a private folder, waits for the bundle, runs `pct push`, cleans up.

    It speaks lines that start with `nonce` and reads: `stdin SIZE` (SIZE bytes follow), `push SIZE`, `bye`. `pct`: the
    words that call pct there. The bundle is readable for root only, on the host and in the container.
    """
    return ("/bin/sh", "-c", _STAGE, "ctdeploy-stage", folder, nonce, str(ct), incoming, *pct)

#!/bin/sh
# What `make` needs before there is a Python environment. Says nothing when all is there; else one line that mends it.
# Prints the interpreter to use on standard output. With `tests`: what the tests need besides.
set -u

fail() {
    printf 'missing: %s\n  mend it: %s\n' "$1" "$2" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] || fail "Linux (the lab needs its namespaces)" "run this on a Linux machine or in a Linux VM"

python=
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(command -v "$candidate")
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11 or newer" "apt-get install -y python3.11 python3.11-venv python3.11-dev"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "the venv module of Python $version" "apt-get install -y python$version-venv"
# torch.compile builds a C++ extension on a CPU.
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    fail "Python.h of Python $version" "apt-get install -y python$version-dev"
command -v g++ >/dev/null 2>&1 || fail "g++" "apt-get install -y g++"
if [ "$(id -u)" = 0 ]; then
    unshare --mount --pid --uts --fork true 2>/dev/null ||
        fail "namespaces: this root may not make any (a container without CAP_SYS_ADMIN?)" \
            "start the container with --privileged, or use a VM"
else
    unshare --user --map-root-user --mount --pid --uts --fork true 2>/dev/null ||
        fail "user namespaces for ordinary users" \
            "sudo sysctl -w user.max_user_namespaces=10000 kernel.apparmor_restrict_unprivileged_userns=0"
fi
if [ "${1:-}" = tests ]; then
    command -v git >/dev/null 2>&1 || fail "git" "apt-get install -y git"
    command -v ssh-keygen >/dev/null 2>&1 || fail "ssh and ssh-keygen" "apt-get install -y openssh-client"
fi
printf '%s\n' "$python"

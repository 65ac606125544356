#!/usr/bin/env bash
# Makes what tests/image builds from, once, into IMAGE_FOLDER: a base of Debian's packages with Python (no registry of
# images is asked), and the pinned packages. prepare.sh PYTHON. Needs Debian 12 and root. Exit code 0 also where it cannot:
# it says why, and the tests skip.
set -euo pipefail
python=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=${IMAGE_FOLDER:-$HOME/.cache/diagnoser-test-image}
cannot() { echo "test-image cannot build here: $1" >&2; exit 0; }

[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || cannot "it takes root on Debian 12 (packages buildah, podman, mmdebstrap)"
if ! command -v buildah podman mmdebstrap >/dev/null; then
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 buildah podman mmdebstrap >/dev/null 2>&1 ||
        cannot "no buildah, podman or mmdebstrap"
fi
mkdir -p "$folder"

sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*debian*; do
    [ -f "$file" ] && sources+=("$file")
done
# As slim images are: without manuals, translations and bytecode, with the licences.
slim=(--customize-hook='find "$1/usr/lib" -name __pycache__ -prune -exec rm -rf {} +'
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
base() {
    local tar=$folder/$1.tar
    [ -f "$tar" ] && return
    rm -rf "$tar"
    # By its ending mmdebstrap knows that a tar is wanted; without one it makes a folder.
    mmdebstrap --quiet "${slim[@]}" "${@:2}" bookworm "$folder/new.tar" "${sources[@]}" || cannot "no base by mmdebstrap"
    mv "$folder/new.tar" "$tar"
}
# What merged /usr is of no more use, and brings all of Perl, which no slim image has.
merged="usrmerge libfile-find-rule-perl libnumber-compare-perl libtext-glob-perl perl perl-modules-5.36 libperl5.36"
base base --variant=essential --include=python3,ca-certificates,libstdc++6,usr-is-merged \
    --customize-hook="chroot \"\$1\" dpkg --purge --force-depends $merged >/dev/null 2>&1"
base build-base --variant=minbase --include=python3,python3-venv,ca-certificates,binutils,usr-is-merged

wanted=$(sha256sum <"$here/requirements/runtime.txt")
if [ "$(cat "$folder/wheels/.complete" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$folder/wheels"
    mkdir -p "$folder/wheels"
    fetch() { "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" "$@"; }
    fetch --require-hashes -r "$here/requirements/runtime.txt" || cannot "the pinned packages cannot be had"
    # What only the base's Python needs (3.11.2), and what packages are built with.
    early=$(sed -n "s/^\(async-timeout==[0-9.]*\).*/\1/p" "$here/requirements/runtime.txt")
    "$python" -m pip download --quiet --disable-pip-version-check --dest "$folder/wheels" "$early" hatchling setuptools wheel || cannot "no build tools"
    echo "$wanted" >"$folder/wheels/.complete"
fi

#!/usr/bin/env bash
# Runs a command in a network namespace that has only loopback, for the control plane's ports are fixed; and in one
# of processes, so that nothing outlives it: isolated.sh COMMAND [WORD...]
set -euo pipefail
rights=()
[ "$(id -u)" = 0 ] || rights=(--user --map-root-user)
exec unshare --net --pid --fork --kill-child --mount-proc "${rights[@]}" sh -c 'ip link set lo up && exec "$@"' run "$@"

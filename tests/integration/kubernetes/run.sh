#!/usr/bin/env bash
# Runs the tests of this folder on a real control plane: run.sh PYTEST. Builds it once, into KUBERNETES_FOLDER. Hollow
# kubelets listen on all addresses, so that all of it runs in a network namespace that has only loopback; and in one of
# processes, so that nothing outlives the tests.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${KUBERNETES_FOLDER:-$HOME/.cache/diagnoser-test-kubernetes}
"$here/build.sh" "$folder" || [ $? = 3 ]   # it has said why it cannot: the tests skip
rights=()
[ "$(id -u)" = 0 ] || rights=(--user --map-root-user)
exec unshare --net --pid --fork --kill-child --mount-proc "${rights[@]}" sh -c 'ip link set lo up && exec "$@"' run "$1" -m kubernetes "$here"

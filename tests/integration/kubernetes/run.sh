#!/usr/bin/env bash
# Runs the tests of this folder on a real control plane: run.sh PYTEST. Builds it once, into KUBERNETES_FOLDER.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${KUBERNETES_FOLDER:-$HOME/.cache/diagnoser-test-kubernetes}
"$here/build.sh" "$folder" || [ $? = 3 ]   # it has said why it cannot: the tests skip
exec "$here/isolated.sh" "$1" -m kubernetes "$here"

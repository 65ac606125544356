#!/usr/bin/env bash
# A real llama.cpp server in an environment of its own: llama_cpp.sh FOLDER. Does nothing when it is there already.
# Compiles for about ten minutes; needs a C++ compiler.
set -euo pipefail
folder=$1
venv=$folder/llama
[ -e "$venv/.installed" ] && exit 0
mkdir -p "$folder"
"${PYTHON:-python3.11}" -m venv --clear "$venv"
nice "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'llama-cpp-python[server]' gguf
touch "$venv/.installed"

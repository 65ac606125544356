#!/usr/bin/env bash
# Starts vLLM for diagnoser: serve.sh MODEL [more options of `vllm serve`]
#   MODEL  a Hugging Face name or a folder; sizes and memory are in README.md beside this file
#   VLLM_API_KEY        key that diagnoser shows (DIAGNOSER_LLM_API_KEY); made up when it is not set
#   PORT, GPUS, LENGTH  8000, 1, 16384
# vLLM's pins contradict the service's: install it in an environment or image of its own.
set -euo pipefail
model=${1:?"usage: serve.sh MODEL [options of vllm serve]"}
shift
if [ -z "${VLLM_API_KEY:-}" ]; then
  VLLM_API_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  echo "DIAGNOSER_LLM_API_KEY=$VLLM_API_KEY" >&2
fi
# The key goes by the environment: arguments show in the process list.
export VLLM_API_KEY
exec vllm serve "$model" \
  --served-model-name "${NAME:-diagnoser}" \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
  --tensor-parallel-size "${GPUS:-1}" \
  --max-model-len "${LENGTH:-16384}" \
  --max-num-seqs 16 \
  --enable-prefix-caching \
  "$@"

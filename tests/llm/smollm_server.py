"""Serves the GGUF weights of an installed package with llama.cpp's own server: smollm_server.py PORT KEY.

Runs in the environment that smollm.sh makes.
"""

import sys
import sysconfig
import threading
from pathlib import Path

import xllamacpp

CONTEXT = 8192
"""Tokens that SmolLM2 was trained on, and that a question needs."""


def weights() -> Path:
    """The largest file of weights in the environment; its package is not imported: what it needs is not installed."""
    files = sorted(Path(sysconfig.get_path("purelib")).rglob("*.gguf"), key=lambda file: file.stat().st_size)
    if not files:
        raise SystemExit("no installed package ships weights as GGUF")
    return files[-1]


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

"""The scripts of `deploy/vllm`: what they start, and when they call a server ready."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.model_server import Reply, Say, model_server, refusal

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "vllm"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing: apt-get install curl")


def ready(say: Say, models: Reply | None = None, seconds: str = "20") -> subprocess.CompletedProcess[str]:
    with model_server(say, models=models) as server:
        command = ["bash", str(SCRIPTS / "ready.sh"), server.url, seconds]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@needs_curl
def test_a_server_is_ready_when_it_answers_by_schema() -> None:
    """Exit code 0, and its model's name."""
    found = ready(lambda asked: Reply('{"yes": true}'))
    assert (found.returncode, "scripted answers by schema" in found.stdout) == (0, True), found.stderr


@needs_curl
@pytest.mark.parametrize("say", [lambda asked: Reply("Oh yes, it is."), lambda asked: refusal("no json_schema here")])
def test_a_server_without_schemas_is_not_ready(say: Say) -> None:
    """Prose and refusals give exit code 1 or curl's own."""
    assert ready(say).returncode != 0


@needs_curl
def test_a_server_that_lists_nothing_is_waited_for(seconds: str = "1") -> None:
    """Until the time is over, and then it is said."""
    found = ready(lambda asked: Reply('{"yes": true}'), models=Reply(status=503, raw=b""), seconds=seconds)
    assert (found.returncode, "no answer from" in found.stderr) == (1, True)


def test_the_server_is_started_with_its_bounds_and_its_key_is_no_argument(tmp_path: Path) -> None:
    """Length, name and address are those that the README speaks of; what is given behind the model comes last."""
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\necho "$@"\necho "key=$VLLM_API_KEY"\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "VLLM_API_KEY": "k-1", "GPUS": "2"}
    command = ["bash", str(SCRIPTS / "serve.sh"), "some/model-8b", "--kv-cache-dtype", "fp8"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout
    arguments, key = told.splitlines()
    assert arguments.startswith("serve some/model-8b --served-model-name diagnoser --host 127.0.0.1 --port 8000")
    assert "--tensor-parallel-size 2 --max-model-len 16384" in arguments
    assert arguments.endswith("--kv-cache-dtype fp8")
    assert "k-1" not in arguments and key == "key=k-1"

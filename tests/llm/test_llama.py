"""A real llama.cpp server: it refuses JSON schema, and is asked in the way that it understands. `make test-llm`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnoser.config import llm_factory
from diagnoser.llm.answer import Answer
from diagnoser.model.taxonomy import FailureType
from tests.integration.consulting import UNDECIDED, Site
from tests.integration.model_server import ModelServer
from tests.llm.servers import FOLDER, KEY, NOISE, Real, running, said
from tests.ports import free_port

PYTHON = Path(FOLDER) / "llama/bin/python"

pytestmark = [
    pytest.mark.llm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not FOLDER or not PYTHON.exists(), reason="needs a real llama.cpp server: make test-llm"),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """With a model of random weights."""
    port = free_port()
    command = [PYTHON, "-m", "llama_cpp.server", "--model", Path(FOLDER) / "tiny.gguf", "--model_alias", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api_key", KEY, "--n_ctx", "16384"]
    with running(command, port, tmp_path_factory.mktemp("llama") / "llama.log") as server:
        yield server


async def test_it_is_asked_until_it_understands(llama: Real) -> None:
    """JSON schema is refused, an object with a schema is not; all fields come, though not bounds of numbers."""
    settings = llama.settings()
    model = llm_factory.endpoint(settings)
    try:
        found = json.loads(await said(model, settings, 6000), strict=False)
    finally:
        await model.close()
    assert model.form.format >= 1
    assert list(found) == Answer.model_json_schema()["required"]
    assert found["type"] in set(FailureType)


async def test_noise_is_no_verdict(llama: Real) -> None:
    """A whole consultation within its calls: the rules' verdict with the reason."""
    async with Site(ModelServer(llama.url), llama.changes) as site:
        found = await site.consult()
    assert found.model is not None
    assert found.model.failure in NOISE
    assert 2 <= found.model.calls <= 5
    assert (found.type, found.recovery, found.decided_by) == (UNDECIDED.type, UNDECIDED.recovery, UNDECIDED.decided_by)

"""A real vLLM on CPU with random weights: the wire holds, and noise never becomes a verdict. `make test-llm`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnoser.config import llm_factory
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType
from tests.e2e.service import diagnosis_of, send, service, until
from tests.integration.consulting import UNDECIDED, Site
from tests.integration.model_server import ModelServer
from tests.llm.servers import FOLDER, KEY, NOISE, Real, asked, running, said
from tests.ports import free_port

CONTEXT = 8192

pytestmark = [
    pytest.mark.llm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not FOLDER, reason="needs a real vLLM: make test-llm"),
]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Offline, and without telling anybody that it runs."""
    port, folder = free_port(), Path(FOLDER)
    command = [folder / "vllm/bin/vllm", "serve", folder / "tiny", "--served-model-name", "tiny", "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "4"]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with running(command, port, log, {**quiet, "VLLM_CPU_KVCACHE_SPACE": "1"}) as server:
        yield server


async def test_it_answers_in_our_schema(vllm: Real) -> None:
    """Guided by the schema even random weights give answers that read; the server says how long a question may be."""
    settings = vllm.settings()
    model = llm_factory.endpoint(settings)
    try:
        assert await model.context() == CONTEXT
        assert await model.ping() == "tiny answers"
        answers = [await asked(model, settings, 6000) for _ in range(4)]
    finally:
        await model.close()
    assert all(isinstance(found.type, FailureType) for found in answers)


async def test_noise_is_no_verdict(vllm: Real) -> None:
    """A whole consultation: real answers, none of them proven, the rules' verdict with the reason."""
    async with Site(ModelServer(vllm.url), vllm.changes) as site:
        found = await site.consult()
    assert found.model is not None
    assert found.model.failure in NOISE
    assert 1 <= found.model.calls <= 5
    assert found.model.tokens_out > 0
    assert (found.type, found.recovery, found.decided_by) == (UNDECIDED.type, UNDECIDED.recovery, UNDECIDED.decided_by)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"llm_api_key": "wrong"}, ModelFailure.DENIED),
        ({"llm_model": "absent"}, ModelFailure.NOT_FOUND),
    ],
)
async def test_what_it_refuses_has_its_reason(vllm: Real, changes: dict[str, object], reason: ModelFailure) -> None:
    """A wrong key and an unknown model, in vLLM's own words."""
    settings = vllm.settings(**changes)
    model = llm_factory.endpoint(settings)
    try:
        with pytest.raises(ModelFailed) as error:
            await asked(model, settings, 100)
    finally:
        await model.close()
    assert error.value.reason is reason


async def test_a_question_that_is_too_long_is_told_as_that(vllm: Real) -> None:
    """vLLM's refusal of an overlong question is recognised."""
    settings = vllm.settings()
    model = llm_factory.endpoint(settings)
    try:
        with pytest.raises(ModelFailed) as error:
            await said(model, settings, 100, more="lane 4 " * CONTEXT)
    finally:
        await model.close()
    assert error.value.reason is ModelFailure.CONTEXT_TOO_SMALL


def test_the_service_keeps_its_verdict(vllm: Real, tmp_path: Path) -> None:
    """The real process with the real server: ready, undecided, and the diagnosis says what came of asking."""
    changes = {f"DIAGNOSER_{name.upper()}": str(value) for name, value in vllm.changes.items()}
    log = [b"step 1\n", b"zx81: lane 4 degraded beyond repair, giving up\n"]
    with service(tmp_path, DIAGNOSER_LLM_URL=vllm.url, **changes) as running:
        client = running.start()
        until(lambda: client.get("/readyz").json()["parts"]["model"]["ready"], "the model is seen")
        send(client, log, 0, len(log))
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        found = until(lambda: (one := diagnosis_of(client))["model"] and one, "the model's part", seconds=130)
    assert found["type"] == "unknown"
    assert found["model"]["failure"] in NOISE

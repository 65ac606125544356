"""The embedding server over real HTTP: its vectors are used where it answers, and hashed words where it does not."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.files import bundled, text
from diagnoser.adapters.openai import OpenAIEmbedder
from diagnoser.model import AttemptKey, Evidence, Feedback, FeedbackVerdict, Line, Mark, Stream
from diagnoser.model.errors import ModelFailed
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import Claim, DiagnosisRecord, Timing
from diagnoser.observability.metrics import Metrics
from diagnoser.recovery import policy
from diagnoser.redaction.redact import redact
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures, LogLoader, SimilarFailures
from tests.contract import records
from tests.databases import sqlite_store
from tests.integration.model_server import NEVER, Reply, in_turn, model_server

SAID = "quantum shard ledger refused to close its seventh page"
LOG = Evidence(lines=(Line(Stream(), 1, SAID, SAID, mark=Mark.SEVERITY),))


def vectors(*rows: list[float]) -> Reply:
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    body = {"object": "list", "model": "tiny", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    return Reply(raw=json.dumps(body).encode())


async def embed(reply: Reply) -> list[list[float]]:
    with model_server(in_turn(reply)) as server:
        embedder = OpenAIEmbedder(server.url, "tiny", "", timeout=0.5 if reply.wait else 60.0, redact=redact)
        try:
            return await embedder.embed(["a line"])
        finally:
            await embedder.close()


async def test_no_secret_reaches_the_server() -> None:
    """An embedding model is a model: what it gets is masked like any other text that leaves."""
    with model_server(in_turn(vectors([1.0]))) as server:
        embedder = OpenAIEmbedder(server.url, "tiny", "", timeout=60.0, redact=redact)
        await embedder.embed(["login of mia.k@lab.example with hf_QwErTyUiOpAsDfGhJkLz failed"])
        await embedder.close()
    assert server.asked[0]["input"] == ["login of <e-mail> with <token> failed"]


async def test_vectors_come_as_the_server_gave_them() -> None:
    """One vector a text."""
    assert await embed(vectors([0.5, -0.25])) == [[0.5, -0.25]]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=500, raw=b"{}"), "model_unavailable"),
        (Reply(status=401, raw=b"{}"), "model_denied"),
        (Reply(drop=True), "model_unavailable"),
        (Reply(wait=NEVER, raw=b"{}"), "model_timeout"),
        (Reply(raw=b"no json"), "answer_malformed"),
        (Reply(raw=b"{}"), "answer_malformed"),
        (vectors(), "answer_malformed"),
        (vectors([]), "answer_malformed"),
        (vectors([1.0], [1.0]), "answer_malformed"),
    ],
)
async def test_what_is_no_vector_has_a_reason(reply: Reply, reason: str) -> None:
    """Every fault of the server is told apart and raised as our own."""
    with pytest.raises(ModelFailed) as error:
        await embed(reply)
    assert error.value.reason == reason


class Logs:
    """Every attempt printed the same."""

    async def load(self, key: AttemptKey) -> SimpleNamespace:
        return SimpleNamespace(evidence=LOG)


async def confirmed_then_asked(folder: Path, *replies: Reply) -> tuple[list[Any], int, SimilarFailures, Metrics]:
    """A person confirms one failure; the like failure of another job asks for similar ones, and what a model is told.

    The number of questions is that of the first two.
    """
    metrics = Metrics(CollectorRegistry())
    store = await sqlite_store(folder / "test.db")
    table = policy.load("policy.yaml", text(bundled("rules") / "policy.yaml"))
    with model_server(in_turn(*replies)) as server:
        embedder = OpenAIEmbedder(server.url, "tiny", "", timeout=60.0, redact=redact)
        confirmed_failures = ConfirmedFailures(store.feedback, cast(LogLoader, Logs()), table, metrics, embedder)
        try:
            first = await _saved(store, AttemptKey("one"))
            kind = FailureType.DATASET_LOADING_ERROR
            await confirmed_failures.learn(
                first, Feedback("w1", first.id, 300.0, FeedbackVerdict.CORRECTED, "ida", type=kind)
            )
            second = await _saved(store, AttemptKey("two"))
            found, asked = await confirmed_failures.similar(second), len(server.asked)
            told = await confirmed_failures.describe_similar(second)
        finally:
            await embedder.close()
            await store.close()
        return found, asked, told, metrics


async def _saved(store: Any, key: AttemptKey) -> DiagnosisRecord:
    await store.logs.append([records.append(key, fatal=True)])
    claim: Claim = (await store.work.claim_attempts(1e6, Timing(1.0, 1.0, 1.0, 1.0), 60.0, 1))[0]
    found = records.record(key.job, claim)
    await store.work.save_diagnosis(claim, found, None, [])
    return found


async def test_a_vector_of_the_model_finds_the_confirmed_failure(tmp_path: Path) -> None:
    """Both the confirmed failure and the question are embedded by the server."""
    found, asked, told, _ = await confirmed_then_asked(tmp_path, vectors([0.6, 0.8]))
    assert told.notes == () and "dataset_loading_error" in told.confirmed_failures[0]
    assert [one.confirmed.type for one in found] == [FailureType.DATASET_LOADING_ERROR]
    assert asked == 2


async def test_hashed_words_find_it_when_the_server_fails(tmp_path: Path) -> None:
    """A server that breaks after the first vector costs nothing but its own; it is counted, and noted for people."""
    found, asked, told, metrics = await confirmed_then_asked(
        tmp_path, vectors([0.6, 0.8]), Reply(status=500, raw=b"{}")
    )
    counted = metrics.registry.get_sample_value("diagnoser_embedding_failures_total", {"reason": "model_unavailable"})
    assert (counted, len(told.confirmed_failures)) == (2, 1)
    assert "the embedding server failed (model_unavailable)" in told.notes[0]
    assert [one.confirmed.type for one in found] == [FailureType.DATASET_LOADING_ERROR]
    assert asked == 2

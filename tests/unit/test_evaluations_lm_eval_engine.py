"""The process of lm_eval that stays up, without lm_eval: who may ask it, and what it answers."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnoser.evaluations.engines import lm_eval_engine
from tests.ports import free_port


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of an engine that knows the task "sums" alone."""

    def infer(task: str, first: int, last: int) -> str:
        if task != "sums":
            raise KeyError(task)
        return "".join(json.dumps({"doc_id": number, "resps": [["4"]]}) + "\n" for number in range(first, last))

    monkeypatch.setenv("DIAGNOSER_TRIAL_KEY", "secret")
    port = free_port()
    with lm_eval_engine.server(port, infer) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{port}/"
        server.shutdown()
        serving.join()


def test_answers_are_those_of_the_samples(url: str, tmp_path: Path) -> None:
    """In a file as lm_eval logs it; scoring reads it by the number of the document."""
    lm_eval_engine.ask(url, tmp_path, "sums", 3, 5)
    assert lm_eval_engine.read_answers(tmp_path) == {3: [["4"]], 4: [["4"]]}


def test_a_task_that_fails_ends_its_shard_and_not_the_engine(url: str, tmp_path: Path) -> None:
    """With where it failed."""
    with pytest.raises(SystemExit, match="KeyError: 'other'"):
        lm_eval_engine.ask(url, tmp_path, "other", 0, 1)
    lm_eval_engine.ask(url, tmp_path, "sums", 0, 1)


def test_who_does_not_know_the_secret_of_the_batch_is_refused(url: str) -> None:
    """A task may be a file that names code: another user of the node must not have it run."""
    asked = json.dumps({"task": "sums", "first": 0, "last": 1}).encode()
    for headers in ({}, {"Authorization": "guess"}, {"Authorization": "s\u00e9cret"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(url, asked, headers))

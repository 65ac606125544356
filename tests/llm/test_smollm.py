"""A real small model that writes fluent nonsense: no verdict of the rules gets worse. `make test-llm`."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import orjson
import pytest

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label, ScoredVerdict
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.failure_agent.agent import FailureAgent, LLMTrigger, reasons_to_ask
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import Category
from tests.corpus import CORPUS, needs_corpus
from tests.e2e.service import free_port
from tests.integration.consulting import Site
from tests.integration.model_server import ModelServer
from tests.llm.servers import FOLDER, KEY, Real, running

PYTHON = Path(FOLDER) / "smollm/bin/python"
CASES = int(os.environ.get("LLM_CASES", "100"))
SETS = ("real-dev", "dev")
LONGEST = 200_000
"""Bytes of a log: the model sees 500 tokens of it anyway."""
CHANGES: dict[str, object] = {
    "llm_log_budget_tokens": 500,
    "llm_deadline_seconds": 900.0,
    "llm_trigger": "always_explain",
    "llm_tokens_per_hour": 0,
}

pytestmark = [
    pytest.mark.llm,
    pytest.mark.timeout(8 * 3600),
    pytest.mark.skipif(not FOLDER or not PYTHON.exists(), reason="needs a real small model: make test-llm"),
]


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """SmolLM2-135M-Instruct behind llama.cpp's own server."""
    port, log = free_port(), tmp_path_factory.mktemp("smollm") / "server.log"
    with running([PYTHON, Path(__file__).parent / "smollm_server.py", port, KEY], port, log) as server:
        yield Real(server.url, "smollm2")


def test_it_writes_prose(smollm: Real) -> None:
    """It is no noise: asked without a schema it answers in English words."""
    question = {"role": "user", "content": "Why does a training job run out of memory?"}
    answer = httpx.post(
        f"{smollm.url}/chat/completions",
        headers={"Authorization": f"Bearer {KEY}"},
        json={"model": smollm.name, "messages": [question], "max_tokens": 60, "temperature": 0},
        timeout=300,
    )
    text = answer.raise_for_status().json()["choices"][0]["message"]["content"].lower()
    assert sum(f" {word} " in text for word in ("the", "a", "of", "is", "to", "memory")) >= 3, text


@needs_corpus
async def test_no_verdict_gets_worse(smollm: Real) -> None:
    """Of ``CASES`` real failures, those first that the model is asked about by default, none is judged worse for it."""
    analyzer = load_analyzer(Settings())
    cases = _cases(analyzer)
    assert len(cases) == CASES
    harmed, outcomes = [], Counter[str]()
    async with Site(ModelServer(smollm.url), {**smollm.changes, **CHANGES}) as site:
        for label, subject in cases:
            diagnosis = await _consulted(site.agent, subject)
            before, after = scoring.score_case(label, subject.diagnosis), scoring.score_case(label, diagnosis)
            outcomes[diagnosis.model.failure or "answered" if diagnosis.model else "not asked"] += 1
            if faults := _worse(before, after):
                harmed.append(f"{label.id}: {before.said_type} -> {after.said_type}: {', '.join(faults)}")
    assert not outcomes["not asked"]
    assert outcomes["answered"] >= CASES // 2, outcomes  # else the server is too slow to prove anything
    assert not harmed, "\n".join(harmed)


async def _consulted(agent: FailureAgent, subject: ConsultationInput) -> Diagnosis:
    asked = agent.reasons_to_ask(subject.diagnosis)
    return await agent.consult(subject, asked) if asked else subject.diagnosis


def _cases(analyzer: LogAnalyzer) -> list[tuple[Label, ConsultationInput]]:
    """Failures with what the model is asked about each: where the rules do not decide clearly first."""
    cases = []
    for folder in (CORPUS / name for name in SETS):
        for text in (folder / "labels.jsonl").read_text("utf-8").splitlines():
            label = scoring.label_of(orjson.loads(text))
            path = folder / f"{label.id}.log"
            if path.stat().st_size > LONGEST:
                continue
            with path.open("rb") as stream:
                log = analyzer.read(stream)
            diagnosis = analyzer.diagnose_with_node_logs(log.evidence, Facts())
            if reasons_to_ask(diagnosis, LLMTrigger.ALWAYS_EXPLAIN):
                cases.append((label, consultation_input(diagnosis, log, Facts())))
    cases.sort(key=lambda case: not reasons_to_ask(case[1].diagnosis, LLMTrigger.UNDECIDED))
    return cases[:CASES]


def _worse(before: ScoredVerdict, after: ScoredVerdict) -> Sequence[str]:
    """What the model spoiled: a right answer lost, a harmful one won, or a wrong cause named where none was."""
    lost = [
        name
        for name in ("category", "type", "action", "root", "rank", "node")
        if getattr(before, name) and not getattr(after, name)
    ]
    harms = ("false_cordon", "wrong_node_cordon", "false_alarm", "false_stop")
    won = [name for name in harms if getattr(after, name) and not getattr(before, name)]
    misled = before.said_category == Category.UNKNOWN and after.said_type != before.said_type and not after.type
    return [*lost, *won, *(["a wrong cause"] if misled else [])]

"""A real small model that writes fluent nonsense: no verdict of the rules gets worse. `make test-llm`.

LLM_CASES=N asks about N failures, LLM_CASE_FOLDERS=DIR:DIR takes them from other folders with labels, and
LLM_RESULTS=FILE keeps each outcome as a line of JSON: a run that was cut off goes on where it was.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label, ScoredVerdict
from diagnoser.config import llm_factory
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.failure_agent.agent import FailureAgent, LLMTrigger, reasons_to_ask
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.answer import Answer
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import Category
from tests.integration.consulting import Site
from tests.integration.model_server import ModelServer
from tests.llm.servers import FOLDER, KEY, Real, running
from tests.ports import free_port
from tools.real_runs.measure import SAMPLES

PYTHON = Path(FOLDER) / "smollm/bin/python"
CASES = int(os.environ.get("LLM_CASES", "6"))
FOLDERS = [Path(folder) for folder in os.environ.get("LLM_CASE_FOLDERS", str(SAMPLES)).split(":")]
RESULTS = os.environ.get("LLM_RESULTS", "")
LONGEST = 200_000
"""Bytes of a log: the model sees 500 tokens of it anyway."""
BOUNDS = {"reasoning": 80, "mitigation": 40}
"""Characters: nonsense in a circle takes all the room it gets."""
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


async def test_no_verdict_gets_worse(smollm: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``CASES`` failures, those first that the model is asked about by default, none is judged worse for it."""
    # One marker for all questions: the server then reads the instructions once.
    monkeypatch.setattr(llm_factory, "_token", lambda: "6b0f3c1d9e2a4875")
    schema = _bounded_schema()
    monkeypatch.setattr(Answer, "model_json_schema", lambda: schema)
    cases = _cases(load_analyzer(Settings()))
    assert len(cases) == CASES
    results = Path(RESULTS) if RESULTS else tmp_path / "results.jsonl"
    known = _read(results)
    async with Site(ModelServer(smollm.url), {**smollm.changes, **CHANGES}) as site:
        for label, subject in cases:
            if label.id not in known:
                known[label.id] = _outcome(label, subject, await _consulted(site.agent, subject))
                with results.open("a") as file:
                    file.write(json.dumps(known[label.id]) + "\n")
    outcomes = [known[label.id] for label, _ in cases]
    counts = Counter(outcome["failure"] or "answered" for outcome in outcomes)
    assert not counts["not asked"]
    assert sum(outcome["tokens_out"] > 0 for outcome in outcomes) >= CASES // 2, counts  # else nothing is proven
    harmed = [outcome for outcome in outcomes if outcome["worse"]]
    assert not harmed, "\n".join(map(str, harmed))


def _bounded_schema() -> dict[str, Any]:
    """The schema of an answer, with less room for prose."""
    schema = Answer.model_json_schema()
    for name, characters in BOUNDS.items():
        schema["properties"][name]["maxLength"] = characters
    schema["properties"]["cited"]["maxItems"] = 1
    schema["$defs"]["Quote"]["properties"]["quote"]["maxLength"] = 60
    return schema


async def _consulted(agent: FailureAgent, subject: ConsultationInput) -> Diagnosis:
    asked = agent.reasons_to_ask(subject.diagnosis)
    return await agent.consult(subject, asked) if asked else subject.diagnosis


def _cases(analyzer: LogAnalyzer) -> list[tuple[Label, ConsultationInput]]:
    """Failures with what the model is asked about each: where the rules do not decide clearly first."""
    cases = []
    for folder in FOLDERS:
        for text in (folder / "labels.jsonl").read_text("utf-8").splitlines():
            label = scoring.label_of(orjson.loads(text))
            path = folder / f"{label.id}.log"
            if not path.exists() or path.stat().st_size > LONGEST:
                continue
            with path.open("rb") as stream:
                log = analyzer.read(stream)
            diagnosis = analyzer.diagnose_with_node_logs(log.evidence, Facts())
            if reasons_to_ask(diagnosis, LLMTrigger.ALWAYS_EXPLAIN):
                cases.append((label, consultation_input(diagnosis, log, Facts(), analyzer.knowledge)))
    cases.sort(key=lambda case: not reasons_to_ask(case[1].diagnosis, LLMTrigger.UNDECIDED))
    return cases[:CASES]


def _outcome(label: Label, subject: ConsultationInput, diagnosis: Diagnosis) -> dict[str, Any]:
    """What is kept of one consultation. failure: why there is no usable answer; worse: what the model spoiled."""
    before, after = scoring.score_case(label, subject.diagnosis), scoring.score_case(label, diagnosis)
    use = diagnosis.model
    return {
        "id": label.id,
        "truth": label.type,
        "before": before.said_type,
        "after": after.said_type,
        "asked": [str(reason) for reason in use.asked] if use else [],
        "failure": use.failure if use else "not asked",
        "effect": str(use.effect) if use else "",
        "needs_review": diagnosis.needs_review,
        "worse": _worse(before, after),
        "calls": use.calls if use else 0,
        "tokens_in": use.tokens_in if use else 0,
        "tokens_out": use.tokens_out if use else 0,
        "seconds": round(use.seconds, 1) if use else 0.0,
    }


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Outcomes by id of the case, of a run before this one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {outcome["id"]: outcome for outcome in map(json.loads, lines)}


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

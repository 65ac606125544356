"""A Failure Agent as the service makes it, against a scripted server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from diagnoser import model_stage
from diagnoser.adapters.files import bundled, text
from diagnoser.failure_agent import FailureAgent, Need
from diagnoser.inquiry import Subject
from diagnoser.llm.view import View
from diagnoser.model import Diagnosis, Evidence, Facts, Job, Line, Stream
from diagnoser.recovery import policy
from diagnoser.settings import Settings
from diagnoser.taxonomy import Category, FailureType, Outcome
from diagnoser.telemetry import Metrics
from tests.integration.model_server import ModelServer, Reply

UNDECIDED = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")
TEXT = "gpu-3 zx81: lane degraded beyond repair, giving up (token hf_aBcDeFgHiJkLmNoPqRsTuVwX)"
FACTS = Facts(Job("j", nodes=("gpu-3", "gpu-4")))
ANSWER: Mapping[str, Any] = {
    "type": "nvlink_error",
    "category": "infrastructure",
    "cited": [{"line": 12, "quote": "lane degraded beyond repair"}],
    "node": "host-1",
    "rank": None,
    "fault": "infrastructure",
    "recoverable": "no",
    "mitigation": "Replace the bridge of host-1.",
    "confidence": 0.99,
    "alternative": "unknown",
}


def line(text: str = TEXT, number: int = 12, **changes: Any) -> Line:
    return Line(Stream(), number, text, text, **changes)


def subject(*lines: Line, diagnosis: Diagnosis = UNDECIDED, facts: Facts = FACTS) -> Subject:
    """What is asked about: the lines, by their own numbers."""
    lines = lines or (line(),)
    text = "".join(f"{one.number}| {one.text}\n" for one in lines)
    return Subject(diagnosis, Evidence(lines=lines), facts, lambda _: View(text, {one.number: one for one in lines}))


def say(**changes: Any) -> Reply:
    return Reply(json.dumps({**ANSWER, **changes}))


@dataclass
class Site:
    """One service: what is asked later remembers what was asked before."""

    server: ModelServer
    changes: Mapping[str, Any] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))

    async def __aenter__(self) -> "Site":
        settings = Settings(**{"model_url": self.server.url, "model_name": "scripted", **self.changes})
        self.model = model_stage.endpoint(settings)
        table = policy.load("policy.yaml", text(bundled("rules") / "policy.yaml"))
        guarded = model_stage.guarded(settings, self.model)
        self.agent: FailureAgent = model_stage.failure_agent(settings, guarded, table, self.metrics)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.model.close()

    async def consult(self, asked: Subject | None = None, wanted: Need = Need.CAUSE) -> Diagnosis:
        return await self.agent.consult(asked or subject(), wanted)

    def failures(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("diagnoser_model_failures_total", {"reason": reason})

"""A Failure Agent as the service makes it, against a scripted server."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.guard import LLMCircuitBreaker
from diagnoser.llm.view import LogView
from diagnoser.model import AskReason, Diagnosis, Evidence, Facts, Job, Line, Stream
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.observability.metrics import Metrics
from tests.integration.model_server import ModelServer, Reply
from tests.serving import shipped_policy

UNDECIDED = Diagnosis(
    Outcome.FAILED,
    Category.UNKNOWN,
    FailureType.UNKNOWN,
    0.2,
    "heuristic:no_evidence",
    doubts=(AskReason.UNKNOWN,),
)
TEXT = "gpu-3 zx81: lane degraded beyond repair, giving up (token hf_aBcDeFgHiJkLmNoPqRsTuVwX)"
FACTS = Facts(Job("j", nodes=("gpu-3", "gpu-4")))
ANSWER: Mapping[str, Any] = {
    "reasoning": "The lane is broken, and nothing else is.",
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


def subject(*lines: Line, diagnosis: Diagnosis = UNDECIDED, facts: Facts = FACTS) -> ConsultationInput:
    """What is asked about: the lines, by their own numbers."""
    lines = lines or (line(),)
    text = "".join(f"{one.number}| {one.text}\n" for one in lines)
    view = LogView(text, {one.number: one for one in lines})
    return ConsultationInput(diagnosis, Evidence(lines=lines), facts, lambda _: view)


def say(**changes: Any) -> Reply:
    return Reply(json.dumps({**ANSWER, **changes}))


@dataclass
class Site:
    """One service: what is asked later remembers what was asked before.

    ahead: seconds by which the clock of its budget and its breaker is ahead. breaker: in place of the usual one.
    """

    server: ModelServer
    changes: Mapping[str, Any] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    ahead: float = 0.0
    breaker: LLMCircuitBreaker = field(default_factory=LLMCircuitBreaker)

    async def __aenter__(self) -> "Site":
        settings = Settings(**{"llm_url": self.server.url, "llm_model": "scripted", **self.changes})
        self.model = llm_factory.endpoint(settings)
        guarded = llm_factory.guarded(settings, self.model, self.metrics)
        guarded.breaker = self.breaker
        guarded.clock = lambda: time.monotonic() + self.ahead
        self.agent: FailureAgent = llm_factory.failure_agent(settings, guarded, shipped_policy(), self.metrics)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.model.close()

    async def consult(self, about: ConsultationInput | None = None, *asked: AskReason) -> Diagnosis:
        """asked: why; by default what is in doubt about the diagnosis."""
        about = about or subject()
        return await self.agent.consult(about, asked or about.diagnosis.doubts)

    def failures(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("diagnoser_llm_failures_total", {"reason": reason})

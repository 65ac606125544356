"""Reads logs the way this site does: its filters, its rules, its policy. One for the service, the same for a file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from diagnoser import compress
from diagnoser.compress import Compressor, Digest, FilterSet, Prefilter, learned_filters
from diagnoser.compress.blocks import whole_lines
from diagnoser.compress.learned_filters import Known
from diagnoser.diagnosis import baseline, node_logs, pipeline
from diagnoser.diagnosis.context import family_of
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.view import LogView
from diagnoser.model import ENDS, Diagnosis, Evidence, Facts, Job, LineBlock, Stream
from diagnoser.ports import Clock, DiagnosisRecord
from diagnoser.retrieval.incidents import SimilarIncidents
from diagnoser.rules import schema
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import RuleSet

CHUNK = 4 << 20

Remind = Callable[[DiagnosisRecord], Awaitable[SimilarIncidents]]
"""Similar confirmed incidents, in words."""


@dataclass(frozen=True)
class LogAnalyzer:
    """routines: job family (``surroundings.family_of``) -> the learned Filter Rules in force for it."""

    knowledge: RuleKnowledge
    gate: Prefilter
    filters: FilterSet
    routines: Mapping[str, tuple[Known, ...]] = field(default_factory=dict)

    def with_rules(self, learned: RuleSet) -> "LogAnalyzer":
        """This reader with further rules, which the compressor's gate lets through as well."""
        ruleset = schema.joined(self.knowledge.engine.ruleset, learned)
        knowledge = replace(self.knowledge, engine=Engine(ruleset))
        return replace(self, knowledge=knowledge, gate=Prefilter(knowledge.anchors, ruleset.watched))

    def compressor(self) -> Compressor:
        return Compressor(self.gate, self.filters)

    def digest(self, deltas: Sequence[bytes], job: Job | None = None) -> Digest:
        """The compressed log of an attempt from its stored deltas, in any order. job: its family's routine is known."""
        merged = compress.merge(map(compress.from_bytes, deltas))
        return compress.digest(learned_filters.known(merged, self.routines.get(family_of(job), ()) if job else ()))

    def evidence(self, deltas: Sequence[bytes]) -> Evidence:
        return self.digest(deltas).evidence()

    def merge(self, deltas: Sequence[bytes]) -> bytes:
        return compress.to_bytes(compress.merge(map(compress.from_bytes, deltas)))

    def diagnoser(self, clock: Clock) -> Callable[[list[bytes], Facts], Diagnosis]:
        """Deltas and facts -> verdict, as the worker wants it."""

        def diagnose(deltas: list[bytes], facts: Facts) -> Diagnosis:
            ended = any(event.kind in ENDS for event in facts.events)
            digest = self.digest(deltas, facts.job)
            evidence = digest.evidence()
            now = None if ended else _by_the_log(evidence, facts.failed[1], clock())
            found = self.diagnose(evidence, facts, now)
            if facts.clean_runs is None:
                return found
            return baseline.sharpened(found, digest, facts.clean_runs, lambda part: self.diagnose(part, facts, now))

        return diagnose

    def diagnose(self, evidence: Evidence, facts: Facts, now: float | None = None) -> Diagnosis:
        """The verdict on an attempt, with what the logs of its nodes say about the time of its failure."""
        alone = pipeline.diagnose(evidence, facts, self.knowledge, now)
        said = (line for node, parts in facts.node_logs.items() for line in node_logs.lines(node, parts))
        near = node_logs.near(evidence, said, facts.failed)
        if not near:
            return alone
        joined = pipeline.diagnose(node_logs.join(evidence, near), facts, self.knowledge, now)
        return node_logs.settle(alone, joined, near)

    def node_log(self, node: str, log: BinaryIO, near: float) -> bytes:
        """A node's own log from a file. near: a time of about then, for formats without a year."""
        compressor = self.compressor()
        for block in _blocks(log):
            compressor.feed(node_logs.timed(replace(block, stream=Stream("kernel", node)), near))
        return compress.to_bytes(compressor.take())

    def enricher(
        self, agent: FailureAgent, remind: Remind | None = None
    ) -> Callable[[DiagnosisRecord, list[bytes], Facts], Awaitable[Diagnosis | None]]:
        """The second opinion, as the worker wants it: None where none is asked for."""

        async def enrich(record: DiagnosisRecord, deltas: list[bytes], facts: Facts) -> Diagnosis | None:
            wanted = agent.need(record.diagnosis)
            if wanted is None:
                return None
            digest = await asyncio.to_thread(self.digest, deltas, facts.job)
            known = await remind(record) if remind else SimilarIncidents()
            asked = await asyncio.to_thread(subject, record.diagnosis, digest, facts, known.incidents)
            found = await agent.consult(asked, wanted)
            return replace(found, notes=(*found.notes, *known.notes))

        return enrich

    def read(self, log: BinaryIO, told: Callable[[int], None] = lambda _: None) -> Digest:
        """The compressed log of a file. told: called with the number of bytes of each block read."""
        return compress.digest(self._fed(log, 1, told)[0].take())

    def delta(self, log: BinaryIO, first: int = 1, told: Callable[[int], None] = lambda _: None) -> tuple[bytes, int]:
        """A file as a part of a log: compressed, and the number of its last line. first: number of its first one."""
        compressor, last = self._fed(log, first, told)
        return compress.to_bytes(compressor.take()), last

    def _fed(self, log: BinaryIO, first: int, told: Callable[[int], None]) -> tuple[Compressor, int]:
        compressor = self.compressor()
        last = first - 1
        for block in _blocks(log, first):
            compressor.feed(block)
            last = block.first + block.data.count(b"\n") - block.data.endswith(b"\n")
            told(len(block.data) + block.missing)
        return compressor, last

    def evidence_of(self, text: bytes) -> Evidence:
        """What is kept of a short excerpt: how a rule's examples are checked."""
        compressor = self.compressor()
        compressor.feed(LineBlock(Stream(), text))
        return compress.digest(compressor.take()).evidence()


def subject(diagnosis: Diagnosis, digest: Digest, facts: Facts, incidents: tuple[str, ...] = ()) -> ConsultationInput:
    """What a model is asked about."""
    return ConsultationInput(
        diagnosis, digest.evidence(), facts, lambda size: LogView(digest.render(size), digest.numbered()), incidents
    )


def _by_the_log(evidence: Evidence, received: float, now: float) -> float:
    """``now`` on the clock that the log's own times follow: in another zone, silence must not look like a hang."""
    newest = max((line.time for line in evidence.lines), default=0.0)
    return newest + now - received if newest and received else now


def _blocks(log: BinaryIO, first: int = 1) -> Iterator[LineBlock]:
    """A file in blocks. first: the number of its first line."""
    for data, missing in whole_lines(iter(lambda: log.read(CHUNK), b"")):
        yield LineBlock(Stream(), data, first, missing=missing)
        first += data.count(b"\n") + (not data.endswith(b"\n"))

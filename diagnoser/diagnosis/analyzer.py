"""Reads logs the way this site does: its filters, its rules, its policy. One for the service, the same for a file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from diagnoser import compress
from diagnoser.compress import Compressor, Digest, FilterSet, Prefilter, baseline
from diagnoser.compress.blocks import whole_lines
from diagnoser.diagnosis import baseline as novelty
from diagnoser.diagnosis import node_logs, pipeline
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.view import LogView
from diagnoser.model import ENDS, Diagnosis, Evidence, Facts, LineBlock, Stream
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
    knowledge: RuleKnowledge
    gate: Prefilter
    filters: FilterSet

    def with_rules(self, learned: RuleSet) -> "LogAnalyzer":
        """This reader with further rules, which the compressor's gate lets through as well."""
        ruleset = schema.joined(self.knowledge.engine.ruleset, learned)
        knowledge = replace(self.knowledge, engine=Engine(ruleset))
        return replace(self, knowledge=knowledge, gate=Prefilter(knowledge.anchors, ruleset.watched))

    def compressor(self) -> Compressor:
        return Compressor(self.gate, self.filters)

    def digest(self, deltas: Sequence[bytes]) -> Digest:
        """The compressed log of an attempt from its stored deltas, in any order."""
        return compress.digest(compress.merge(map(compress.from_bytes, deltas)))

    def evidence(self, deltas: Sequence[bytes]) -> Evidence:
        return self.digest(deltas).evidence()

    def merge(self, deltas: Sequence[bytes]) -> bytes:
        return compress.to_bytes(compress.merge(map(compress.from_bytes, deltas)))

    def diagnoser(self, clock: Clock) -> Callable[[list[bytes], Facts], Diagnosis]:
        """Deltas and facts -> verdict, as the worker wants it."""

        def diagnose(deltas: list[bytes], facts: Facts) -> Diagnosis:
            ended = any(event.kind in ENDS for event in facts.events)
            digest = self.digest(deltas)
            now = None if ended else _by_the_log(digest.evidence(), facts.failed[1], clock())
            return self.diagnose_against_baseline(digest, facts, now)

        return diagnose

    def diagnose_against_baseline(self, digest: Digest, facts: Facts, now: float | None = None) -> Diagnosis:
        """The verdict on an attempt, held against the clean runs of its job family where there are some."""
        verdict = self.diagnose(digest.evidence(), facts, now)
        return novelty.apply_baseline(verdict, digest, facts.baseline, lambda part: self.diagnose(part, facts, now))

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
            digest = await asyncio.to_thread(self.digest, deltas)
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
    """What a model is asked about. Lines that no clean run of the job's family printed come first in its view."""
    diff = baseline.diff(digest, facts.baseline)

    def view(size: int) -> LogView:
        return LogView(digest.render(size, diff), digest.numbered(diff))

    return ConsultationInput(diagnosis, digest.evidence(), facts, view, incidents)


def _by_the_log(evidence: Evidence, received: float, now: float) -> float:
    """``now`` on the clock that the log's own times follow: in another zone, silence must not look like a hang."""
    newest = max((line.time for line in evidence.lines), default=0.0)
    return newest + now - received if newest and received else now


def _blocks(log: BinaryIO, first: int = 1) -> Iterator[LineBlock]:
    """A file in blocks. first: the number of its first line."""
    for data, missing in whole_lines(iter(lambda: log.read(CHUNK), b"")):
        yield LineBlock(Stream(), data, first, missing=missing)
        first += data.count(b"\n") + (not data.endswith(b"\n"))

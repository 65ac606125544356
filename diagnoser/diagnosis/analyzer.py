"""Reads logs with this site's filters, rules and policy; the same for the service and for a single file."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from diagnoser import compress
from diagnoser.compress import AttemptLog, Compressor, FilterSet, Prefilter
from diagnoser.compress.blocks import whole_lines
from diagnoser.diagnosis import baseline, node_faults, node_logs, node_metrics, pipeline
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.model import ENDS, Diagnosis, Evidence, Facts, LineBlock, Provenance, Stream
from diagnoser.model.evidence import selected
from diagnoser.rules import schema
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import RuleSet

CHUNK = 4 << 20


@dataclass(frozen=True)
class LogAnalyzer:
    knowledge: RuleKnowledge
    gate: Prefilter
    filters: FilterSet

    def with_rules(self, learned: RuleSet) -> "LogAnalyzer":
        """This analyzer with further rules, which the compressor's gate lets through as well."""
        ruleset = schema.joined(self.knowledge.engine.ruleset, learned)
        knowledge = replace(self.knowledge, engine=Engine(ruleset))
        return replace(self, knowledge=knowledge, gate=Prefilter(knowledge.anchors, ruleset.watched))

    def compressor(self) -> Compressor:
        return Compressor(self.gate, self.filters)

    def analyze(self, log: AttemptLog, facts: Facts, now: float | None = None) -> Diagnosis:
        """The verdict on an attempt, compared with the clean runs of its job family if there are any.

        now: seconds since the epoch, by the service's clock, while the attempt may still be running; None for a log
        that is read after the end.
        """
        quiet = None if now is None else _quiet(log.evidence, facts, now)
        verdict = self.diagnose_with_node_logs(log.evidence, facts, quiet)
        return baseline.apply_baseline(
            verdict, log.digest, facts.baseline, lambda evidence: self.diagnose_with_node_logs(evidence, facts, quiet)
        )

    def analyze_without(self, lines: Collection[int], log: AttemptLog, facts: Facts, now: float) -> Diagnosis:
        """The verdict as if these lines, by their indices, had not been printed. Clean runs play no part."""
        kept = [index for index in range(len(log.evidence.lines)) if index not in lines]
        return self.diagnose_with_node_logs(selected(log.evidence, kept), facts, _quiet(log.evidence, facts, now))

    def diagnose_with_node_logs(self, evidence: Evidence, facts: Facts, quiet: float | None = None) -> Diagnosis:
        """The verdict on an attempt, with what the logs of its nodes say about the time of its failure."""
        alone = pipeline.diagnose(evidence, facts, self.knowledge, quiet)
        weighed = node_logs.weighed_faults(evidence, facts)
        verdict = node_faults.apply_node_logs(alone, weighed, facts, self.knowledge)
        by_scheduler = node_faults.scheduler_proofs(alone, facts, self.knowledge)
        notes = tuple(dict.fromkeys(verdict.notes))  # of a hang that was ended some are from before
        proven = replace(verdict, notes=notes, proofs=(*verdict.proofs, *by_scheduler))
        return node_metrics.apply_metrics(proven, facts, self.knowledge.node_metrics)

    def node_log(self, node: str, log: BinaryIO, near: float) -> bytes:
        """A node's own log from a file. near: a time close to the log's, for formats without a year."""
        compressor, stream = self.compressor(), Stream("kernel", node, provenance=Provenance.NODE)
        for block in _blocks(log):
            compressor.feed(node_logs.with_printed_times(replace(block, stream=stream), near))
        return compress.to_bytes(compressor.take())

    def read(self, log: BinaryIO, on_bytes: Callable[[int], None] = lambda _: None) -> AttemptLog:
        """The log in a file. on_bytes: called with the number of bytes of each block read."""
        return AttemptLog(self._fed(log, 1, on_bytes)[0].take())

    def delta(
        self, log: BinaryIO, first: int = 1, on_bytes: Callable[[int], None] = lambda _: None
    ) -> tuple[bytes, int]:
        """A file compressed as a part of a log, and the number of its last line. first: number of its first line."""
        compressor, last = self._fed(log, first, on_bytes)
        return compress.to_bytes(compressor.take()), last

    def _fed(self, log: BinaryIO, first: int, on_bytes: Callable[[int], None]) -> tuple[Compressor, int]:
        compressor = self.compressor()
        last = first - 1
        for block in _blocks(log, first):
            compressor.feed(block)
            last = block.first + block.data.count(b"\n") - block.data.endswith(b"\n")
            on_bytes(len(block.data) + block.missing)
        return compressor, last

    def evidence_of(self, text: bytes) -> Evidence:
        """What is kept of a short excerpt; used to check a rule's examples."""
        compressor = self.compressor()
        compressor.feed(LineBlock(Stream(), text))
        return AttemptLog(compressor.take()).evidence


def _quiet(evidence: Evidence, facts: Facts, now: float) -> float | None:
    """Seconds since the newest line of an attempt that is still open; None after its end."""
    if any(event.kind in ENDS for event in facts.events):
        return None
    return now - (facts.failed[1] or evidence.newest_time or now)


def _blocks(log: BinaryIO, first: int = 1) -> Iterator[LineBlock]:
    """A file in blocks. first: the number of its first line."""
    for data, missing in whole_lines(iter(lambda: log.read(CHUNK), b"")):
        yield LineBlock(Stream(), data, first, missing=missing)
        first += data.count(b"\n") + (not data.endswith(b"\n"))

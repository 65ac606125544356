"""What a model's tools may read of an attempt: its nodes' logs about the failure, scheduler, disks, rules. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from diagnoser.diagnosis import node_logs
from diagnoser.failure_agent.tools import FREE_SPACE, SCHEDULER_RECORD, ToolEvidence
from diagnoser.model import ENDS, Event, EventKind, Evidence, Facts, Line, NodeEvent, Provenance, QueryResult, Stream
from diagnoser.rules.schema import RuleSet

_REPORTED = ENDS | {EventKind.STARTED}
_REASON_CHARS = 200
_PATTERNS = 3


def tool_evidence(evidence: Evidence, facts: Facts, rules: RuleSet) -> ToolEvidence:
    """What is known without asking the store."""

    def node_lines(node: str) -> list[Line]:
        """Only of the time of the failure: before and after it other jobs ran there."""
        lines = node_logs.kept_lines(node, facts.node_logs.get(node, ()))
        weighed = node_logs.weighed_lines(evidence, lines, facts.failed)
        return [line for line, reason in weighed if reason is not node_logs.SetAsideReason.OTHER_TIME]

    def rule(rule_id: str) -> Sequence[str]:
        return rule_in_words(rules, rule_id)

    return ToolEvidence(
        evidence.templates,
        frozenset(facts.node_logs),
        node_lines,
        tuple(scheduler_lines(facts)),
        rule=rule,
    )


def scheduler_lines(facts: Facts) -> Iterator[Line]:
    """What was reported about the attempt and its nodes, in order of time, each with who says so."""
    reports: list[tuple[float, str, Provenance]] = []
    for event in facts.events:
        if event.kind in _REPORTED:
            reports.append((event.time, _event(event), event.provenance))
    for node_event in facts.node_events:
        reports.append((node_event.time, _node_event(node_event), Provenance.SCHEDULER))
    for number, (time, text, provenance) in enumerate(sorted(reports), 1):
        said = f"{_clock(time)} by {provenance}: {text}"
        yield Line(Stream(SCHEDULER_RECORD, provenance=provenance), number, said, said, time=time)


def last_word(facts: Facts) -> tuple[str, ...]:
    """How the attempt ended by those who saw it from outside: the scheduler's newest report, else the launcher's."""
    ends = [event for event in facts.events if event.kind in ENDS]
    reported = [event for event in ends if event.provenance is Provenance.SCHEDULER] or ends
    if not reported:
        return ()
    newest = max(reported, key=lambda event: event.time)
    return (f"{_event(newest)}, reported by {newest.provenance}",)


def rule_in_words(rules: RuleSet, rule_id: str) -> Sequence[str]:
    for rule in rules.rules:
        if rule.id != rule_id:
            continue
        patterns = [f"matches {pattern}" for pattern in rule.patterns[:_PATTERNS]]
        explains = ", ".join(map(str, rule.explains)) or "nothing"
        return (f"{rule.title}: {rule.type}, {rule.role}, {rule.maturity}", f"explains {explains}", *patterns)
    return ()


def _event(event: Event) -> str:
    parts = [str(event.kind)]
    if event.code is not None:
        parts.append(f"code {event.code}")
    if event.signal:
        parts.append(f"signal {event.signal}")
    if event.rank is not None:
        parts.append(f"of rank {event.rank}")
    if event.node:
        parts.append(f"on {event.node}")
    text = " ".join(parts)
    return f"{text}: {event.reason[:_REASON_CHARS]}" if event.reason else text


def _node_event(event: NodeEvent) -> str:
    text = f"node {event.node} {event.kind} by {event.by}"
    return f"{text}: {event.reason[:_REASON_CHARS]}" if event.reason else text


def disk_lines(answers: Sequence[QueryResult]) -> Iterator[Line]:
    """What nodes answered about their disks."""
    for answer in answers:
        if answer.query != FREE_SPACE:
            continue
        stream = Stream(FREE_SPACE, answer.node, provenance=Provenance.NODE)
        for number, text in enumerate(answer.text.split("\n"), 1):
            said = f"{answer.node}: {text}"
            yield Line(stream, number, said, said, node=answer.node)


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%H:%M:%S") if time > 0 else "at an unknown time"

"""A failure, or an incident of many, as a post-mortem in Markdown: time line, cause, evidence, decisions, cost. Pure.

Names and lines were written by jobs: names lose what Markdown would read, and lines stand in fences longer than any of
their own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Attempt, AttemptKey, Event, EventKind, FailedRun, Incident, Job
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.downtime import failed_at, gpus_of
from diagnoser.recovery.failed_runs import FailedRuns, recovery_figures
from diagnoser.redaction.redact import Redact
from diagnoser.wording.phrases import after, joined, plural
from diagnoser.wording.summaries import summary
from diagnoser.wording.words import ACTIONS, PLAN_STATES, answer, decider, lasting, name, reason, stamp, visible

EVIDENCE, SYMPTOMS, FAILURES = 12, 6, 100
"""Most lines of evidence and of what followed for a failure, and most failures of an incident."""
LINE = 1_500
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#|~!])")
_NO_NEWS = frozenset({EventKind.HEARTBEAT, EventKind.CHECKPOINT})


@dataclass(frozen=True, slots=True)
class FailureStory:
    """A failed launch with what is known around it. job: None where it is not stored any more. relaunched: the next
    launch of the job."""

    record: DiagnosisRecord
    job: Job | None
    attempt: Attempt
    relaunched: Attempt | None

    @property
    def run(self) -> FailedRun:
        """As the figures of recovery count it."""
        gpus = self.job.labels.get("gpus", "") if self.job else ""
        failed = failed_at(
            hung=self.record.diagnosis.outcome is Outcome.HUNG,
            fatal=self.attempt.fatal,
            ended=self.attempt.ended,
            last_line=self.attempt.last_line,
        )
        return FailedRun(
            failed=failed,
            diagnosed=self.record.created,
            gpus=gpus_of(gpus),
            relaunched=self.relaunched.opened if self.relaunched else None,
        )


def failure_post_mortem(story: FailureStory, now: float, link: str, redact: Redact) -> str:
    """link: of the diagnosis's page. redact: hides secrets in what jobs and people wrote."""
    story = _masked(story, redact)
    parts = [
        f"# {plain(summary(story.record.diagnosis), redact)}",
        joined((f"Job {plain(_name_of(story.attempt.key), redact)}", link), " · "),
        "## Time line (UTC)",
        _time_line(_moments(story), redact),
        *_of_failure(story, redact),
        "## Cost",
        cost_words([story], now),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def incident_post_mortem(
    incident: Incident, stories: Sequence[FailureStory], now: float, link: str, redact: Redact
) -> str:
    """stories: of its failures, the newest first; the cause and the evidence are those of the newest."""
    stories = [_masked(story, redact) for story in stories]
    moments = [moment for story in stories for moment in _moments(story, names_job=True)]
    for change in incident.history:
        what = f"Incident {change.state.value} by {redact(change.by)}" + after(
            ", assigned to ", redact(change.assignee)
        )
        moments.append((change.time, what + after(": ", redact(change.comment))))
    head = [
        f"{plural(incident.failures, 'failure')} in {plural(incident.jobs, 'job')}",
        f"cluster {plain(incident.cluster, redact)}",
        link,
    ]
    parts = [
        f"# {plain(joined((redact(incident.node), name(incident.type)), ': '), redact)}",
        joined(head, " · "),
        "## Time line (UTC)",
        _time_line(moments, redact),
    ]
    if stories:
        newest = plain(_name_of(stories[0].attempt.key), redact)
        parts += [
            f"Cause, evidence and decisions are of the newest failure: {newest}.",
            *_of_failure(stories[0], redact),
        ]
    if len(stories) < incident.failures:
        parts.append(f"The time line and the cost are of the {len(stories)} newest failures.")
    parts += ["## Cost", cost_words(stories, now)]
    return "\n\n".join(filter(None, parts)) + "\n"


def cost_words(stories: Sequence[FailureStory], now: float) -> str:
    """GPU hours from each failure to the next launch of its job, or to now."""
    figures = recovery_figures(FailedRuns.of([story.run for story in stories]), now)
    words = []
    if figures.lost_hours is not None:
        words.append(f"{figures.lost_hours:,.1f} GPU hours from the failures to the next launches.")
    if figures.without_gpus:
        words.append(f"{plural(figures.without_gpus, 'failure')} of jobs that do not say how many GPUs they hold.")
    if figures.to_diagnosis is not None:
        words.append(f"Diagnosed after {lasting(figures.to_diagnosis)}.")
    if figures.to_recovery is not None:
        words.append(f"Launched again after {lasting(figures.to_recovery)}.")
    return " ".join(words)


def _masked(story: FailureStory, redact: Redact) -> FailureStory:
    """The story with the names in it masked by themselves: within a sentence a secret may not be recognised."""
    record, attempt, root = story.record, story.attempt, story.record.diagnosis.root_cause
    if root:
        root = replace(root, node=redact(root.node or ""), text=redact(root.text), source=redact(root.source))
    nodes = tuple(replace(suspect, node=redact(suspect.node)) for suspect in record.diagnosis.nodes)
    decided_by = redact(record.diagnosis.decided_by)
    diagnosis = replace(record.diagnosis, root_cause=root, nodes=nodes, decided_by=decided_by)
    if plan := record.plan:
        history = [replace(change, by=redact(change.by), why=redact(change.why)) for change in plan.history]
        plan = replace(plan, history=tuple(history))
    feedback = [replace(word, by=redact(word.by), comment=redact(word.comment)) for word in record.feedback]
    events = [replace(event, reason=redact(event.reason), node=redact(event.node)) for event in attempt.events]
    key = AttemptKey(redact(attempt.key.job), attempt.key.number)
    record = replace(record, diagnosis=diagnosis, plan=plan, feedback=tuple(feedback))
    return replace(story, record=record, attempt=replace(attempt, key=key, events=tuple(events)))


def _of_failure(story: FailureStory, redact: Redact) -> Iterator[str]:
    """Cause, evidence and decisions."""
    verdict = story.record.diagnosis
    yield "## Cause"
    yield plain(f"{answer(verdict)} ({verdict.category}, {verdict.confidence:.0%} sure)", redact)
    yield plain("Decided by " + " ".join(decider(verdict.decided_by)), redact)
    if verdict.needs_review:
        yield plain(f"Needs review: {verdict.needs_review}", redact)
    if verdict.root_cause:
        yield _fenced(verdict.root_cause.text, redact)
    yield plain(verdict.mitigation, redact)
    yield "## Evidence"
    if not verdict.evidence:
        yield "No further line is cited."
    for line in verdict.evidence[:EVIDENCE]:
        yield plain(f"{joined((line.why, line.source), ', ')}, line {line.line}:", redact)
        yield _fenced(line.text, redact)
    if verdict.symptoms:
        yield "What followed:"
    for symptom in verdict.symptoms[:SYMPTOMS]:
        yield plain(f"{name(symptom.type)}, line {symptom.line}:", redact)
        yield _fenced(symptom.text, redact)
    yield "## Decisions"
    yield "\n".join(f"- {plain(decision, redact)}" for decision in _decisions(story.record))


def _decisions(record: DiagnosisRecord) -> Iterator[str]:
    advice = record.diagnosis.recovery
    yield f"Advice: {ACTIONS[advice.action]}" + after(" because: ", reason(advice.reason))
    if record.plan:
        for change in record.plan.history:
            yield f"{stamp(change.time)}: the plan is {PLAN_STATES[change.state]}, {change.by}" + after(
                ": ", reason(change.why)
            )
    for feedback in record.feedback:
        judged = f"{stamp(feedback.created)}: {feedback.by} {feedback.verdict} the verdict"
        yield judged + after(" as ", name(feedback.type) if feedback.type else "") + after(": ", feedback.comment)


def _moments(story: FailureStory, *, names_job: bool = False) -> Iterator[tuple[float, str]]:
    """What happened when. names_job: among those of other jobs."""
    attempt, diagnosis = story.attempt, story.record.diagnosis
    of = f"{_name_of(attempt.key)}: " if names_job else ""
    yield attempt.opened, f"{of}launched"
    for event in attempt.events:
        if event.kind not in {EventKind.STARTED, *_NO_NEWS}:
            yield event.time, of + _event_words(event)
    failed = story.run.failed
    if failed not in (0.0, attempt.ended):
        yield failed, f"{of}failed, as its log shows"
    yield story.record.created, f"{of}diagnosed: {answer(diagnosis)}"
    if story.record.plan:
        for change in story.record.plan.history:
            yield change.time, f"{of}plan {PLAN_STATES[change.state]} ({change.by})"
    if story.relaunched:
        yield story.relaunched.opened, f"{of}launched again as attempt {story.relaunched.key.number}"


def _event_words(event: Event) -> str:
    code = f"code {event.code}" if event.code is not None else ""
    signal = f"signal {event.signal}" if event.signal is not None else ""
    return event.kind.value + after(" ", joined((code, signal, event.reason, event.node)))


def _name_of(key: AttemptKey) -> str:
    return f"{key.job}, attempt {key.number}"


def _time_line(moments: Iterable[tuple[float, str]], redact: Redact) -> str:
    return "\n".join(f"- {stamp(time)} {plain(what, redact)}" for time, what in sorted(moments) if time)


def plain(text: str, redact: Redact) -> str:
    """One line that Markdown takes as it is."""
    return _MARKUP.sub(r"\\\1", visible(" ".join(redact(text).split())))


def _fenced(text: str, redact: Redact) -> str:
    """A block of code."""
    shown = redact(text)[:LINE]
    marks, body = fence(shown, 3), "\n".join(map(visible, shown.splitlines()))
    return f"{marks}\n{body}\n{marks}"


def fence(text: str, least: int) -> str:
    """Backticks around code, one more than it has in a row: no line within it closes them."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(least, longest + 1)

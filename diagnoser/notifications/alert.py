"""Alerts from verdicts, plans and scores. Text from logs and models is masked and bounded here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from diagnoser.model import Diagnosis, Incident, Job, MetricEvent, Plan, PlanReason, PlanState, RootCause, cited_place
from diagnoser.model.alerts import Alert, AlertKind
from diagnoser.model.evaluations import ScoreDrop
from diagnoser.model.job_contract import labels_of
from diagnoser.model.lines import printable, shortened
from diagnoser.model.vitals import BlindSpot
from diagnoser.redaction.redact import masked, masked_entry, without_secrets
from diagnoser.wording.phrases import after, plural
from diagnoser.wording.summaries import summary
from diagnoser.wording.words import ACTIONS, answer, cause, decider, lower_first, reason

TEST_ALERT = Alert(
    AlertKind.FAILURE,
    "test",
    "A test of diagnoser's alerts: nothing has failed",
    "test",
    1,
    facts=(("Cause", "test"), ("Rank", "3"), ("Node", "gpu-017")),
    place="Line 1 of stdout",
    line="This is how the line that shows a failure looks.",
)
LINE_LENGTH = 1_500
TEXT_LENGTH = 600
NAME_LENGTH = 100
NOTES = 6
PLACE_NODES = 10

Redact = Callable[[str], str]


def failure_alert(
    diagnosis: Diagnosis, job: Job, attempt: int, *, incident: str, id: str = "", link: str = "", redact: Redact = str
) -> Alert:
    """Make the alert of a verdict.

    id, link: of its page.
    redact: hides secrets in text of logs and models.
    """
    nodes = _nodes(diagnosis)
    place, line = _root_line(diagnosis.root_cause, redact)
    return Alert(
        kind=AlertKind.FAILURE,
        incident=incident,
        title=_one_line(f"{_sentence(diagnosis)} ({without_secrets(job.id)}, attempt {attempt})"),
        job=job.id,
        attempt=attempt,
        facts=tuple(_facts(diagnosis, nodes)),
        place=place,
        line=line,
        why=_cut(redact(diagnosis.needs_review), TEXT_LENGTH),
        notes=tuple(_cut(redact(note), TEXT_LENGTH) for note in diagnosis.notes[:NOTES]),
        action=diagnosis.recovery.action.value,
        reason=_cut(reason(diagnosis.recovery.reason), TEXT_LENGTH),
        mitigation=_cut(redact(diagnosis.mitigation), LINE_LENGTH),
        link=link,
        cluster=job.cluster,
        node=_cut(nodes[0], NAME_LENGTH) if nodes else "",
        category=diagnosis.category.value,
        type=diagnosis.type.value,
        labels=labels_of(job),
        diagnosis=id,
        owner=job.tenant,
    )


def _sentence(diagnosis: Diagnosis) -> str:
    """Write the sentence that the diagnosis' page begins with. Names are masked before: within a sentence a secret may
    not be recognised."""
    nodes = tuple(replace(suspect, node=without_secrets(suspect.node)) for suspect in diagnosis.nodes[:1])
    root = diagnosis.root_cause
    if root and root.node:
        root = replace(root, node=without_secrets(root.node))
    return summary(replace(diagnosis, nodes=nodes, root_cause=root)).removesuffix(".")


def _nodes(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.nodes:
        return [suspect.node for suspect in diagnosis.nodes[:3]]
    root = diagnosis.root_cause
    if root and root.node:
        return [root.node]
    return []


def _facts(diagnosis: Diagnosis, nodes: Sequence[str]) -> Iterator[tuple[str, str]]:
    root = diagnosis.root_cause
    rank, gpu = (root.rank, root.gpu) if root else (None, None)
    yield "Cause", answer(diagnosis)
    yield "Confidence", f"{diagnosis.confidence:.0%}"
    if rank is not None:
        yield "Rank", str(rank)
    if nodes:
        yield "Node", ", ".join(_cut(node, NAME_LENGTH) for node in nodes)
    if gpu:
        yield "GPU", _cut(gpu, NAME_LENGTH)
    who, which = decider(without_secrets(diagnosis.decided_by))
    yield "Decided by", _cut(f"{who} {reason(which)}".strip(), NAME_LENGTH)


def _root_line(root: RootCause | None, redact: Redact) -> tuple[str, str]:
    """(where it stands, its text); both empty without a root cause."""
    if root is None:
        return "", ""
    source = _cut(root.source, NAME_LENGTH)
    place = f"Line {root.line} of {source}" if root.line > 0 else cited_place(source, 0).capitalize()
    return place, _cut(redact(root.text), LINE_LENGTH)


def seal(alert: Alert) -> Alert:
    """Mask secrets wherever a job may have put one: in its id, its labels, a node's name, what decided.

    Text of logs and models is masked before, with what this site adds. Ids of ours stay.
    """
    ours = ("incident", "link", "diagnosis", "plan", "facts")
    texts = {field.name: getattr(alert, field.name) for field in fields(alert) if field.name not in ours}
    shown = masked(texts, without_secrets)
    facts = tuple((name, masked_entry(name, value, without_secrets)) for name, value in alert.facts)
    return replace(alert, **(shown | {"facts": facts, "notes": tuple(shown["notes"])}))


def with_place(alert: Alert, incident: Incident) -> Alert:
    """Name the place in front where several of its nodes fail: the name of one node would mislead."""
    if alert.kind not in (AlertKind.FAILURE, AlertKind.DECISION):
        return alert
    if len(incident.nodes) < 2:
        return alert
    place = without_secrets(incident.place.replace(":", " "))
    about = _one_line(f"{place[:1].upper()}{place[1:]}: {plural(len(incident.nodes), 'node')} failed")
    nodes = ", ".join(_cut(node, NAME_LENGTH) for node in sorted(incident.nodes)[:PLACE_NODES])
    if len(incident.nodes) > PLACE_NODES:
        nodes += f" and {len(incident.nodes) - PLACE_NODES} more"
    facts = tuple(fact for fact in alert.facts if fact[0] not in ("Node", "Nodes"))
    return replace(
        alert,
        title=_one_line(f"{about}. {alert.title}"),
        about=about,
        node=incident.place,
        facts=(*facts, ("Place", place), ("Nodes", nodes)),
    )


_PLAN_STATES = {
    PlanState.WAITING: "waits for your approval",
    PlanState.HELD: "is held",
    PlanState.REACHED: "was carried out, and it runs again",
    PlanState.NOT_REACHED: "failed",
    PlanState.EXPIRED: "expired unanswered",
}


def plan_alert(plan: Plan, *, link: str = "", redact: Redact = str) -> Alert:
    """Make the alert of a plan's state. redact: hides secrets in what an executor reported."""
    why = reason(redact(plan.history[-1].why if plan.history else plan.reason))  # masked before its words are spelled
    what = lower_first(ACTIONS[plan.action])
    nodes = [_cut(node, NAME_LENGTH) for node in plan.nodes[:10]]
    facts = [("Action", ACTIONS[plan.action])]
    if nodes:
        facts.append(("Nodes", ", ".join(nodes)))
    return Alert(
        kind=AlertKind.RECOVERED if plan.state is PlanState.REACHED else AlertKind.DECISION,
        incident=plan.incident or plan.id,
        title=_one_line(f"{plan.job} attempt {plan.attempt}: the plan to {what} {_plan_state(plan)}"),
        job=plan.job,
        attempt=plan.attempt,
        facts=tuple(facts),
        why=_cut(why, TEXT_LENGTH),
        link=link,
        cluster=plan.cluster,
        node=nodes[0] if nodes else "",
        labels={"partition": plan.partition} if plan.partition else {},
        diagnosis=plan.diagnosis,
        plan=plan.shown if plan.state is PlanState.WAITING else "",
        owner=plan.tenant,
        repeats=(plan.state, plan.reason) == (PlanState.WAITING, PlanReason.PLACE_FAILS),
    )


def _plan_state(plan: Plan) -> str:
    if (plan.state, plan.reason) == (PlanState.SENT, PlanReason.BAD_CHECKPOINT):
        return "goes back to a checkpoint that is bad"
    return _PLAN_STATES.get(plan.state, plan.state.value.replace("_", " "))


def escalation_alert(incident: Incident, by: str, *, link: str = "", redact: Redact = str) -> Alert:
    """Make the alert of an incident that comes before all others from now on. by: who said so. link: of its page."""
    where = after(" on ", incident.node)
    name, failures = cause(incident.type), plural(incident.failures, "failure")
    return Alert(
        kind=AlertKind.ESCALATION,
        incident=incident.id,
        title=_one_line(f"{by} escalated an incident: {lower_first(name)}{where}, {failures}"),
        job="",
        attempt=0,
        facts=(("Cause", name), ("Jobs", str(incident.jobs))),
        line=_cut(redact(incident.line), LINE_LENGTH),
        why=_cut(redact(incident.history[-1].comment), TEXT_LENGTH),
        link=link,
        cluster=incident.cluster,
        node=_cut(incident.node, NAME_LENGTH),
        category=incident.category.value,
        type=incident.type.value,
    )


def blind_spot_alert(spot: BlindSpot, *, ended: bool = False, link: str = "") -> Alert:
    """Make the alert of what the service cannot see, or can again. link: of the page that shows it."""
    return Alert(
        kind=AlertKind.RECOVERED if ended else AlertKind.BLIND_SPOT,
        incident=f"{spot.kind}:{spot.subject}" if spot.subject else spot.kind.value,
        title=_one_line(f"Over: {spot.what}" if ended else spot.what),
        job="",
        attempt=0,
        mitigation="" if ended else spot.lost,
        link=link,
        cluster=spot.subject,
        type=spot.kind.value,
    )


def metric_alert(job: Job, attempt: int, event: MetricEvent, *, link: str = "") -> Alert:
    """Make the alert of what the metrics of a running job show. link: of the job's page."""
    facts = [("Since step", str(event.point.step))] if event.point.step is not None else []
    return Alert(
        kind=AlertKind.METRIC,
        incident=f"metric:{job.id}:{attempt}:{event.kind}"[:LINE_LENGTH],
        title=_one_line(f"{job.id} attempt {attempt}: {event.why}"),
        job=job.id,
        attempt=attempt,
        facts=tuple(facts),
        notes=(event.picture,) if event.picture else (),
        link=link,
        cluster=job.cluster,
        type=event.kind.value,
        labels=labels_of(job),
        owner=job.tenant,
    )


def score_drop_alert(drop: ScoreDrop, *, link: str = "") -> Alert:
    """Make the alert of a checkpoint that scores worse. link: of the page of the evaluation."""
    score, name = drop.score, drop.score.checkpoint.rstrip("/").rpartition("/")[2]
    facts = [
        ("Score", f"{score.value:.4g}"),
        ("Expected", f"{drop.expected:.4g}"),
        ("Noise", f"{drop.noise:.2g}"),
        ("Metric", _cut(drop.metric, NAME_LENGTH)),
        ("Checkpoint", _cut(score.checkpoint, NAME_LENGTH)),
    ]
    return Alert(
        kind=AlertKind.SCORE_DROP,
        incident=f"score:{drop.suite}:{drop.task}:{drop.metric}"[:LINE_LENGTH],
        title=_one_line(f"{drop.suite}: {drop.task} got worse at {name}: {drop.expected:.3g} to {score.value:.3g}"),
        job="",
        attempt=0,
        facts=tuple(facts),
        notes=("Compare its samples with those of the checkpoint before, and the loss between the two.",),
        link=link,
        type=AlertKind.SCORE_DROP.value,
    )


def _one_line(text: str) -> str:
    return _cut(printable(text), TEXT_LENGTH)


def _cut(text: str, length: int) -> str:
    """Mask before cutting: half a secret is not recognised."""
    return shortened(without_secrets(text), length)

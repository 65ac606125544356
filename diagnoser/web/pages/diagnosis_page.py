"""The page of one diagnosis, and the form on it that confirms or corrects the verdict."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from urllib.parse import urlencode

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from diagnoser.diagnosis.node_faults import NOT_THE_CAUSE
from diagnoser.failure_agent.inquiry import Reply
from diagnoser.learning.rule_context import known_type
from diagnoser.logview.log_columns import stream_key
from diagnoser.logview.log_index import LogEnding, LogFacets, LogFilter, LogIndex
from diagnoser.model import (
    Diagnosis,
    Feedback,
    Incident,
    Job,
    LearnedRule,
    LearnedState,
    Line,
    Provenance,
    RootCause,
    Stream,
    Symptom,
)
from diagnoser.model.errors import BadInput, Conflict, ModelFailed, NotFound
from diagnoser.model.jobs import cluster_of
from diagnoser.model.queries import DiagnosisFilter, IncidentFilter, LearnedRuleQuery
from diagnoser.model.taxonomy import DEFINITIONS, Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.api.diagnoses import DiagnosisId, find
from diagnoser.web.api.feedback import NewFeedback, likely_stream, store_feedback, take_back_feedback
from diagnoser.web.api.params import Search
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core, Logs, Plans, Questions, Scoped
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.attempt_axis import attempt_axis, log_of
from diagnoser.web.pages.excerpt import AROUND, Excerpt, LineRole, citations, excerpts
from diagnoser.web.pages.forms import Form, Pressed, places_of, see_other
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.plan_strip import plan_strip, why_unchanged
from diagnoser.web.pages.rendering import Drawn, Pages
from diagnoser.wording.collapse_ranks import grouped, not_it
from diagnoser.wording.words import name, visible

router = Router(include_in_schema=False)

LEARNED = 5
DECIDED = 20
ENDINGS = 8
NODES_OFFERED = 200
STREAMS_OFFERED = 600
RANKS_OFFERED = 2_000
QUESTION_LENGTH = 500
HOUR = 3600.0
INCIDENTS_LOOKED_AT, INCIDENTS_SHOWN = 100, 5
FIELDS = ("verdict", "type", "root_line", "stream", "node", "rank", "comment")
WHAT_IS_WRONG = {
    "root_line": "Give the line by its number, as it stands beside it in the log.",
    "root_id": "Choose one of the listed streams.",
    "node": "A node's name has no spaces and at most 253 characters.",
    "rank": "Give the rank by its number.",
    "type": "Choose one of the listed causes.",
}
"""Of each field of the form, where its value cannot be used at all."""


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """A failure type to choose. name: as people read it, which is also taken."""

    type: FailureType
    name: str
    definition: str
    category: Category


TYPES = tuple(
    TypeChoice(kind, name(kind), DEFINITIONS[kind], category_of(kind))
    for kind in FailureType
    if kind is not FailureType.UNKNOWN
)
_TYPE_OF = {choice.name.casefold(): str(choice.type) for choice in TYPES}


@dataclass(frozen=True, slots=True)
class Lesson:
    """What became of what a person said. number: of the case; the first one that anybody judged is 1.

    family: job family in which it decides the next failure of this kind, "" where it decides none by itself.
    decided: failures that it did decide, the newest first.
    """

    known: FailureType
    number: int | None
    rules: tuple[LearnedRule, ...]
    family: str
    decided: tuple[DiagnosisRecord, ...]

    @property
    def is_case(self) -> bool:
        if self.number is None:
            return False
        return category_of(self.known) is not Category.UNKNOWN

    @property
    def is_open(self) -> bool:
        """Whether a rule is being written or tested at this moment."""
        return any(rule.state is LearnedState.PROPOSED for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Correction:
    """What stands in the form. fault: what is wrong with it, of ``field`` or of the whole."""

    values: Mapping[str, str]
    fault: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what came of it: a reply, or why there is none."""

    question: str = ""
    reply: Reply | None = None
    fault: str = ""


@router.get("/diagnoses/{id}", dependencies=[Depends(may_read)])
async def diagnosis(
    id: DiagnosisId,
    scope: Scoped,
    plans: Plans,
    pages: Drawn,
    root_line: Search = "",
    stream: Search = "",
    node: Search = "",
    rank: Search = "",
    late: bool = False,
) -> Response:
    """root_line, stream, node, rank: what the form begins with, for somebody who comes from the log. late: whether the
    press that led here changed nothing."""
    record = await find(scope.core.store, id)
    given = {"root_line": root_line, "stream": stream, "node": node, "rank": rank}
    shown = {name: visible(text) for name, text in given.items()}
    return await _draw(scope, plans, pages, record, Correction(dict.fromkeys(FIELDS, "") | shown), is_late=late)


@router.post("/diagnoses/{id}/feedback")
async def say(id: DiagnosisId, form: Pressed, scope: Scoped, plans: Plans, pages: Drawn) -> Response:
    """Stores the feedback, then redirects to the diagnosis, so that a reload does not repeat it. What is wrong is told
    on the page, beside what was typed."""
    record = await find(scope.core.store, id)
    values = {field: form.text(field) for field in FIELDS}
    try:
        feedback = _read(form)
        await _check_line(scope.logs, record, feedback)
        await store_feedback(scope, form.caller, id, feedback)
    except RequestValidationError as error:
        at = next((place for place in places_of(error) if place in WHAT_IS_WRONG), "")
        fault = WHAT_IS_WRONG.get(at, "Choose Confirm or Correct.")
        return await _draw(scope, plans, pages, record, Correction(values, fault, at), 400)
    except BadInput as error:
        at = error.field if isinstance(error, UnusableLine) else ""
        return await _draw(scope, plans, pages, record, Correction(values, str(error), at), 400)
    except Conflict as error:
        record = await find(scope.core.store, id)
        return await _draw(scope, plans, pages, record, Correction(values, f"{error}."), 409)
    return see_other(f"/diagnoses/{id}#feedback")


@router.post("/diagnoses/{id}/feedback/take-back")
async def take_back(id: DiagnosisId, form: Pressed, scope: Scoped, plans: Plans, pages: Drawn) -> Response:
    """Undoes what was said last, then shows what had followed from it. A second press changes nothing."""
    try:
        await take_back_feedback(scope, form.caller, id, form.text("feedback"))
    except Conflict as error:
        record = await find(scope.core.store, id)
        return await _draw(scope, plans, pages, record, Correction(dict.fromkeys(FIELDS, ""), f"{error}."), 409)
    except NotFound:
        await find(scope.core.store, id)
    return see_other(f"/diagnoses/{id}#feedback")


@router.post("/diagnoses/{id}/ask")
async def ask(
    id: DiagnosisId, form: Pressed, scope: Scoped, plans: Plans, questions: Questions, pages: Drawn
) -> Response:
    """Answers a question about the failure; without a model, or where it fails, the log is searched for its words."""
    record, question = await find(scope.core.store, id), form.text("q")[:QUESTION_LENGTH]
    if not questions or not question:
        return see_other(f"{log_path(record.attempt).removesuffix('log')}search?{urlencode({'q': question[:200]})}")
    try:
        asked = Asked(question, await questions.answer(scope.logs.context, record, question))
    except (ModelFailed, NotFound) as error:
        asked = Asked(question, fault=str(error))
    nothing = Correction(dict.fromkeys(FIELDS, ""))
    return await _draw(scope, plans, pages, record, nothing, asked=asked)


class UnusableLine(BadInput):
    """The attempt's log has no line of that number, or several. field: of the form."""

    def __init__(self, detail: str, field: str) -> None:
        super().__init__(detail)
        self.field = field


async def _draw(
    scope: Scoped,
    plans: Plans,
    pages: Pages,
    record: DiagnosisRecord,
    correction: Correction,
    status: int = 200,
    *,
    is_late: bool = False,
    asked: Asked = Asked(),
) -> Response:
    verdict, job = record.diagnosis, await scope.core.store.jobs.find(record.attempt.job)
    index, is_reading = await log_of(scope.logs, record.attempt)
    context = await scope.logs.context.node_lines(record)
    sections = await asyncio.to_thread(_excerpts, verdict, index, context)
    after, before = await asyncio.to_thread(_in_time, verdict, index)
    incident = await scope.core.store.incidents.of_diagnosis(record.id)
    facets = await asyncio.to_thread(index.facets, LogFilter()) if index else LogFacets()
    endings, nearby = tuple[LogEnding, ...](), list[Incident]()
    if verdict.category is Category.UNKNOWN:
        endings = await asyncio.to_thread(index.endings, ENDINGS) if index else ()
        nearby = await _nearby(scope.core, record, job, incident)
    strip, late = None, ""
    if record.plan:
        strip = await plan_strip(scope.core, scope.logs, record.plan)
        late = why_unchanged(record.plan, scope.core.clock()) if is_late else ""
    return pages.draw(
        "diagnosis.html",
        status,
        record=record,
        verdict=verdict,
        excerpts=sections,
        root_line=_root_line(sections),
        log_path=log_path(record.attempt),
        axis=await attempt_axis(scope.core, record, job, index, context),
        has_log=is_reading or bool(index),
        is_reading=is_reading,
        followed=grouped(after),
        preceded=grouped(before),
        not_it=not_it(verdict),
        endings=endings,
        not_seen=[missing for is_missing, missing in _MISSING if is_missing(verdict, job)],
        similar=[] if is_reading else await scope.confirmed_failures.similar(record),
        incident=incident,
        nearby=nearby,
        lesson=await _lesson(scope, record),
        decider=await _decider(scope.core, verdict),
        types=TYPES,
        nodes=_nodes(verdict, job, facets),
        ranks=_ranks(job, facets),
        streams=_streams(index, verdict, correction.values),
        correction=correction,
        asked=asked,
        cited=cited_places(asked.reply.lines if asked.reply else (), index),
        policy=plans.commands.policy.hash,
        strip=strip,
        kept_nodes=await scope.core.store.evidence.nodes_with_snapshots(record.attempt),
        late=late,
    )


def cited_places(lines: Sequence[Line], index: LogIndex | None) -> list[tuple[Line, str]]:
    """Lines that an answer cites, each with its name in the log, "" where the log does not have it."""
    if index is None:
        return [(line, "") for line in lines]
    return [(line, index.id_of(line.stream.source, line.number, line.text)) for line in lines]


async def _nearby(core: Core, record: DiagnosisRecord, job: Job | None, mine: Incident | None) -> list[Incident]:
    """Other incidents of the cluster with failures within an hour of this one: they may have one cause."""
    cluster = cluster_of(job)
    nearby = []
    for incident in await core.store.incidents.page(IncidentFilter(), "", INCIDENTS_LOOKED_AT):
        is_mine = mine is not None and incident.id == mine.id
        if is_mine:
            continue
        if incident.cluster != cluster:
            continue
        if incident.first_seen - HOUR <= record.created <= incident.last_seen + HOUR:
            nearby.append(incident)
    return nearby[:INCIDENTS_SHOWN]


def _in_time(verdict: Diagnosis, index: LogIndex | None) -> tuple[list[Symptom], list[Symptom]]:
    """Symptoms after the root, and those before it: what came first did not follow from it."""
    root = verdict.root_cause
    if root is None:
        return list(verdict.symptoms), []
    after, before = list[Symptom](), list[Symptom]()
    for symptom in verdict.symptoms:
        if _is_earlier(symptom, root, index):
            before.append(symptom)
        else:
            after.append(symptom)
    return after, before


def _is_earlier(symptom: Symptom, root: RootCause, index: LogIndex | None) -> bool:
    """By the order of the log, where it has both lines; else by their numbers within one source."""
    if index:
        root_at = index.position(root.source, root.line, root.text)
        at = index.position(symptom.source, symptom.line, symptom.text)
        if root_at >= 0 and at >= 0:
            return at < root_at
    if symptom.source != root.source:
        return False
    return 0 < symptom.line < root.line


def _excerpts(verdict: Diagnosis, index: LogIndex | None, node_lines: Sequence[Line]) -> list[Excerpt]:
    """What the verdict cites, with the lines around it; rows have their names in the log of the attempt. What is from a
    node's own log is not there."""
    if index is None:
        return excerpts(verdict, node_lines)
    near: dict[str, Line] = {}
    for cited in citations(verdict):
        place = index.position(cited.source, cited.row.number, cited.row.text)
        if place < 0:
            continue
        for row in index.neighbours(place, AROUND):
            near[row.id] = Line(row.stream, row.number, row.text, row.text, row.rank, row.node, row.time)
    return [_named_rows(section, index) for section in excerpts(verdict, [*near.values(), *node_lines])]


def _named_rows(section: Excerpt, index: LogIndex) -> Excerpt:
    if section.stream.provenance is Provenance.NODE:
        return section
    source = section.stream.source
    named = [replace(row, line_id=index.id_of(source, row.number, row.text)) for row in section.rows]
    return replace(section, rows=tuple(named))


def _root_line(sections: Sequence[Excerpt]) -> str:
    """Name of the root line in the log, "" where the log of the attempt does not have it."""
    for section in sections:
        for row in section.rows:
            if row.role is LineRole.ROOT:
                return row.line_id
    return ""


def _no_node_log(verdict: Diagnosis, job: Job | None) -> bool:
    """Also where no line of it is cited, it was read where a proof or a note comes from it."""
    if verdict.proofs:
        return False
    if any(note.startswith(NOT_THE_CAUSE) for note in verdict.notes):
        return False
    provenances = {line.provenance for line in verdict.evidence} | {line.provenance for line in verdict.symptoms}
    if verdict.root_cause is not None:
        provenances.add(verdict.root_cause.provenance)
    return Provenance.NODE not in provenances


def _no_node_list(verdict: Diagnosis, job: Job | None) -> bool:
    if job is None:
        return True
    return not any((job.nodes, job.rank_nodes))


def _no_rank_map(verdict: Diagnosis, job: Job | None) -> bool:
    """Only where it would help: the rank of the root cause is known, and its node is not."""
    root = verdict.root_cause
    if root is None:
        return False
    if root.node:
        return False
    if root.rank is None:
        return False
    return job is None or not job.rank_nodes


def _no_clean_run(verdict: Diagnosis, job: Job | None) -> bool:
    return not any((verdict.clean_runs, verdict.new_lines))


_MISSING: tuple[tuple[Callable[[Diagnosis, Job | None], bool], str], ...] = (
    (_no_node_log, "no line of a node's own log"),
    (_no_node_list, "no list of the job's nodes"),
    (_no_rank_map, "no map of ranks to nodes"),
    (_no_clean_run, "no clean run of this job family to compare with"),
)
"""What a verdict can rest on, and some have not."""


async def _lesson(scope: Scoped, record: DiagnosisRecord) -> Lesson:
    store = scope.core.store
    rules = await store.rules.page(LearnedRuleQuery(source=record.id), "", LEARNED)
    by_it = DiagnosisFilter(decided_by=f"incident:{record.id}", current_only=False)
    return Lesson(
        known_type(record),
        await store.cases.number(record.id),
        tuple(rules),
        await scope.confirmed_failures.family_taught(record.id),
        tuple(await store.diagnoses.page(by_it, "", DECIDED)),
    )


async def _decider(core: Core, verdict: Diagnosis) -> tuple[DiagnosisRecord, Feedback | None] | None:
    """The judged failure that decided this one, and what a person said of it, None once that was taken back.

    None where no judged failure decided, or its diagnosis is not stored any more.
    """
    precedent = verdict.precedent
    if precedent is None:
        return None
    record = await core.store.diagnoses.find(precedent.diagnosis)
    if record is None:
        return None
    newest = next(iter(record.feedback), None)
    if newest and newest.id == precedent.feedback:
        return record, newest
    return record, None


def _nodes(verdict: Diagnosis, job: Job | None, facets: LogFacets) -> list[str]:
    """Nodes to choose from: suspects first. A name that would hide what it holds is not offered."""
    nodes = [suspect.node for suspect in verdict.nodes]
    if job:
        nodes += [*job.nodes, *job.rank_nodes.values()]
    nodes += [node for node, _ in facets.nodes]
    return [node for node in dict.fromkeys(nodes) if node == visible(node)][:NODES_OFFERED]


def _ranks(job: Job | None, facets: LogFacets) -> list[int]:
    """Ranks to choose from: those of the registration and of the log."""
    known = {rank for rank, _ in facets.ranks if rank >= 0}
    if job:
        known.update(job.rank_nodes)
    return sorted(known)[:RANKS_OFFERED]


def _streams(index: LogIndex | None, verdict: Diagnosis, typed: Mapping[str, str]) -> list[tuple[bool, str, Stream]]:
    """Streams to choose from, where several have a line of the typed number: whether chosen, key, stream."""
    number = typed["root_line"]
    if index is None:
        return []
    if not number.isdecimal():
        return []
    streams = index.streams_with(int(number[:20]))
    likely = likely_stream(index, verdict.root_cause, int(number[:20]))
    chosen = typed["stream"]
    if likely and not chosen:
        chosen = stream_key(likely)
    choices = [(stream_key(stream) == chosen, stream_key(stream), stream) for stream in streams]
    if len(choices) < 2:
        return []
    return sorted(choices, key=itemgetter(0), reverse=True)[:STREAMS_OFFERED]


def _read(form: Form) -> NewFeedback:
    """Empty fields count as absent. Raises RequestValidationError."""
    try:
        given: dict[str, str | int] = {field: form.text(field) for field in FIELDS if form.text(field)}
        stream = str(given.pop("stream", ""))
        if "type" in given:
            given["type"] = _TYPE_OF.get(form.text("type").casefold(), form.text("type"))
        for field in ("root_line", "rank"):
            if form.text(field).isdecimal():  # a form knows texts only
                given[field] = int(form.text(field)[:20])
        if stream and isinstance(given.get("root_line"), int):
            given["root_id"] = f"{stream}-{given['root_line']}"
        return NewFeedback.model_validate(given | {"after": form.unread().get("after")})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def _check_line(logs: Logs, record: DiagnosisRecord, feedback: NewFeedback) -> None:
    """Raises UnusableLine."""
    number = feedback.root_line
    if number is None:
        return
    try:
        index = (await logs.indexes.load(record.attempt)).index
    except NotFound:
        return
    if not index.last_number:
        return
    streams = index.streams_with(number)
    if not streams:
        raise UnusableLine(
            f"The log has no line {number}: the last one that came has number {index.last_number}.", "root_line"
        )
    chosen = feedback.root_id.rpartition("-")[0]
    if chosen in map(stream_key, streams):
        return
    if chosen:
        raise UnusableLine(f"That stream has no line {number}.", "root_id")
    if likely_stream(index, record.diagnosis.root_cause, number) is None:
        raise UnusableLine(f"{len(streams)} streams have a line {number}: choose whose it is.", "root_id")

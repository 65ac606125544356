"""What people confirmed: shown beside a new failure, told to the model, and sometimes the verdict itself."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from diagnoser.adapters.sql.feedback import FeedbackRepository
from diagnoser.compress import AttemptLog
from diagnoser.localize import suspect_nodes
from diagnoser.model.diagnosis import Advice, DecisionBasis, Diagnosis, Precedent, RootCause, Suspect, rules_verdict
from diagnoser.model.errors import Conflict, DiagnoserError, ModelFailed, ModelFailure, NotFound
from diagnoser.model.evidence import Evidence, Line
from diagnoser.model.feedback import ConfirmedFailure, Feedback, FeedbackVerdict, Lesson, Signature, Similar
from diagnoser.model.jobs import AttemptKey, Facts
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.recovery import retry_history
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.retrieval import hashing, precedents, rule_requests, search, signature
from diagnoser.retrieval.index import Index
from diagnoser.retrieval.precedents import Found, LineShapes, Precedents
from diagnoser.retrieval.search import SearchResult
from diagnoser.rules import outcome

if TYPE_CHECKING:
    from diagnoser.adapters.openai import OpenAIEmbedder

SAME = 0.92
"""From this likeness on two failures may be the same; messages of a dozen words that differ in one word lie below.
Likeness alone is no proof (``tools.bench.likeness``): every line must have a counterpart, too.
"""
ALIKE = 0.5
"""Below this a confirmed failure is not worth showing."""
SURE = 0.9
"""Confidence of an adopted verdict: people err, and the same words may come from another cause."""
SHOWN = 5
TOLD = 3
RIVALS = 8
"""Nearest confirmed failures that are searched for the same failure, and for verdicts that contradict it."""
_PAGE = 1_000
_LATE = 300.0
"""Seconds by which another replica's row may show up late, because of its clock or an open transaction."""
_CHARS = 300
_OPEN = frozenset({Outcome.FAILED, Outcome.HUNG, Outcome.UNKNOWN})
_WEIGHT = {
    Action.NONE: 0,
    Action.NOTIFY_USER: 0,
    Action.RESUBMIT: 1,
    Action.ROLLBACK_AND_RESUBMIT: 1,
    Action.CHECK_AND_RESUBMIT: 2,
    Action.CORDON_AND_RESUBMIT: 3,
}
"""How far an action reaches: to people, to the job, to its nodes."""


class Analysis(Protocol):
    """``learning.rule_registry.RuleRegistry``."""

    async def analyze_without(self, lines: Collection[int], log: AttemptLog, facts: Facts) -> Diagnosis:
        """The verdict of the rules as if these lines of the evidence, by their indices, had not been printed."""


class LogLoader(Protocol):
    """``diagnosis.attempt_logs.AttemptLogs``."""

    async def load(self, key: AttemptKey) -> AttemptLog: ...


@dataclass(frozen=True, slots=True)
class SimilarFailures:
    """Similar confirmed failures as text for a model. notes: for people, how the confirmed failures were found."""

    confirmed_failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Memory:
    """index: by hashed words, which all have. embedded: by the embedding model, of those that have it."""

    index: Index = field(default_factory=Index)
    embedded: Index = field(default_factory=Index)
    precedents: Precedents = field(default_factory=Precedents)
    newest: float = 0.0


@dataclass(eq=False)
class ConfirmedFailures:
    """One a process. The database is the truth: each question first reads what has changed since the last one. shared:
    failures of all tenants are looked for, whoever's job it is; else only those of the job's own."""

    store: FeedbackRepository
    logs: LogLoader
    policy: Policy
    metrics: Metrics
    embedder: "OpenAIEmbedder | None" = None
    _: KW_ONLY
    shared: bool = False
    _memory: _Memory = field(default_factory=_Memory, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def reading(self, logs: LogLoader) -> "ConfirmedFailures":
        """The same, with logs from elsewhere."""
        other = copy(self)
        other.logs = logs
        return other

    async def learn(self, record: DiagnosisRecord, feedback: Feedback, after: str | None = None) -> None:
        """Store a person's feedback on a diagnosis, and a request for a rule where one would help. The same words twice
        are stored once.

        after: id of the newest feedback that the person has seen, "" for none, None where they do not tell. Raises
        NotFound, Conflict when another one came since.
        """
        confirmed = await self._confirmed_failure_of(record, feedback)
        wanted = rule_requests.rule_wanted(record, confirmed)
        if await self.store.add(feedback, confirmed, wanted, after):
            self.metrics.feedback.labels(feedback.verdict, category_of(record.diagnosis.type)).inc()

    async def take_back(self, record: DiagnosisRecord, id: str, by: str, now: float) -> None:
        """Take back the newest feedback on a diagnosis: what was said before counts again, and what it decided is
        diagnosed again. Raises NotFound, Conflict where it is not the newest."""
        given = [feedback for feedback in record.feedback if feedback.diagnosis == record.id]
        if id not in {feedback.id for feedback in given}:
            raise NotFound(f"there is no feedback {id!r} on the diagnosis {record.id!r}: it may be taken back already")
        newest, *earlier = given
        if newest.id != id:
            raise Conflict(f"{newest.by} said something else since: that would have to be taken back first")
        remains = confirmed(record, replace(newest, type=FailureType.UNKNOWN), Evidence())
        if earlier:
            remains = await self._confirmed_failure_of(record, earlier[0])
        await self.store.take_back(newest, replace(remains, by=by, changed=now))

    async def confirm(self, record: DiagnosisRecord, by: str, now: float) -> bool:
        """The same where the next launch, not a person, confirms the verdict; False when it was known already."""
        confirmed = await self._confirmed_failure_of(
            record, Feedback("", record.id, now, FeedbackVerdict.CONFIRMED, by)
        )
        return await self.store.add_confirmed_failure(confirmed, rule_requests.rule_wanted(record, confirmed))

    async def _confirmed_failure_of(self, record: DiagnosisRecord, feedback: Feedback) -> ConfirmedFailure:
        evidence = await self.evidence(record.attempt)
        sign = signature.signature_of(evidence, record.diagnosis)
        lesson = await self._lesson_of(record, feedback, evidence)
        vectors = {hashing.NAME: hashing.packed(signature.vector(sign))}
        embedding, _ = await self._embedded(sign)
        if embedding is not None:
            vectors[self._embedder_name] = hashing.packed(embedding)
        return replace(confirmed(record, feedback, evidence), signature=sign, vectors=vectors, lesson=lesson)

    async def _lesson_of(self, record: DiagnosisRecord, feedback: Feedback, evidence: Evidence) -> Lesson | None:
        """Of a failure that a precedent decided, the lesson of that one: both are about the same line."""
        named = None
        if feedback.root_line:
            named = signature.line_named(evidence, feedback, record.diagnosis.root_cause)
        if precedent := record.diagnosis.precedent:
            await self._refresh()
            lesson = self._memory.precedents.lesson(precedent.diagnosis)
            if lesson is None or named is None:
                return lesson
            return replace(lesson, named=LineShapes(evidence).of(named))
        if record.diagnosis.outcome not in _OPEN:
            return None
        family = await self.store.family_of(record.id)
        root = precedents.rules_root(evidence, record.diagnosis)
        return await asyncio.to_thread(precedents.lesson_of, evidence, root, family, named)

    async def family_taught(self, diagnosis: str) -> str:
        """The job family in which what people said of a diagnosis decides the next failure; "" where it does not."""
        await self._refresh()
        lesson = self._memory.precedents.lesson(diagnosis)
        return lesson.family if lesson else ""

    async def similar(self, record: DiagnosisRecord, limit: int = SHOWN) -> list[Similar]:
        """The nearest confirmed failures of other attempts, the nearest first."""
        return (await self._similar(record, limit))[0]

    async def _similar(self, record: DiagnosisRecord, limit: int) -> tuple[list[Similar], ModelFailure | None]:
        """The same, and why the embedding model was not used although it is configured."""
        await self._refresh()
        if not len(self._memory.index):
            return [], None
        sign = signature.signature_of(await self.evidence(record.attempt), record.diagnosis)
        tenant, count = await self._tenant_of(record.attempt), limit + RIVALS
        nearest = list[Similar]()
        failure = None
        if len(self._memory.embedded):
            embedding, failure = await self._embedded(sign)
            if embedding is not None:
                nearest += self._memory.embedded.nearest(embedding, count, tenant)
        nearest += await self._nearest(sign, count, tenant)
        by_id: dict[str, Similar] = {}
        for near in nearest:
            by_id.setdefault(near.confirmed.diagnosis, near)
        others = alike(by_id.values(), record.attempt)
        return sorted(others, key=lambda near: (-near.score, near.confirmed.diagnosis))[:limit], failure

    async def describe_similar(self, record: DiagnosisRecord) -> SimilarFailures:
        """The same as text for a model, without hosts, paths and numbers. Empty when the store does not answer."""
        try:
            near, failure = await self._similar(record, TOLD)
        except DiagnoserError as error:
            structlog.get_logger().warning("confirmed_failures_away", error=str(error))
            return SimilarFailures()
        described = tuple(map(describe, near))
        if failure is None:
            return SimilarFailures(described)
        note = f"similar failures were looked for by hashed words: the embedding server failed ({failure})"
        return SimilarFailures(described, (note,))

    async def describe_like(self, attempt: AttemptKey, text: str) -> tuple[str, ...]:
        """Failures like a text, as text for a model: by hashed words, and of those that the attempt may be told."""
        sign = Signature(hashing.normalised(text[:_CHARS]))
        try:
            await self._refresh()
            nearest = await self._nearest(sign, RIVALS, await self._tenant_of(attempt))
        except DiagnoserError as error:
            structlog.get_logger().warning("confirmed_failures_away", error=str(error))
            return ()
        return tuple(map(describe, alike(nearest, attempt)[:TOLD]))

    @property
    def _embedder_name(self) -> str:
        if self.embedder is None:
            return ""
        return self.embedder.name

    async def match_confirmed_failure(
        self, attempt: AttemptKey, diagnosis: Diagnosis, log: AttemptLog, facts: Facts, analysis: Analysis
    ) -> Diagnosis:
        """The verdict of a judged failure where this one is the same; else as it was.

        Where rules decided, a precedent of the job family does; where they did not, any near-duplicate.
        """
        if diagnosis.outcome not in _OPEN:
            return diagnosis
        try:
            await self._refresh()
            decided = await self._by_precedent(attempt, diagnosis, log, facts, analysis)
            if decided is not None:
                return decided
            if not diagnosis.is_undecided or not len(self._memory.index):
                return diagnosis
            evidence = await asyncio.to_thread(lambda: log.evidence)
            sign = signature.signature_of(evidence, diagnosis)
            nearest = await self._nearest(sign, RIVALS, await self._tenant_of(attempt))
            adopted = adopt_confirmed_failure(diagnosis, attempt, sign, nearest, self.policy)
            return _with_root(adopted, nearest, evidence)
        except DiagnoserError as error:
            structlog.get_logger().warning("confirmed_failures_away", error=str(error))
            return diagnosis

    async def _by_precedent(
        self, attempt: AttemptKey, diagnosis: Diagnosis, log: AttemptLog, facts: Facts, analysis: Analysis
    ) -> Diagnosis | None:
        """The verdict by a precedent, None without one."""
        family = retry_history.family(facts.job)
        judged = self._memory.precedents.of_family(facts.job.tenant, family)
        if not judged:
            return None
        evidence = await asyncio.to_thread(lambda: log.evidence)
        root = signature.root_line(evidence, diagnosis.root_cause)
        here = await asyncio.to_thread(precedents.lesson_of, evidence, root, family)
        if here is None:
            return None
        judged = precedents.about(judged, here.root)
        found = await asyncio.to_thread(precedents.newest, judged, here, attempt, evidence)
        if found is None:
            return None
        if found.judged.type is not FailureType.COMPLETED:
            return _overruled(diagnosis, found, self.policy, facts.job.labels)
        if objection := _objection(diagnosis, judged):
            return _objected(diagnosis, found.judged, objection)
        lines = precedents.lines_of(evidence, here)
        remaining = await analysis.analyze_without(lines, log, facts)
        if not precedents.ended_well(evidence, lines, remaining):
            return None
        cleared = _decided(remaining, found.judged, SURE, self.policy, {})
        return replace(cleared, precedent=_precedent(found.judged, diagnosis))

    async def search(self, attempt: AttemptKey, query: str, limit: int) -> list[SearchResult]:
        """Lines and templates of one attempt, the best first."""
        return await asyncio.to_thread(search.find_lines, await self.evidence(attempt), query, limit)

    async def evidence(self, attempt: AttemptKey) -> Evidence:
        log = await self.logs.load(attempt)
        return await asyncio.to_thread(lambda: log.evidence)

    async def _tenant_of(self, attempt: AttemptKey) -> str:
        """Whose failures may be told of this attempt; "" for everybody's."""
        if self.shared:
            return ""
        return await self.store.tenant_of(attempt.job)

    async def _nearest(self, sign: Signature, limit: int, tenant: str) -> list[Similar]:
        async with self._turn:
            return await asyncio.to_thread(self._memory.index.nearest, signature.vector(sign), limit, tenant)

    async def _refresh(self) -> None:
        memory = self._memory
        async with self._turn:
            since, after = memory.newest - _LATE, ""
            while page := await self.store.confirmed_failures(since, after, _PAGE):
                for confirmed in page:
                    self._remember(confirmed)
                after = page[-1].diagnosis

    def _remember(self, confirmed: ConfirmedFailure) -> None:
        memory = self._memory
        memory.newest = max(memory.newest, confirmed.changed)
        for index, name in ((memory.index, hashing.NAME), (memory.embedded, self._embedder_name)):
            if confirmed.type is FailureType.UNKNOWN or name not in confirmed.vectors:
                index.drop(confirmed.diagnosis)
            else:
                index.put(confirmed, hashing.unpacked(confirmed.vectors[name]))
        memory.precedents.drop(confirmed.diagnosis)
        if confirmed.type is not FailureType.UNKNOWN:
            memory.precedents.put(confirmed)

    async def _embedded(self, sign: Signature) -> tuple[hashing.Vector | None, ModelFailure | None]:
        """Embed by the configured model, or say why it failed; neither where there is none.

        Without a vector, callers fall back on hashed words.
        """
        if self.embedder is None:
            return None, None
        if not sign.text:
            return None, None
        try:
            (embedding,) = await self.embedder.embed([sign.text])
        except (ModelFailed, ValueError) as error:
            structlog.get_logger().warning("embedding_failed", error=str(error), instead=hashing.NAME)
            reason = error.reason if isinstance(error, ModelFailed) else ModelFailure.MALFORMED
            self.metrics.embedding_failures.labels(reason).inc()
            return None, reason
        return hashing.unpacked(hashing.packed(embedding)), None


def alike(nearest: Iterable[Similar], attempt: AttemptKey) -> list[Similar]:
    """Keep the failures of other attempts that are near enough to be told of."""
    return [near for near in nearest if near.score >= ALIKE and near.confirmed.attempt != attempt]


def confirmed(record: DiagnosisRecord, feedback: Feedback, evidence: Evidence) -> ConfirmedFailure:
    """What is learned from feedback on a diagnosis, still without signature and vectors. Its line is the one that the
    person named, if the log still has it; the verdict's where they named none."""
    diagnosis = record.diagnosis
    root: Line | RootCause | None = diagnosis.root_cause
    if feedback.root_line:
        root = signature.line_named(evidence, feedback, diagnosis.root_cause)
    text = ""
    if root:
        text = root.text[:_CHARS]
    return ConfirmedFailure(
        diagnosis=record.id,
        attempt=record.attempt,
        created=record.created,
        changed=feedback.created,
        type=feedback.type or diagnosis.type,
        verdict=feedback.verdict,
        by=feedback.by,
        signature=Signature(),
        line=text,
        done=_done(record),
        comment=feedback.comment,
        feedback=feedback.id,
    )


def adopt_confirmed_failure(
    diagnosis: Diagnosis,
    attempt: AttemptKey,
    sign: Signature,
    nearest: Sequence[Similar],
    policy: Policy,
    least: float = SAME,
) -> Diagnosis:
    """An undecided diagnosis with the verdict of the same failure that people confirmed, if all such agree.

    least: lowest likeness at which a confirmed failure is considered.
    """
    same = list[Similar]()
    for similar in nearest:
        if similar.score < least:
            continue
        if similar.confirmed.attempt == attempt:
            continue
        if signature.is_same(sign, similar.confirmed.signature):
            same.append(similar)
    if not same:
        return diagnosis
    if not signature.is_telling(sign):
        return diagnosis
    best, types = same[0], {similar.confirmed.type for similar in same}
    if len(types) > 1:
        causes = ", ".join(sorted(types))
        return replace(diagnosis, needs_review=f"people named different causes for the same failure: {causes}")
    if category_of(best.confirmed.type) is Category.NONE:
        return diagnosis
    return _decided(diagnosis, best.confirmed, round(SURE * best.score, 3), policy, {})


def _overruled(diagnosis: Diagnosis, found: Found, policy: Policy, labels: Mapping[str, str]) -> Diagnosis | None:
    """The rules' verdict with the cause, and the line, that a person named. None where it says so already."""
    judged = found.judged
    root = found.root or diagnosis.root_cause
    if (judged.type, root) == (diagnosis.type, diagnosis.root_cause):
        return None
    if category_of(judged.type) in (Category.NONE, Category.UNKNOWN):
        return None  # who ended a run is for the scheduler to say, each time
    if diagnosis.proofs and category_of(judged.type) is not Category.INFRASTRUCTURE:
        return _objected(diagnosis, judged, "what a machine itself reports stands against it")
    decided = _decided(diagnosis, judged, SURE, policy, labels)
    return replace(decided, root_cause=root)


def _objection(diagnosis: Diagnosis, judged: Sequence[ConfirmedFailure]) -> str:
    """Why the word that it was no failure does not hold here; "" where it may."""
    if contrary := precedents.contradicted(judged):
        return f"{contrary.by} named {contrary.type} for such a line in {contrary.attempt.job}"
    if diagnosis.proofs or _WEIGHT[diagnosis.recovery.action] > 1:
        return "what the line says of a machine stands"
    return ""


def _objected(diagnosis: Diagnosis, judged: ConfirmedFailure, why: str) -> Diagnosis:
    said = f"{judged.by} said {judged.type} of the same failure in {judged.attempt.job}; {why}"
    return replace(diagnosis, needs_review=diagnosis.needs_review or said)


def _decided(
    diagnosis: Diagnosis, judged: ConfirmedFailure, confidence: float, policy: Policy, labels: Mapping[str, str]
) -> Diagnosis:
    """The verdict of a judged failure. The policy table chooses the action, as for any verdict that no stable rule
    made; a weaker one than that of the rules does not take its place."""
    category = category_of(judged.type)
    known_outcome = None if diagnosis.outcome is Outcome.UNKNOWN else diagnosis.outcome
    nodes: tuple[Suspect, ...] = ()
    if category is Category.INFRASTRUCTURE:
        nodes = diagnosis.nodes
    decided = replace(
        diagnosis,
        outcome=outcome.decide_outcome(known_outcome, judged.type, hung=False),
        category=category,
        type=judged.type,
        confidence=confidence,
        decided_by=f"incident:{judged.diagnosis}",
        nodes=nodes,
        mitigation=judged.comment or diagnosis.mitigation,
        grounds=DecisionBasis(node_named=suspect_nodes.named(nodes)),
        rivals=(),
    )
    decided = _with_action(decided, policy.advise(case_of(decided, labels)), diagnosis)
    precedent = _precedent(judged, diagnosis)
    if decided.recovery is diagnosis.recovery:
        precedent = replace(precedent, keeps_action=True)
    how = "named"
    if judged.verdict is FeedbackVerdict.CONFIRMED:
        how = "confirmed"
    note = f"the same failure as in {judged.attempt.job}, whose cause was {how} by {judged.by}"
    return replace(decided, precedent=precedent, notes=(*decided.notes, note))


def _with_root(diagnosis: Diagnosis, nearest: Sequence[Similar], evidence: Evidence) -> Diagnosis:
    """An adopted verdict with the line that says here what the judged line said there; numbers and hosts may differ."""
    precedent = diagnosis.precedent
    if precedent is None:
        return diagnosis
    if diagnosis.root_cause is not None:
        return diagnosis
    names = signature.node_names(evidence)
    judged = [near.confirmed.line for near in nearest if near.confirmed.diagnosis == precedent.diagnosis]
    wanted = {hashing.normalised(text, names) for text in judged if text}
    for line in evidence.job_lines:
        if hashing.normalised(line.text[:_CHARS], names) in wanted:
            return replace(diagnosis, root_cause=RootCause(line.number, line.text, line.known_rank))
    return diagnosis


def _with_action(decided: Diagnosis, advice: Advice, before: Diagnosis) -> Diagnosis:
    """The verdict with the advice, or with what the rules ask for where that reaches further."""
    if _WEIGHT[advice.action] >= _WEIGHT[before.recovery.action]:
        return replace(decided, recovery=advice)
    return replace(decided, recovery=before.recovery, nodes=before.nodes, grounds=before.grounds)


def _precedent(judged: ConfirmedFailure, before: Diagnosis) -> Precedent:
    return Precedent(judged.diagnosis, judged.feedback, judged.by, judged.changed, rules_verdict(before))


def describe(similar: Similar) -> str:
    confirmed = similar.confirmed
    parts = (
        f"a person said {confirmed.type} (alike {similar.score:.2f})",
        hashing.normalised(confirmed.signature.message)[:_CHARS],
        hashing.normalised(confirmed.comment)[:_CHARS],
    )
    return "; ".join(filter(None, parts))


def _done(record: DiagnosisRecord) -> str:
    if record.plan is None:
        return f"advised: {_words(record.diagnosis.recovery.action)}"
    return f"{_words(record.plan.action)}: {record.plan.state}"


def _words(action: str) -> str:
    return action.replace("_", " ")

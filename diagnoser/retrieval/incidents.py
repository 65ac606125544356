"""What people confirmed: shown beside a new failure, told to the model, and sometimes the verdict itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from diagnoser.compress import AttemptLog
from diagnoser.localize import suspect_nodes
from diagnoser.model import (
    AttemptKey,
    DecisionBasis,
    Diagnosis,
    Evidence,
    Feedback,
    FeedbackVerdict,
    Incident,
    Signature,
    Similar,
)
from diagnoser.model.errors import DiagnoserError, ModelFailed, ModelFailure
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import DiagnosisRecord, Embedder, FeedbackStore
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.retrieval import hashing, rule_requests, search, signature
from diagnoser.retrieval.index import Index
from diagnoser.retrieval.search import SearchResult
from diagnoser.rules import outcome

SAME = 0.92
"""From here on two failures may be one. A message of a dozen words in which one word differs lies below. Likeness alone
is no proof (``tests.bench.likeness``): every line must have its like, too.
"""
ALIKE = 0.5
"""Below this an incident is not worth showing."""
SURE = 0.9
"""Confidence of a verdict that is another one's: people err, and causes change under the same words."""
SHOWN = 5
TOLD = 3
RIVALS = 8
"""Nearest incidents that are looked at for one that is the same failure, and for others that contradict it."""
_PAGE = 1_000
_LATE = 300.0
"""Seconds by which the row of another replica may come late, by its clock and its transaction."""
_CHARS = 300
_OPEN = frozenset({Outcome.FAILED, Outcome.HUNG, Outcome.UNKNOWN})


class LogLoader(Protocol):
    """``diagnosis.attempt_logs.AttemptLogs``."""

    async def load(self, key: AttemptKey) -> AttemptLog: ...


@dataclass(frozen=True, slots=True)
class SimilarIncidents:
    """What a model is told of similar incidents. notes: what people should know about how they were found."""

    incidents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Memory:
    """index: by hashed words, which every incident has. embedded: by the embedding model, for those that have it."""

    index: Index
    embedded: Index
    newest: float = 0.0


class Incidents:
    """One a process. The database is the truth: each question first reads what has changed since the last one."""

    def __init__(
        self,
        store: FeedbackStore,
        logs: LogLoader,
        policy: Policy,
        metrics: Metrics,
        embedder: Embedder | None = None,
    ) -> None:
        self._store = store
        self._logs = logs
        self._policy = policy
        self._metrics = metrics
        self._embedder = embedder
        self._memory = _Memory(Index(), Index())
        self._turn = asyncio.Lock()

    async def learn(self, record: DiagnosisRecord, said: Feedback) -> None:
        """Store what a person said about a diagnosis, and that a rule is wanted for it. Raises NotFound."""
        made = await self._made(record, said)
        await self._store.add_feedback(said, made, rule_requests.rule_wanted(record, made))
        self._metrics.observe_feedback(record.diagnosis.type, said.verdict)

    async def confirm(self, record: DiagnosisRecord, by: str, now: float) -> bool:
        """The same where not a person but what happened next confirms the verdict; False when it was known."""
        made = await self._made(record, Feedback("", record.id, now, FeedbackVerdict.CONFIRMED, by))
        return await self._store.add_incident(made, rule_requests.rule_wanted(record, made))

    async def _made(self, record: DiagnosisRecord, said: Feedback) -> Incident:
        sign = signature.signature_of(await self.evidence(record.attempt), record.diagnosis)
        vectors = {hashing.NAME: hashing.packed(signature.vector(sign))}
        given = await self._embedded(sign)
        if self._embedder and given is not None and not isinstance(given, ModelFailure):
            vectors[self._embedder.name] = hashing.packed(given)
        return replace(incident(record, said), signature=sign, vectors=vectors)

    async def similar(self, record: DiagnosisRecord, limit: int = SHOWN) -> list[Similar]:
        """The nearest confirmed incidents of other attempts, the nearest first."""
        return (await self._similar(record, limit))[0]

    async def _similar(self, record: DiagnosisRecord, limit: int) -> tuple[list[Similar], ModelFailure | None]:
        """The same, and why the embedding model had no part in it where it should have."""
        await self._refresh()
        if not len(self._memory.index):
            return [], None
        sign = signature.signature_of(await self.evidence(record.attempt), record.diagnosis)
        wanted = limit + RIVALS
        found: dict[str, Similar] = {}
        failure = None
        if len(self._memory.embedded):
            given = await self._embedded(sign)
            failure = given if isinstance(given, ModelFailure) else None
            if given is not None and not isinstance(given, ModelFailure):
                found = {one.incident.diagnosis: one for one in self._memory.embedded.nearest(given, wanted)}
        for one in await self._nearest(sign, wanted):
            found.setdefault(one.incident.diagnosis, one)
        others = [one for one in found.values() if one.incident.attempt != record.attempt and one.score >= ALIKE]
        return sorted(others, key=lambda one: (-one.score, one.incident.diagnosis))[:limit], failure

    async def describe_similar(self, record: DiagnosisRecord) -> SimilarIncidents:
        """The same for a model: in words, without hosts, paths and numbers. Nothing when the store does not answer."""
        try:
            near, failure = await self._similar(record, TOLD)
        except DiagnoserError as error:
            structlog.get_logger().warning("incidents_away", error=str(error))
            return SimilarIncidents()
        notes = (f"similar incidents were looked for by hashed words: the embedding server failed ({failure})",)
        return SimilarIncidents(tuple(map(describe, near)), notes if failure else ())

    async def match_confirmed_incident(self, attempt: AttemptKey, diagnosis: Diagnosis, log: AttemptLog) -> Diagnosis:
        """The verdict of a confirmed incident where this failure is the same and no rule decided; else as it was."""
        if diagnosis.category is not Category.UNKNOWN or diagnosis.outcome not in _OPEN:
            return diagnosis
        try:
            await self._refresh()
            if not len(self._memory.index):
                return diagnosis
            sign = signature.signature_of(await asyncio.to_thread(lambda: log.evidence), diagnosis)
            return adopt_incident(diagnosis, attempt, sign, await self._nearest(sign, RIVALS), self._policy)
        except DiagnoserError as error:
            structlog.get_logger().warning("incidents_away", error=str(error))
            return diagnosis

    async def search(self, attempt: AttemptKey, query: str, limit: int) -> list[SearchResult]:
        """Lines and templates of one attempt, the best first."""
        return await asyncio.to_thread(search.find, await self.evidence(attempt), query, limit)

    async def evidence(self, attempt: AttemptKey) -> Evidence:
        log = await self._logs.load(attempt)
        return await asyncio.to_thread(lambda: log.evidence)

    async def _nearest(self, sign: Signature, limit: int) -> list[Similar]:
        async with self._turn:
            return await asyncio.to_thread(self._memory.index.nearest, signature.vector(sign), limit)

    async def _refresh(self) -> None:
        memory = self._memory
        async with self._turn:
            since, after = memory.newest - _LATE, ""
            while page := await self._store.incidents(since, after, _PAGE):
                for one in page:
                    self._remember(one)
                after = page[-1].diagnosis

    def _remember(self, one: Incident) -> None:
        memory = self._memory
        memory.newest = max(memory.newest, one.changed)
        names = (hashing.NAME, self._embedder.name if self._embedder else "")
        for index, name in zip((memory.index, memory.embedded), names, strict=True):
            if one.type is FailureType.UNKNOWN or name not in one.vectors:
                index.drop(one.diagnosis)
            else:
                index.put(one, hashing.unpacked(one.vectors[name]))

    async def _embedded(self, sign: Signature) -> hashing.Vector | ModelFailure | None:
        """By the configured model; None where there is none. Where it gives no answer hashed words do as well."""
        if self._embedder is None or not sign.text:
            return None
        try:
            (given,) = await self._embedder.embed([sign.text])
        except (ModelFailed, ValueError) as error:
            structlog.get_logger().warning("embedding_failed", error=str(error), instead=hashing.NAME)
            reason = error.reason if isinstance(error, ModelFailed) else ModelFailure.MALFORMED
            self._metrics.observe_embedding_failure(reason)
            return reason
        return hashing.unpacked(hashing.packed(given))


def incident(record: DiagnosisRecord, said: Feedback) -> Incident:
    """What is learned from a word about a diagnosis, still without signature and vectors."""
    found = record.diagnosis
    return Incident(
        diagnosis=record.id,
        attempt=record.attempt,
        created=record.created,
        changed=said.created,
        type=said.type or found.type,
        verdict=said.verdict,
        by=said.by,
        signature=Signature(),
        line=found.root_cause.text[:_CHARS] if found.root_cause else "",
        done=_done(record),
        comment=said.comment,
    )


def adopt_incident(
    diagnosis: Diagnosis,
    attempt: AttemptKey,
    sign: Signature,
    nearest: Sequence[Similar],
    policy: Policy,
    least: float = SAME,
) -> Diagnosis:
    """An undecided diagnosis with the verdict of the incident that is the same failure, if all that are agree.

    least: likeness from which on an incident is looked at.
    """
    near = [one for one in nearest if one.score >= least and one.incident.attempt != attempt]
    same = [one for one in near if signature.is_same(sign, one.incident.signature)]
    if not same or not signature.is_telling(sign):
        return diagnosis
    best, kinds = same[0], {one.incident.type for one in same}
    if len(kinds) > 1:
        told = ", ".join(sorted(kinds))
        return _noted(diagnosis, f"needs review: people named different causes for the same failure: {told}")
    if category_of(best.incident.type) is Category.NONE:
        return diagnosis
    return _decided(diagnosis, best, policy)


def _decided(diagnosis: Diagnosis, best: Similar, policy: Policy) -> Diagnosis:
    """The action is the policy table's, for a verdict that comes from no stable rule."""
    known, category = best.incident, category_of(best.incident.type)
    told = None if diagnosis.outcome is Outcome.UNKNOWN else diagnosis.outcome
    named = category is Category.INFRASTRUCTURE and suspect_nodes.named(diagnosis.nodes)
    decided = replace(
        diagnosis,
        outcome=outcome.decide_outcome(told, known.type, hung=False, completed=False),
        category=category,
        type=known.type,
        confidence=round(SURE * best.score, 3),
        decided_by=f"incident:{known.diagnosis}",
        nodes=diagnosis.nodes if category is Category.INFRASTRUCTURE else (),
        mitigation=known.comment or diagnosis.mitigation,
        grounds=DecisionBasis(node_named=named),
    )
    decided = replace(decided, recovery=policy.advise(case_of(decided)))
    how = "confirmed" if known.verdict is FeedbackVerdict.CONFIRMED else "named"
    return _noted(decided, f"the same failure as in {known.attempt.job}, whose cause was {how} by {known.by}")


def describe(one: Similar) -> str:
    known = one.incident
    parts = [
        f"a person said {known.type} (alike {one.score:.2f})",
        hashing.normalised(known.signature.message)[:_CHARS],
    ]
    parts += [hashing.normalised(known.comment)[:_CHARS]]
    return "; ".join(part for part in parts if part)


def _done(record: DiagnosisRecord) -> str:
    """What was done, as far as the service knows."""
    advised = str(record.diagnosis.recovery.action).replace("_", " ")
    return f"{str(record.plan.action).replace('_', ' ')}: {record.plan.state}" if record.plan else f"advised: {advised}"


def _noted(diagnosis: Diagnosis, note: str) -> Diagnosis:
    return replace(diagnosis, notes=(*diagnosis.notes, note))

"""What the flow asks of the world. Each port has a real twin for one process, which passes the same contract tests.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import (
    Attempt,
    AttemptKey,
    BreakerState,
    Diagnosis,
    Effect,
    Event,
    Feedback,
    Incident,
    Job,
    LearnedKind,
    LearnedRule,
    LearnedState,
    NodeMark,
    Plan,
    RuleHit,
    Ruling,
    Situation,
    Stream,
)

Clock = Callable[[], float]
"""Seconds since the epoch. Passed in wherever time decides something."""


# --- the log store -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a stream already holds: closed ranges of line numbers, sorted, disjoint, not adjacent.

    Written by compare-and-set on ``version``.
    """

    covered: tuple[tuple[int, int], ...] = ()
    version: int = 0

    @property
    def next(self) -> int:
        """The number that the next line gets when the shipper does not number its lines."""
        return self.covered[-1][1] + 1 if self.covered else 1


@dataclass(frozen=True, slots=True)
class Append:
    """One attempt's share of a commit. ``cursors``: stream -> (version that was read, ranges after this append).

    fatal: some line tells of a failure. The part of a node's log is never diagnosed by itself.
    """

    attempt: AttemptKey
    delta: bytes
    received: float
    cursors: Mapping[Stream, tuple[int, tuple[tuple[int, int], ...]]]
    fatal: bool


@dataclass(frozen=True, slots=True)
class StoredDelta:
    id: int
    data: bytes


class LogStore(Protocol):
    async def cursors(self, attempts: Sequence[AttemptKey]) -> dict[AttemptKey, dict[Stream, Cursor]]:
        """The cursors of all streams of these attempts; an attempt that is not known yet has none."""

    async def append(self, appends: Sequence[Append]) -> None:
        """Commit all or nothing; creates jobs and attempts that are not known. Raises Conflict when a cursor moved."""

    async def deltas(self, attempt: AttemptKey) -> list[StoredDelta]: ...

    async def compact(self, attempt: AttemptKey, merged: bytes, replaced: Sequence[int]) -> bool:
        """Put ``merged`` in the place of ``replaced``; False when one of them is already gone."""

    async def crowded(self, more_than: int, limit: int) -> list[AttemptKey]:
        """Attempts that hold more than so many deltas, the fullest first."""

    async def current_attempt(self, job: str) -> int:
        """The highest attempt number of the job, 1 for a job that is not known."""

    async def node_parts(self, logs: Sequence[str], least: int) -> dict[str, list[bytes]]:
        """Of these logs (``model.node_log_id``) the deltas of all parts from number ``least`` on, oldest first."""

    async def revisit(self, log: str, since: float, now: float) -> int:
        """Make attempts due again that ran on the node of this log and failed or ended after ``since``; how many.

        Only those that are diagnosed: the others will see the log anyway.
        """

    async def drop_parts(self, kind: str, below: int) -> int:
        """Drop parts with numbers under ``below``; how many. kind: ``model.NODE_LOG`` or ``model.CLEAN_RUNS``."""


# --- jobs ----------------------------------------------------------------------------------------------------------


class JobStore(Protocol):
    async def register(self, job: Job) -> Job:
        """Insert or complete a job: given fields win, empty ones leave what is stored."""

    async def add_event(self, attempt: AttemptKey, event: Event) -> None:
        """Idempotent for an equal event. Creates job and attempt when needed."""

    async def job(self, id: str) -> Job | None: ...

    async def attempts(self, job: str) -> list[Attempt]: ...


# --- work ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """When an attempt is due for diagnosis: ``grace`` seconds after it ended, or after a fatal line once the log is
    quiet for ``settle`` seconds, at the latest ``settle_max`` seconds after that line.

    quiet: the same as ``grace`` where a fatal line is there already and nothing has been said yet: late lines are then
    no longer likely to be what matters, and change the verdict when they are.
    """

    grace: float
    settle: float
    settle_max: float
    quiet: float = 0.3


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on a due attempt. ``token`` proves it at the save.

    tries: how often the attempt was claimed since its last diagnosis, this time included.
    """

    attempt: Attempt
    job: Job
    token: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class DiagnosisRecord:
    """A stored diagnosis. ``current`` is False once a later revision of the same attempt replaced it."""

    id: str
    attempt: AttemptKey
    revision: int
    created: float
    current: bool
    diagnosis: Diagnosis
    plan: Plan | None = None
    feedback: tuple[Feedback, ...] = ()  # what people said, the newest first


Rule = Callable[[Plan | None, Situation], Ruling]
"""Decides what becomes of a plan in its situation. Pure: the store calls it inside the transaction that writes it."""


class WorkStore(Protocol):
    async def claim_attempts(self, now: float, timing: Timing, lease: float, limit: int) -> list[Claim]: ...

    async def next_end(self, timing: Timing) -> float | None:
        """When the first of the attempts that have ended and that nobody works on becomes due; None without one."""

    async def claim_silent(self, now: float, silent: float, lease: float, limit: int) -> list[Claim]:
        """Running attempts without a fatal line that have printed nothing for ``silent`` seconds: they may hang.

        Not those that were released until a later time, and none that fell silent more than a day ago.
        """

    async def save_diagnosis(
        self,
        claim: Claim,
        record: DiagnosisRecord,
        plan: Plan | None,
        effects: Sequence[Effect],
        rule: Rule | None = None,
    ) -> None:
        """One transaction: diagnosis, plan, effects, attempt marked as diagnosed at the claim's revision, lease ended.

        Without ``rule`` a plan whose key exists already is left as it is; with it, the ruling on ``plan`` is stored.
        An effect whose key exists already is left as it is. Raises Conflict when the lease was lost.
        """

    async def release(self, claim: Claim, until: float = 0.0) -> None:
        """The attempt is sound as far as its log goes: nothing is stored, its fatal mark is taken back.

        A fatal line that came after the claim keeps the mark. Ignored when the lease was lost. until: its silence is
        not looked at again before; an end or a fatal line is.
        """

    async def extend(self, claim: Claim, until: float) -> None:
        """Move the end of the lease: to keep it during long work, or to put off the next try. Raises Conflict."""

    async def replace_diagnosis(
        self,
        replaced: str,
        record: DiagnosisRecord,
        plan: Plan | None,
        effects: Sequence[Effect],
        rule: Rule | None = None,
    ) -> bool:
        """Put a better diagnosis of the same revision in the place of ``replaced`` (an id), with plan and effects.

        False, and nothing is stored, when ``replaced`` is not the current one any more.
        """


# --- the outbox ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueEffect:
    """A lease on an effect. tries: how often it was claimed for sending, this time included."""

    effect: Effect
    tries: int
    token: str


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """How an effect stands. state: pending, sent, dead (gave up), expired."""

    effect: Effect
    state: str
    tries: int
    due: float
    error: str = ""


class OutboxStore(Protocol):
    async def claim_effects(self, now: float, lease: float, limit: int) -> list[DueEffect]: ...

    async def settle_effect(self, due: DueEffect, state: str, *, retry_at: float = 0.0, error: str = "") -> None:
        """state: ``sent``, ``dead``, ``expired``, ``pending`` with ``retry_at`` after a try that failed, or
        ``deferred``: pending with ``retry_at``, and nothing was tried. Ignored when the lease was lost."""

    async def effects(self, keys: Sequence[str] | None = None) -> list[EffectRecord]: ...

    async def effects_in(self, state: str, after: str, limit: int) -> list[EffectRecord]:
        """By key; ``after`` is the last key of the page before, "" for the first page. state: "" for all."""

    async def retry_effect(self, key: str, now: float, expires: float) -> EffectRecord:
        """Make a dead or expired effect due again, until ``expires`` at the least. Raises NotFound, Conflict."""


# --- recovery ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanFilter:
    state: str = ""
    job: str = ""


class RecoveryStore(Protocol):
    async def plans(self, where: PlanFilter, after: str, limit: int) -> list[Plan]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""

    async def plan(self, id: str) -> Plan | None: ...

    async def change_plan(self, id: str, now: float, rule: Rule, *, alone: bool = False) -> Ruling:
        """Read the plan and its situation under the lock of its cluster, and store the ruling in the same transaction.

        What ``rule`` raises leaves everything as it was. alone: the rule looks at nothing but the plan, so that the
        situation (up to thousands of plans) is not read. Raises NotFound.
        """

    async def claim_plan(self, executor: str, cluster: str, now: float, lease: float) -> Plan | None:
        """The oldest plan of the cluster that can be claimed, now held by the executor; None when there is none."""

    async def expired_plans(self, now: float, limit: int) -> list[str]:
        """Ids of plans whose time is over and that nobody holds."""

    async def note_node(self, mark: NodeMark) -> NodeMark:
        """Store what happened to a node, with the feedback that it gives. Idempotent for an equal event."""

    async def node_marks(self, cluster: str) -> list[NodeMark]:
        """The last event of each node that had one, by name. cluster: "" for all."""

    async def breakers(self) -> list[BreakerState]: ...

    async def reset_breaker(self, state: BreakerState) -> BreakerState:
        """Close a breaker that has tripped. Raises NotFound for one that never did."""


# --- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiagnosisFilter:
    job: str = ""
    category: str = ""
    type: str = ""
    outcome: str = ""
    node: str = ""
    since: float = 0.0
    text: str = ""
    current_only: bool = True


class ReadStore(Protocol):
    async def diagnoses(self, where: DiagnosisFilter, after: str, limit: int) -> list[DiagnosisRecord]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""

    async def diagnosis(self, id: str) -> DiagnosisRecord | None: ...

    async def ping(self) -> None:
        """Raises Unavailable when the database does not answer or its schema is not the one of this code."""


class FeedbackStore(Protocol):
    async def add_feedback(self, feedback: Feedback, incident: Incident, wanted: LearnedRule | None = None) -> None:
        """Store what a person said, and what can be learned from it, in one transaction. Raises NotFound.

        The incident takes the place of an earlier one of the same diagnosis; rules learned from that one as another
        cause are retired. Hits of rules in the attempt are settled. wanted: the rule that is to be written; left out
        when one that is on trial was right.
        """

    async def add_incident(self, incident: Incident, wanted: LearnedRule | None = None) -> bool:
        """The same without a person's word; False, and nothing is stored, when the diagnosis has an incident."""

    async def incidents(self, since: float, after: str, limit: int) -> list[Incident]:
        """Those that changed at or after ``since``, by diagnosis; ``after``: the last one of the page before."""

    async def confirmed(self, limit: int) -> list[str]:
        """Diagnoses that have an incident, those that changed last first."""


@dataclass(frozen=True, slots=True)
class LearnedFilter:
    """Which learned rules. Empty: all. A rule's source is what it was learned from."""

    kind: LearnedKind | None = None
    states: tuple[LearnedState, ...] = ()
    source: str = ""
    scope: str = ""


class RuleStore(Protocol):
    """Rules that were learned, of both kinds, and the attempts in which they hit or would have."""

    async def rules_revision(self) -> int:
        """Grows whenever a rule changes; cheap to ask. A replica whose revision is older loads the rules anew."""

    async def learned(self, where: LearnedFilter, after: str, limit: int) -> list[LearnedRule]:
        """Newest first, with their counts; ``after`` is the id of the last one already seen, "" for the first page."""

    async def learned_rule(self, id: str) -> LearnedRule | None: ...

    async def propose(self, rule: LearnedRule) -> bool:
        """Store a new rule; False, and nothing is stored, when there is one of that id."""

    async def change_rule(self, before: LearnedRule, after: LearnedRule) -> LearnedRule:
        """Store ``after`` if the rule still has the version of ``before``; ends a claim. Raises Conflict, NotFound."""

    async def claim_rules(self, kind: LearnedKind, now: float, lease: float, limit: int) -> list[LearnedRule]:
        """Proposed rules that nobody works on, oldest first; nobody else gets them until the lease is over."""

    async def note_hits(self, hits: Sequence[RuleHit]) -> None:
        """One row a rule and attempt: a later one takes its place, but a verdict that is known stays."""

    async def settle_hits(self, attempt: AttemptKey, type: str) -> list[str]:
        """The cause of an attempt became known: diagnosis rules that hit there were right if they are of this type,
        else wrong. Ids of those that were right."""

    async def rule_hits(self, rule: str, limit: int) -> list[RuleHit]:
        """The newest first."""


class Store(LogStore, JobStore, WorkStore, OutboxStore, RecoveryStore, ReadStore, FeedbackStore, RuleStore, Protocol):
    """All of it; one adapter over one database, so that what belongs together commits together."""


# --- the outside ---------------------------------------------------------------------------------------------------


class Sender(Protocol):
    async def send(self, effect: Effect) -> None:
        """Deliver once. Raises DeliveryError, which knows whether another try can help."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question.

    schema: JSON schema of the answer. max_tokens: of the answer. repair: an answer that could not be read, and what
    the model is told about it; a second turn of the same conversation.
    """

    system: str
    user: str
    schema: Mapping[str, object]
    max_tokens: int
    temperature: float
    repair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    text: str
    model: str
    tokens_in: int
    tokens_out: int


class LanguageModel(Protocol):
    name: str

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed."""

    async def context(self) -> int | None:
        """Tokens that question and answer may have together, None when the server does not say. Never raises."""


class Embedder(Protocol):
    """Text to vectors of one length. name: of the model; vectors of two names are never compared."""

    name: str

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text. Raises ModelFailed."""


class Wake(Protocol):
    """Tells sleeping loops that there is work. Losing a wake-up loses nothing: due rows are swept."""

    def notify(self) -> None: ...

    async def wait(self, timeout: float) -> None: ...  # noqa: ASYNC109 - the caller's longest sleep

"""Everything that the service stores, for one tenant, with the tenant's own word in every text: what leaks is seen."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    BreakerState,
    CaseReplay,
    ConfirmedFailure,
    Diagnosis,
    Event,
    EventKind,
    EvidenceKind,
    EvidenceRequest,
    Feedback,
    Job,
    LearnedRule,
    LearnedState,
    LineBlock,
    MessageKind,
    NodeEvent,
    OutboxMessage,
    Plan,
    PlanState,
    Provenance,
    RootCause,
    RuleHit,
    RuntimeFile,
    Signature,
    Stream,
    Suspect,
    TransitionResult,
    UnplacedStream,
    node_log_id,
)
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.ids import id_of
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.incidents import acknowledged
from diagnoser.retrieval import hashing, signature
from tests.hang_dumps import dump, entry, written
from tests.serving import NOW, TIMING, store_log

CLUSTER, SHARED_NODE, COMMON = "east", "shared-node", "zebra"
"""Of both tenants. The last one is a word in every text of both, for searches."""
FRAME = ((Category.INFRASTRUCTURE, FailureType.ECC_ERROR), (Category.SCRIPT, FailureType.IMPORT_ERROR))
SECRETS = {Scope.READ: "reads", Scope.OPERATE: "operates", Scope.INGEST: "ships", Scope.AGENT: "acts"}

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """What is there of a tenant. ids: kind of thing -> how they are called, as paths and queries name them."""

    word: str
    ids: Mapping[str, Sequence[str]]

    @property
    def names(self) -> set[str]:
        """Whatever must not be seen by the other tenant."""
        return {self.word, *(name for names in self.ids.values() for name in names)}

    def token(self, scope: Scope) -> str:
        return f"{self.word}-{SECRETS[scope]}"


def filled(shape: type[T], word: str, **given: Any) -> T:
    """A value of a dataclass with the word in each of its texts, also in fields that are yet to come."""
    hints = get_type_hints(shape)
    made = {
        field.name: _value(hints[field.name], word, field.name)
        for field in dataclasses.fields(shape)  # type: ignore[arg-type]
        if field.init and field.name not in given
    }
    return shape(**made, **given)


def _value(hint: Any, word: str, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _value(next(one for one in arguments if one is not type(None)), word, name)
    if origin is tuple:
        inner = arguments[:-1] if arguments[-1] is Ellipsis else arguments
        return tuple(_value(one, word, name) for one in inner)
    if origin is not None and issubclass(origin, Mapping):
        return {_value(arguments[0], word, name): _value(arguments[1], word, name)}
    if origin is not None and issubclass(origin, Sequence | frozenset | set):
        return origin([_value(arguments[0], word, name)])
    return _simple(hint, word, name)


def _simple(hint: Any, word: str, name: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return filled(hint, word)
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    if hint is str:
        return f"{word} {COMMON} {name}"
    if hint is bytes:
        return f"{word} {COMMON} {name}".encode()
    return {bool: True, int: 1, float: NOW}[hint]


async def store_everything(store: SqlStore, word: str, number: int) -> Stored:
    """Each kind of row there is, all of one tenant, whose name is the word. number: tells the tenants' ids apart."""
    job, node = f"{word}-job", f"{word}-node"
    key = AttemptKey(job)
    await store.jobs.register(
        filled(Job, word, id=job, cluster=CLUSTER, tenant=word, nodes=(node, SHARED_NODE), rank_nodes={0: node})
    )
    await store_log(store, key, *(block(word, one) for one in (node, SHARED_NODE)))
    await store_log(store, AttemptKey(node_log_id(CLUSTER, node)), block(word, node, "kernel"))
    for kind in (EventKind.STARTED, EventKind.CHECKPOINT, EventKind.EXIT):
        code = {"code": 1, "signal": None} if kind is EventKind.EXIT else {"code": None, "signal": None}
        told = filled(Event, word, kind=kind, time=NOW - 30, node=node, provenance=Provenance.SCHEDULER, **code)
        await store.jobs.add_event(key, told)
    groups = {"0": (0, 1)}
    recorder = written(dump(groups, [entry("0", 1, order=0, name=f"nccl:{word}")]))
    await store.evidence.add_runtime_files(key, [RuntimeFile(EvidenceKind.FLIGHT_RECORDER, recorder, 0, node, NOW)])
    request = filled(EvidenceRequest, word, id=id_of(NOW, number), attempt=key, cluster=CLUSTER)
    await store.evidence.request(request)
    ids: dict[str, list[str]] = {"job": [job], "node": [node], "request": [request.id]}
    for index, (category, failure) in enumerate(FRAME):
        record = await _diagnosed(store, word, number * 10 + index, category, failure, SHARED_NODE if index else node)
        incident = await store.incidents.of_diagnosis(record.id)
        assert incident is not None and record.plan is not None
        await store.incidents.change(incident.id, lambda found: acknowledged(found, f"{word}-person", word, NOW))
        await _learned(store, word, record)
        ids.setdefault("diagnosis", []).append(record.id)
        ids.setdefault("plan", []).append(record.plan.id)
        ids.setdefault("incident", []).append(incident.id)
        ids.setdefault("rule", []).append(f"learned_{record.id.lower()}")
        ids["job"].append(record.attempt.job)
    await _of_nobody(store, word, node, number)
    ids["effect"], ids["breaker"] = [f"{word}-effect"], [f"{CLUSTER}:{word}"]
    for scope, secret in SECRETS.items():
        credential = Credential(f"{word}-{scope}", scope, tenant=word)
        await store.tokens.add(StoredToken(credential, hash_of(f"{word}-{secret}")))
    return Stored(word, {kind: list(dict.fromkeys(names)) for kind, names in ids.items()})


def block(word: str, node: str, source: str = "stdout") -> LineBlock:
    text = f"Traceback of {word} {COMMON}\nRuntimeError: {word} {COMMON} CUDA error\niteration 5 loss 2.0\n"
    return LineBlock(Stream(source, node, 0), text.encode(), 1, (NOW,) * 3, NOW)


async def _diagnosed(
    store: SqlStore, word: str, number: int, category: Category, kind: FailureType, node: str
) -> DiagnosisRecord:
    """Of a job of its own. Of the shared node both tenants have a failure: one incident."""
    job = f"{word}-job-{number}"
    key, created, identity = AttemptKey(job), NOW - 10, id_of(NOW - 10 + number, number)
    await store.jobs.register(
        filled(Job, word, id=job, cluster=CLUSTER, tenant=word, nodes=(node,), rank_nodes={0: node})
    )
    await store_log(store, key, block(word, node))
    await store.jobs.add_event(key, Event(EventKind.EXIT, created - 20, code=1, provenance=Provenance.SCHEDULER))
    claims = await store.work.claim_attempts(NOW + 60, TIMING, 60.0, 100)
    claim = next(one for one in claims if one.attempt.key == key)
    diagnosis = filled(
        Diagnosis,
        word,
        outcome=Outcome.FAILED,
        category=Category.INFRASTRUCTURE if node == SHARED_NODE else category,
        type=kind,
        nodes=(filled(Suspect, word, node=node),),
        root_cause=filled(RootCause, word, node=node, rank=0),
    )
    texts = {"id": f"{word}-plan-{number}", "key": f"{word}-key-{number}", "job": job, "attempt": 1}
    plan = filled(
        Plan, word, **texts, state=PlanState.WAITING, cluster=CLUSTER, diagnosis=identity, tenant=word, lease=None,
        check=None, expires=NOW + 9_000,
    )  # fmt: skip
    record = DiagnosisRecord(identity, key, claim.attempt.revision, created, True, diagnosis, plan)
    message = OutboxMessage(f"{word}-effect", MessageKind.RECOVERY, word, word.encode(), NOW, NOW + 900)
    trip = filled(BreakerState, word, scope=f"{CLUSTER}:{word}")
    await store.work.save_diagnosis(claim, record, plan, [message], lambda *_: TransitionResult(plan, trips=(trip,)))
    return record


async def _learned(store: SqlStore, word: str, record: DiagnosisRecord) -> None:
    """What a person said, and what became of it."""
    said = filled(Feedback, word, id=f"{record.id}-said", diagnosis=record.id, root_line=None)
    sign = Signature(f"{word} {COMMON}", "", "")
    known = filled(
        ConfirmedFailure, word, diagnosis=record.id, attempt=record.attempt, type=record.diagnosis.type,
        signature=sign, vectors={hashing.NAME: hashing.packed(signature.vector(sign))},
    )  # fmt: skip
    await store.feedback.add(said, known)
    rule = f"learned_{record.id.lower()}"
    await store.rules.propose(
        filled(LearnedRule, word, id=rule, source=record.id, state=LearnedState.SHADOW, text=f"# {word}", version=0)
    )
    await store.rules.record_hits([filled(RuleHit, word, rule=rule, attempt=record.attempt, diagnosis=record.id)])


async def _of_nobody(store: SqlStore, word: str, node: str, number: int) -> None:
    """Rows of no job that tell of one all the same."""
    await store.nodes.add_event(filled(NodeEvent, word, cluster=CLUSTER, node=node))
    await store.unplaced.record_unplaced([filled(UnplacedStream, word, sender=f"{word}-ingest", cluster=CLUSTER)])
    await store.cases.add_replay(replace(filled(CaseReplay, word), time=NOW + number))

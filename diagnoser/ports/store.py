"""The store as a whole."""

from typing import Protocol, Self

from diagnoser.model.access import Viewer
from diagnoser.ports.alerts import AlertThreadStore
from diagnoser.ports.archive import ArchiveStore
from diagnoser.ports.audit import AuditStore
from diagnoser.ports.evidence import EvidenceStore
from diagnoser.ports.incidents import IncidentStore
from diagnoser.ports.learning import CaseStore, FeedbackStore, RuleStore
from diagnoser.ports.logs import LogStore
from diagnoser.ports.nodes import NodeStore
from diagnoser.ports.outbox import OutboxStore
from diagnoser.ports.people import LoginTryStore, UserStore
from diagnoser.ports.queries import ReadStore
from diagnoser.ports.recovery import RecoveryStore
from diagnoser.ports.retention import RetentionStore
from diagnoser.ports.search import SearchStore
from diagnoser.ports.tokens import TokenStore
from diagnoser.ports.trials import TrialLedger
from diagnoser.ports.unplaced import UnplacedStore
from diagnoser.ports.views import ViewStore
from diagnoser.ports.vitals import VitalsStore
from diagnoser.ports.work import JobStore, WorkStore


class Store(
    LogStore,
    ArchiveStore,
    JobStore,
    WorkStore,
    OutboxStore,
    RecoveryStore,
    NodeStore,
    ReadStore,
    IncidentStore,
    FeedbackStore,
    RuleStore,
    TokenStore,
    CaseStore,
    EvidenceStore,
    RetentionStore,
    AlertThreadStore,
    UnplacedStore,
    SearchStore,
    ViewStore,
    UserStore,
    LoginTryStore,
    AuditStore,
    VitalsStore,
    TrialLedger,
    Protocol,
):
    """All of it; one adapter over one database, so that what belongs together commits together."""

    def seen_by(self, viewer: Viewer) -> Self:
        """The same store, of which reading finds only what the viewer may see; itself for who may see all. Nothing
        that is written is narrowed: look first. Close the one that this comes from, not this."""

"""The store as a whole."""

from typing import Protocol

from diagnoser.ports.alerts import AlertThreadStore
from diagnoser.ports.archive import ArchiveStore
from diagnoser.ports.evidence import EvidenceStore
from diagnoser.ports.incidents import IncidentStore
from diagnoser.ports.learning import CaseStore, FeedbackStore, RuleStore
from diagnoser.ports.logs import LogStore
from diagnoser.ports.outbox import OutboxStore
from diagnoser.ports.queries import ReadStore
from diagnoser.ports.recovery import RecoveryStore
from diagnoser.ports.retention import RetentionStore
from diagnoser.ports.tokens import TokenStore
from diagnoser.ports.unplaced import UnplacedStore
from diagnoser.ports.vitals import VitalsStore
from diagnoser.ports.work import JobStore, WorkStore


class Store(
    LogStore,
    ArchiveStore,
    JobStore,
    WorkStore,
    OutboxStore,
    RecoveryStore,
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
    VitalsStore,
    Protocol,
):
    """All of it; one adapter over one database, so that what belongs together commits together."""

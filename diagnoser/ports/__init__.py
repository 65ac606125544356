"""What the flow asks of the world. One module per subject.

The contract tests of the store run on SQLite and PostgreSQL.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.alerts import AlertChannel, AlertSilence, AlertThread, AlertThreadStore
from diagnoser.ports.archive import Archive, ArchivedObject, ArchivedSegment, ArchiveStore
from diagnoser.ports.audit import AuditedCall, AuditFilter, AuditStore, auditing, current_call
from diagnoser.ports.evidence import EvidenceLimits, EvidenceStore, StoredFile
from diagnoser.ports.incidents import UNRESOLVED, IncidentFilter, IncidentStore, IncidentTransition, position_of
from diagnoser.ports.learning import CaseStore, FeedbackStore, LearnedRuleQuery, RuleStore
from diagnoser.ports.logs import (
    Append,
    CompactionClaim,
    CompactionTiming,
    Cursor,
    LogStore,
    OffsetAdvance,
    Partition,
    StoredPiece,
)
from diagnoser.ports.messages import Message, MessageSource
from diagnoser.ports.nodes import NodeStore
from diagnoser.ports.outbox import DueMessage, OutboxRecord, OutboxStore
from diagnoser.ports.people import IdentityProvider, LoginTryStore, PasswordHasher, UserChange, UserStore
from diagnoser.ports.queries import (
    FAILURES,
    AttemptState,
    AttemptSummary,
    Attention,
    DiagnosisFilter,
    Facets,
    News,
    ReadStore,
)
from diagnoser.ports.recovery import ClaimTransition, PlanFilter, PlanTransition, RecoveryStore
from diagnoser.ports.retention import Dropped, RetentionStore
from diagnoser.ports.search import FoundNode, SearchStore
from diagnoser.ports.services import Clock, Embedder, LanguageModel, ModelAnswer, ModelRequest, Sender, WakeSignal
from diagnoser.ports.sorting import (
    ATTEMPT_SORTS,
    BY_CLUSTER,
    DIAGNOSIS_SORTS,
    INCIDENT_SORTS,
    LAST_SEEN,
    NEWEST,
    NODE_SORTS,
    OUT_FIRST,
    Sort,
)
from diagnoser.ports.store import Store
from diagnoser.ports.tokens import TokenStore
from diagnoser.ports.trials import (
    BatchRecord,
    Command,
    CommandResult,
    NodeExecutor,
    Order,
    OrderState,
    OrderStatus,
    RunProgress,
    ShardRecord,
    TrialLedger,
    TrialRecord,
    TrialRun,
)
from diagnoser.ports.unplaced import UnplacedRecord, UnplacedSink, UnplacedStore
from diagnoser.ports.views import ListName, SavedView, ViewStore
from diagnoser.ports.vitals import HEARD_SECONDS, AgentSeen, PoolUse, Vitals, VitalsStore, Waiting
from diagnoser.ports.work import Claim, DiagnosisRecord, JobStore, Timing, WorkStore

__all__ = [
    "ATTEMPT_SORTS",
    "BY_CLUSTER",
    "DIAGNOSIS_SORTS",
    "FAILURES",
    "HEARD_SECONDS",
    "INCIDENT_SORTS",
    "LAST_SEEN",
    "NEWEST",
    "NODE_SORTS",
    "OUT_FIRST",
    "UNRESOLVED",
    "AgentSeen",
    "AlertChannel",
    "AlertSilence",
    "AlertThread",
    "AlertThreadStore",
    "Append",
    "Archive",
    "ArchiveStore",
    "ArchivedObject",
    "ArchivedSegment",
    "AttemptState",
    "AttemptSummary",
    "Attention",
    "AuditFilter",
    "AuditStore",
    "AuditedCall",
    "BatchRecord",
    "CaseStore",
    "Claim",
    "ClaimTransition",
    "Clock",
    "Command",
    "CommandResult",
    "CompactionClaim",
    "CompactionTiming",
    "Cursor",
    "DiagnosisFilter",
    "DiagnosisRecord",
    "Dropped",
    "DueMessage",
    "Embedder",
    "EvidenceLimits",
    "EvidenceStore",
    "Facets",
    "FeedbackStore",
    "FoundNode",
    "IdentityProvider",
    "IncidentFilter",
    "IncidentStore",
    "IncidentTransition",
    "JobStore",
    "LanguageModel",
    "LearnedRuleQuery",
    "ListName",
    "LogStore",
    "LoginTryStore",
    "Message",
    "MessageSource",
    "ModelAnswer",
    "ModelRequest",
    "News",
    "NodeExecutor",
    "NodeStore",
    "OffsetAdvance",
    "Order",
    "OrderState",
    "OrderStatus",
    "OutboxRecord",
    "OutboxStore",
    "Partition",
    "PasswordHasher",
    "PlanFilter",
    "PlanTransition",
    "PoolUse",
    "ReadStore",
    "RecoveryStore",
    "RetentionStore",
    "RuleStore",
    "RunProgress",
    "SavedView",
    "SearchStore",
    "Sender",
    "ShardRecord",
    "Sort",
    "Store",
    "StoredFile",
    "StoredPiece",
    "Timing",
    "TokenStore",
    "TrialLedger",
    "TrialRecord",
    "TrialRun",
    "UnplacedRecord",
    "UnplacedSink",
    "UnplacedStore",
    "UserChange",
    "UserStore",
    "ViewStore",
    "Vitals",
    "VitalsStore",
    "Waiting",
    "WakeSignal",
    "WorkStore",
    "auditing",
    "current_call",
    "position_of",
]

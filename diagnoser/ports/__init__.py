"""What the flow asks of the world, and the records that it exchanges with the store. One module per subject.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.alerts import AlertChannel, AlertSilence, AlertThread
from diagnoser.ports.archive import Archive, ArchivedObject, ArchivedSegment
from diagnoser.ports.audit import AuditedCall, AuditFilter, auditing, current_call
from diagnoser.ports.evidence import EvidenceLimits, StoredFile
from diagnoser.ports.incidents import UNRESOLVED, IncidentFilter, IncidentTransition, position_of
from diagnoser.ports.learning import LearnedRuleQuery
from diagnoser.ports.logs import (
    Append,
    CompactionClaim,
    CompactionTiming,
    Cursor,
    OffsetAdvance,
    Partition,
    StoredPiece,
)
from diagnoser.ports.messages import Message, MessageSource
from diagnoser.ports.outbox import DueMessage, OutboxRecord
from diagnoser.ports.people import IdentityProvider, PasswordHasher, UserChange
from diagnoser.ports.queries import (
    FAILURES,
    AttemptState,
    AttemptSummary,
    Attention,
    DiagnosisFilter,
    Facets,
    News,
)
from diagnoser.ports.recovery import ClaimTransition, PlanFilter, PlanTransition
from diagnoser.ports.retention import Dropped
from diagnoser.ports.search import FoundNode
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
from diagnoser.ports.trials import (
    BatchRecord,
    Command,
    CommandResult,
    NodeExecutor,
    Order,
    OrderState,
    OrderStatus,
    PieceRecord,
    RunProgress,
    TrialRecord,
    TrialRun,
)
from diagnoser.ports.unplaced import UnplacedRecord
from diagnoser.ports.views import ListName, SavedView
from diagnoser.ports.vitals import HEARD_SECONDS, AgentSeen, PoolUse, Vitals, Waiting
from diagnoser.ports.work import Claim, DiagnosisRecord, Timing

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
    "Append",
    "Archive",
    "ArchivedObject",
    "ArchivedSegment",
    "AttemptState",
    "AttemptSummary",
    "Attention",
    "AuditFilter",
    "AuditedCall",
    "BatchRecord",
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
    "Facets",
    "FoundNode",
    "IdentityProvider",
    "IncidentFilter",
    "IncidentTransition",
    "LanguageModel",
    "LearnedRuleQuery",
    "ListName",
    "Message",
    "MessageSource",
    "ModelAnswer",
    "ModelRequest",
    "News",
    "NodeExecutor",
    "OffsetAdvance",
    "Order",
    "OrderState",
    "OrderStatus",
    "OutboxRecord",
    "Partition",
    "PasswordHasher",
    "PieceRecord",
    "PlanFilter",
    "PlanTransition",
    "PoolUse",
    "RunProgress",
    "SavedView",
    "Sender",
    "Sort",
    "StoredFile",
    "StoredPiece",
    "Timing",
    "TrialRecord",
    "TrialRun",
    "UnplacedRecord",
    "UserChange",
    "Vitals",
    "Waiting",
    "WakeSignal",
    "auditing",
    "current_call",
    "position_of",
]

"""What the flow asks of the world. One module per subject.

The contract tests of the store run on SQLite and PostgreSQL; in-memory twins are in ``adapters.memory``.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.evidence import EvidenceLimits, EvidenceStore, StoredFile
from diagnoser.ports.learning import CaseStore, FeedbackStore, LearnedRuleQuery, RuleStore
from diagnoser.ports.logs import Append, CompactionClaim, CompactionTiming, Cursor, LogStore, StoredPiece
from diagnoser.ports.outbox import DueMessage, OutboxRecord, OutboxStore
from diagnoser.ports.queries import DiagnosisFilter, Facets, News, ReadStore
from diagnoser.ports.recovery import ClaimTransition, PlanFilter, PlanTransition, RecoveryStore
from diagnoser.ports.retention import Dropped, RetentionStore
from diagnoser.ports.services import Clock, Embedder, LanguageModel, ModelAnswer, ModelRequest, Sender, WakeSignal
from diagnoser.ports.store import Store
from diagnoser.ports.tokens import TokenStore
from diagnoser.ports.work import Claim, DiagnosisRecord, JobStore, Timing, WorkStore

__all__ = [
    "Append",
    "CaseStore",
    "Claim",
    "ClaimTransition",
    "Clock",
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
    "JobStore",
    "LanguageModel",
    "LearnedRuleQuery",
    "LogStore",
    "ModelAnswer",
    "ModelRequest",
    "News",
    "OutboxRecord",
    "OutboxStore",
    "PlanFilter",
    "PlanTransition",
    "ReadStore",
    "RecoveryStore",
    "RetentionStore",
    "RuleStore",
    "Sender",
    "Store",
    "StoredFile",
    "StoredPiece",
    "Timing",
    "TokenStore",
    "WakeSignal",
    "WorkStore",
]

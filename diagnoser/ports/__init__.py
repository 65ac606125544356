"""What the flow asks of the world. One module a subject.

The contract tests of the store run on SQLite and PostgreSQL; twins for one process are in ``adapters.memory``.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.logs import Append, Cursor, LogStore, StoredDelta
from diagnoser.ports.outbox import DueEffect, EffectRecord, OutboxStore
from diagnoser.ports.reading import DiagnosisFilter, ReadStore
from diagnoser.ports.recovery import PlanFilter, RecoveryStore, Rule
from diagnoser.ports.store import Store
from diagnoser.ports.teaching import FeedbackStore, LearnedFilter, RuleStore
from diagnoser.ports.work import Claim, DiagnosisRecord, JobStore, Timing, WorkStore
from diagnoser.ports.world import Clock, Embedder, LanguageModel, ModelAnswer, ModelRequest, Sender, Wake

__all__ = [
    "Append",
    "Claim",
    "Clock",
    "Cursor",
    "DiagnosisFilter",
    "DiagnosisRecord",
    "DueEffect",
    "EffectRecord",
    "Embedder",
    "FeedbackStore",
    "JobStore",
    "LanguageModel",
    "LearnedFilter",
    "LogStore",
    "ModelAnswer",
    "ModelRequest",
    "OutboxStore",
    "PlanFilter",
    "ReadStore",
    "RecoveryStore",
    "Rule",
    "RuleStore",
    "Sender",
    "Store",
    "StoredDelta",
    "Timing",
    "Wake",
    "WorkStore",
]

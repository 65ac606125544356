"""The nouns that all rings share. Frozen, plain, and without a clock.

Reading order: a ``LineBlock`` of lines arrives on a ``Stream`` of an attempt; the compressor keeps some as ``Line`` and
turns all of them into ``Evidence``; the pipeline turns that and the ``Facts`` of the attempt into a ``Diagnosis``; the
policy turns that into a ``Plan``; what leaves the service is an ``OutboxMessage``.
"""

from diagnoser.model.attempt_outcomes import AttemptOutcome, FailedRun
from diagnoser.model.baseline import NO_DIFF, Baseline, CleanRun, Diff, NewLine
from diagnoser.model.diagnosis import (
    ASK_REASONS,
    GUESS,
    LIKELY_LINE,
    LOSS_SERIES,
    MODEL_EFFECTS,
    Advice,
    AskReason,
    DecisionBasis,
    Diagnosis,
    EarlierHang,
    EvidenceLine,
    Hypotheses,
    ModelEffect,
    ModelUse,
    NodeProof,
    Precedent,
    ProofKind,
    Rejected,
    Rival,
    Rollback,
    RootCause,
    RulesVerdict,
    Suspect,
    Symptom,
    ToolUse,
    changed_by_model,
    rules_verdict,
)
from diagnoser.model.evidence import (
    Cap,
    Compression,
    Evidence,
    ExitReport,
    LeftOut,
    Line,
    Mark,
    Phase,
    ProcessLines,
    Progress,
    RunStatus,
    Severity,
    Stage,
    Template,
    Traceback,
)
from diagnoser.model.evidence_requests import EvidenceRequest, RequestReason
from diagnoser.model.feedback import (
    CaseMark,
    CaseOutcome,
    CaseReplay,
    ConfirmedFailure,
    Feedback,
    FeedbackVerdict,
    Judgement,
    Lesson,
    Signature,
    Similar,
)
from diagnoser.model.hangs import (
    LOOKS_APART,
    MISMATCHED_COLLECTIVES,
    RUNTIME_SOURCES,
    WAITING_RANKS,
    EvidenceKind,
    HangFindings,
    HangLook,
    HangSuspect,
    RuntimeFile,
    StuckPlace,
    SuspectKind,
    cited_place,
)
from diagnoser.model.incidents import Incident, IncidentChange, IncidentState
from diagnoser.model.jobs import (
    ENDS,
    Attempt,
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Facts,
    Job,
    is_made_by_agent,
    own_job_id,
    spoken_job_id,
)
from diagnoser.model.learned import (
    LOADED,
    Author,
    Counts,
    HitVerdict,
    LearnedRule,
    LearnedState,
    RuleHit,
    ValidationResult,
)
from diagnoser.model.lines import (
    ALERTS,
    CLEAN_RUNS,
    DAEMON,
    JOB_ID,
    KERNEL_SOURCES,
    NODE_LOG,
    NODE_SOURCES,
    SYSLOG,
    Anchor,
    LineBlock,
    Provenance,
    Stream,
    node_log_id,
    provenance_of,
)
from diagnoser.model.metric_events import MetricEvent, MetricEventKind
from diagnoser.model.node_alerts import NodeAlert
from diagnoser.model.nodes import NodeNote, NodeRun, UncordonRequest, UncordonState
from diagnoser.model.plans import (
    BreakerState,
    CheckVerdict,
    ClusterHistory,
    MessageKind,
    Mode,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    OutboxMessage,
    PairResult,
    Plan,
    PlanChange,
    PlanLease,
    PlanReason,
    PlanState,
    QueryResult,
    QueryState,
    Step,
    TransitionResult,
)
from diagnoser.model.unplaced import UnplacedReason, UnplacedStream

"""What the API answers, drawn from its description: `python -m tests.generated_client` writes it again."""

from typing import Any, Literal, NotRequired, TypedDict

FeedbackVerdict = Literal["confirmed", "corrected"]

FailureType = Literal[
    "nvlink_error",
    "cuda_error",
    "node_failure",
    "ecc_error",
    "network_error",
    "connection_error",
    "s3_storage_error",
    "nccl_timeout_error",
    "nccl_remote_error",
    "gpu_lost",
    "gpu_driver_error",
    "filesystem_error",
    "disk_full",
    "host_hardware_error",
    "container_runtime_error",
    "dataloader_killed",
    "attribute_error",
    "runtime_error",
    "assertion_error",
    "value_error",
    "zero_division_error",
    "out_of_memory_error",
    "model_loading_error",
    "dataset_loading_error",
    "host_out_of_memory",
    "segmentation_fault",
    "loss_divergence",
    "file_not_found_error",
    "os_error",
    "type_error",
    "name_error",
    "permission_error",
    "import_error",
    "key_error",
    "syntax_error",
    "argument_error",
    "called_process_error",
    "index_error",
    "configuration_error",
    "completed",
    "cancelled",
    "preempted",
    "time_limit",
    "unknown",
]

Provenance = Literal["job", "node", "scheduler", "runtime"]

class Stream(TypedDict):
    source: NotRequired[str]
    node: NotRequired[str]
    rank: NotRequired[int]
    provenance: NotRequired[Provenance]

class FeedbackShape(TypedDict):
    id: str
    time: str
    by: str
    verdict: FeedbackVerdict
    type: FailureType | None
    root_line: int | None
    root_stream: Stream | None
    node: str | None
    rank: int | None
    comment: str

Outcome = Literal["failed", "completed", "cancelled", "preempted", "time_limit", "hung", "unknown"]

Category = Literal["infrastructure", "framework", "script", "none", "unknown"]

class RootCause(TypedDict):
    line: int
    text: str
    rank: NotRequired[int | None]
    node: NotRequired[str | None]
    gpu: NotRequired[str | None]
    source: NotRequired[str]
    provenance: NotRequired[Provenance]

class EvidenceLine(TypedDict):
    line: int
    text: str
    why: str
    rank: NotRequired[int | None]
    source: NotRequired[str]
    provenance: NotRequired[Provenance]

class Symptom(TypedDict):
    line: int
    text: str
    type: FailureType
    source: NotRequired[str]
    provenance: NotRequired[Provenance]

class Rejected(TypedDict):
    line: int
    text: str
    type: FailureType
    why: str

class Suspect(TypedDict):
    node: str
    score: float
    why: str

Action = Literal[
    "cordon_and_resubmit", "check_and_resubmit", "resubmit", "rollback_and_resubmit", "notify_user", "none"
]

class Advice(TypedDict):
    action: Action
    reason: str

Mode = Literal["observe", "approve", "act"]

PlanState = Literal["advised", "waiting", "sent", "reached", "not_reached", "held", "superseded", "refused", "expired"]

class Rollback(TypedDict):
    checkpoint: NotRequired[str]
    step: NotRequired[int | None]
    skip_from: NotRequired[int | None]
    skip_to: NotRequired[int | None]
    verified: NotRequired[bool]

class ChangeShape(TypedDict):
    time: str
    state: PlanState
    by: str
    why: str

class StepShape(TypedDict):
    command: str
    exit_code: int | None
    output: str

ProofKind = Literal["node_log", "scheduler", "query", "check", "person"]

class ProofShape(TypedDict):
    node: str
    kind: ProofKind
    source: str
    text: str
    line: int
    time: str | None
    by: str

QueryState = Literal["asked", "proves", "proves_nothing", "not_available"]

class QueryResult(TypedDict):
    node: str
    query: str
    state: NotRequired[QueryState]
    exit_code: NotRequired[int | None]
    text: NotRequired[str]

class PlanShape(TypedDict):
    id: str
    key: str
    job: str
    attempt: int
    cluster: str
    tenant: str
    action: Action
    nodes: list[str]
    mode: Mode
    state: PlanState
    reason: str
    row: str
    created: str
    expires: str
    diagnosis: str
    rollback: Rollback | None
    drained: list[str]
    requeued: str
    executor: str
    history: list[ChangeShape]
    steps: list[StepShape]
    proofs: list[ProofShape]
    queries: list[QueryResult]

Cap = Literal["shapes", "lines", "voices", "series", "nodes", "templates"]

class LeftOut(TypedDict):
    lines: NotRequired[int]
    why: NotRequired[str]
    caps: NotRequired[list[Cap]]

class Compression(TypedDict):
    lines_in: NotRequired[int]
    bytes_in: NotRequired[int]
    lines_out: NotRequired[int]
    bytes_out: NotRequired[int]

AskReason = Literal[
    "unknown",
    "unsure",
    "close_rival",
    "belied_end",
    "explanation",
    "heuristic",
    "generic_rule",
    "consequence",
    "guess",
    "unsure_location",
]

ModelEffect = Literal["none", "agreed", "located", "decided", "contradicted"]

class RulesVerdict(TypedDict):
    type: FailureType
    decided_by: str
    confidence: float
    line: NotRequired[int | None]
    rank: NotRequired[int | None]
    node: NotRequired[str | None]
    action: NotRequired[Action]

class ToolUse(TypedDict):
    call: str
    lines: int | None

class Hypotheses(TypedDict):
    first: FailureType
    second: FailureType
    tells_apart: str

class ModelUse(TypedDict):
    model: str
    prompt: str
    prompt_hash: str
    calls: NotRequired[int]
    tokens_in: NotRequired[int]
    tokens_out: NotRequired[int]
    seconds: NotRequired[float]
    failure: NotRequired[str]
    temperature: NotRequired[float]
    asked: NotRequired[list[AskReason]]
    effect: NotRequired[ModelEffect]
    before: NotRequired[RulesVerdict | None]
    tools: NotRequired[list[ToolUse]]
    hypotheses: NotRequired[Hypotheses | None]

StuckPlace = Literal["rank", "node"]

class DecisionBasis(TypedDict):
    node_named: NotRequired[bool]
    stable: NotRequired[bool]
    hint: NotRequired[Action | None]
    sandbox: NotRequired[bool]
    stuck: NotRequired[StuckPlace | None]

SuspectKind = Literal["behind", "stalled", "absent", "mismatch", "deadlock", "dead", "stack", "at_work"]

class HangSuspect(TypedDict):
    rank: int
    kind: SuspectKind
    why: str
    score: float
    node: NotRequired[str]
    stuck_in: NotRequired[str]
    work_seconds: NotRequired[float]

class HangLook(TypedDict):
    last_line: float
    taken: float
    suspects: list[list[Any]]

class HangFindings(TypedDict):
    suspects: NotRequired[list[HangSuspect]]
    notes: NotRequired[list[str]]
    files: NotRequired[int]
    not_seen: NotRequired[list[int]]
    waiting: NotRequired[int]
    look: NotRequired[HangLook | None]

class Rival(TypedDict):
    type: FailureType
    line: int
    confidence: float

class Precedent(TypedDict):
    diagnosis: str
    feedback: str
    by: str
    created: float
    before: RulesVerdict
    keeps_action: NotRequired[bool]

class DiagnosisShape(TypedDict):
    id: str
    job: str
    attempt: int
    created: str
    current: bool
    url: str
    correction: FeedbackShape | None
    feedback: list[FeedbackShape]
    outcome: Outcome
    category: Category
    type: FailureType
    confidence: float
    decided_by: str
    root_cause: RootCause | None
    evidence: list[EvidenceLine]
    symptoms: list[Symptom]
    rejected: list[Rejected]
    nodes: list[Suspect]
    recovery: Advice
    plan: PlanShape | None
    mitigation: str
    notes: list[str]
    left_out: LeftOut
    compression: Compression
    ruleset: str
    policy: str
    model: ModelUse | None
    grounds: DecisionBasis
    step: int | None
    rollback: Rollback | None
    proofs: list[ProofShape]
    new_lines: list[EvidenceLine]
    clean_runs: int
    doubts: list[AskReason]
    needs_review: str
    hang: HangFindings | None
    rivals: list[Rival]
    precedent: Precedent | None

class DiagnosisPage(TypedDict):
    items: list[DiagnosisShape]
    next: str | None

class FoundShape(TypedDict):
    source: str
    node: str
    rank: int | None
    line: int
    text: str
    count: int
    is_template: bool
    score: float

class FoundList(TypedDict):
    items: list[FoundShape]

IncidentState = Literal["open", "acknowledged", "resolved"]

class IncidentChangeShape(TypedDict):
    time: str
    state: IncidentState
    by: str
    assignee: str
    comment: str

class IncidentShape(TypedDict):
    id: str
    cluster: str
    node: str
    place: str
    nodes: list[str]
    category: Category
    type: FailureType
    line: str
    diagnosis: str
    first_seen: str
    last_seen: str
    failures: int
    jobs: int
    state: IncidentState
    assignee: str
    escalated: str | None
    muted_until: str | None
    history: list[IncidentChangeShape]
    url: str

class IncidentPage(TypedDict):
    items: list[IncidentShape]
    next: str | None

EventKind = Literal["started", "heartbeat", "checkpoint", "exit", "cancelled", "preempted", "suspended", "resumed"]

CheckpointPhase = Literal["staged", "durable", "verified", "bad"]

class EventShape(TypedDict):
    kind: EventKind
    time: str
    code: int | None
    signal: int | None
    step: int | None
    path: str
    node: str
    rank: int | None
    reason: str
    phase: CheckpointPhase | None
    blocked_ms: float | None
    bytes: int | None
    finite: bool | None
    just_in_time: bool
    submitted: str | None
    time_limit: float | None

class AttemptShape(TypedDict):
    number: int
    opened: str
    last_line: str | None
    fatal: str | None
    ended: str | None
    events: list[EventShape]
    diagnosis: DiagnosisShape | None

class JobPage(TypedDict):
    id: str
    cluster: str
    name: str
    nodes: list[str]
    rank_nodes: dict[str, str]
    framework: str
    checkpoint_dir: str
    tenant: str
    labels: dict[str, str]
    created: str | None
    url: str
    attempts: list[AttemptShape]

LogLevel = Literal["error", "warning", "stack", "other", "routine"]

class TemplateShape(TypedDict):
    text: str
    count: int
    last: int
    ranks: list[int]
    samples: list[str]

class LogRowShape(TypedDict):
    id: str
    source: str
    node: str | None
    rank: int | None
    line: int
    time: float | None
    level: LogLevel
    provenance: Provenance
    text: str
    gap: int
    template: TemplateShape | None
    hits: list[list[int]]

class FacetCount(TypedDict):
    value: int | str | None
    count: int

class LogPage(TypedDict):
    lines: int
    total: int
    before: int
    after: int
    rows: list[LogRowShape]
    target: str | None
    is_exact: bool
    matches: int
    previous: str | None
    next: str | None
    previous_match: str | None
    next_match: str | None
    facets: dict[str, list[FacetCount]]
    revision: int

NodeEventKind = Literal["cordoned", "uncordoned", "down", "resumed"]

NodeActor = Literal["person", "diagnoser"]

class NodeShape(TypedDict):
    cluster: str
    node: str
    kind: NodeEventKind
    by: NodeActor
    time: str
    reason: str
    feedback: str

class PlanPage(TypedDict):
    items: list[PlanShape]
    next: str | None

class SimilarShape(TypedDict):
    id: str
    url: str
    job: str
    attempt: int
    score: float
    type: FailureType
    category: Category
    verdict: FeedbackVerdict
    by: str
    line: str
    done: str
    comment: str

class SimilarList(TypedDict):
    items: list[SimilarShape]

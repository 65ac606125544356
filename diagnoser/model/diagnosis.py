"""What a diagnosis says."""

from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.evidence import Compression, LeftOut
from diagnoser.model.hangs import HangFindings, StuckPlace
from diagnoser.model.lines import Provenance
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome

LOSS_SERIES = "heuristic:loss_series"
"""What decides where the series of a loss does, and no line says so."""
LIKELY_LINE = "heuristic:likely_line"
"""Decider that guesses: of all lines this one is likeliest to tell the cause."""
GUESS = 0.5
"""Confidence below which an answer is more likely wrong than right."""


class ProofKind(StrEnum):
    """What can prove that a node is at fault."""

    NODE_LOG = "node_log"  # a line of the node's own log
    SCHEDULER = "scheduler"  # the scheduler's word about the node
    QUERY = "query"  # the node's answer when it was asked
    CHECK = "check"  # the two-round node check
    PERSON = "person"  # somebody approved the plan although nothing else proves it


@dataclass(frozen=True, slots=True)
class NodeProof:
    """Why a node may be taken out. text: the line, answer or verdict, or a person's comment.

    source: of the line, else the name of the query. line: number in its stream, 0 where there is none.
    by: the person, or "".
    """

    node: str
    kind: ProofKind
    text: str
    source: str = ""
    line: int = 0
    time: float = 0.0
    by: str = ""


@dataclass(frozen=True, slots=True)
class RootCause:
    """The line that shows the cause. rank, node, gpu are None when the log does not show them."""

    line: int
    text: str
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    source: str = "stdout"
    provenance: Provenance = Provenance.JOB


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    line: int
    text: str
    why: str
    rank: int | None = None
    source: str = "stdout"
    provenance: Provenance = Provenance.JOB


@dataclass(frozen=True, slots=True)
class Symptom:
    line: int
    text: str
    type: FailureType
    source: str = "stdout"
    provenance: Provenance = Provenance.JOB


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that may be at fault. score in 0..1."""

    node: str
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that is not the root, and why."""

    line: int
    text: str
    type: FailureType
    why: str


@dataclass(frozen=True, slots=True)
class Rival:
    """Another cause that a line of the log speaks for, and how likely it is."""

    type: FailureType
    line: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What should happen next, from the policy table. ``reason`` names the line of the table."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """What the policy table looked at beside the verdict.

    stable, sandbox: maturity of the deciding rule; both false where no rule decided. hint: the action that it asks for.
    stuck: what agents saw stuck in a run that hangs.
    """

    node_named: bool = False
    stable: bool = False
    hint: Action | None = None
    sandbox: bool = False
    stuck: StuckPlace | None = None


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where a run should go on. checkpoint: path or name of the one to load, "" when unknown; step: at which it was
    saved. skip_from, skip_to: steps whose data batches are left out, both included; None where no loss broke.
    verified: whether the job reported that it read the checkpoint back and its checksums held."""

    checkpoint: str = ""
    step: int | None = None
    skip_from: int | None = None
    skip_to: int | None = None
    verified: bool = False


class AskReason(StrEnum):
    """Why the language model is asked about a verdict: where verdicts like it were often wrong."""

    UNKNOWN = "unknown"  # the rules found no cause
    UNSURE = "unsure"  # the confidence is low: verdicts of its kind are often wrong
    CLOSE_RIVAL = "close_rival"  # an exact cause of another type was set aside only for its place
    BELIED_END = "belied_end"  # it says that it completed, and goes on
    EXPLANATION = "explanation"  # nothing is in doubt; the site wants every failure explained
    # On diagnoses stored by earlier versions.
    HEURISTIC = "heuristic"
    GENERIC_RULE = "generic_rule"
    CONSEQUENCE = "consequence"
    GUESS = "guess"
    UNSURE_LOCATION = "unsure_location"


ASK_REASONS = {
    AskReason.UNKNOWN: "no rule knows the failure",
    AskReason.UNSURE: "verdicts of its kind are often wrong",
    AskReason.CLOSE_RIVAL: "another cause was set aside only for its place in the log",
    AskReason.BELIED_END: "it completed, but something that follows does not fit",
    AskReason.UNSURE_LOCATION: "several machines could be the one at fault",
    AskReason.EXPLANATION: "nothing is in doubt; every failure is explained",
    AskReason.HEURISTIC: "guessed from the class of an exception or the words of a line",
    AskReason.GENERIC_RULE: "decided by a class of exceptions that often carries another cause",
    AskReason.CONSEQUENCE: "decided by a line that other failures print as well",
    AskReason.GUESS: "more likely wrong than right",
}
"""The reasons in words, for people and for the model."""


class ModelEffect(StrEnum):
    """What became of the verdict after the model was asked."""

    NONE = "none"  # it gave no usable answer, or sees no cause either
    AGREED = "agreed"  # it names the type that stands
    LOCATED = "located"  # it names the type that stands, and a rank or node that the rules did not
    DECIDED = "decided"  # its type stands in place of the rules'
    CONTRADICTED = "contradicted"  # it names another type; that of the rules stands


MODEL_EFFECTS = {
    ModelEffect.NONE: "nothing: the verdict of the rules stands",
    ModelEffect.AGREED: "the model agrees",
    ModelEffect.LOCATED: "the model agrees, and names the place",
    ModelEffect.DECIDED: "the model's verdict stands",
    ModelEffect.CONTRADICTED: "the model names another cause; the verdict of the rules stands",
}
"""The same in words."""


@dataclass(frozen=True, slots=True)
class RulesVerdict:
    """What the rules said before the model was asked. line, rank, node: of their root; None where they show none."""

    type: FailureType
    decided_by: str
    confidence: float
    line: int | None = None
    rank: int | None = None
    node: str | None = None
    action: Action = Action.NONE


@dataclass(frozen=True, slots=True)
class Precedent:
    """The judged failure that decided this one. diagnosis, feedback: their ids. by, created: who judged it, and when.

    before: what the rules say by themselves. keeps_action: whether the action is theirs, because that of the judged
    failure is weaker.
    """

    diagnosis: str
    feedback: str
    by: str
    created: float
    before: RulesVerdict
    keeps_action: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Something that the model looked at before it answered: the call, in its own words. lines: how many it was shown;
    None where the call was refused."""

    call: str
    lines: int | None


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The model's two best causes, the likelier first, and what would tell them apart."""

    first: FailureType
    second: FailureType
    tells_apart: str


@dataclass(frozen=True, slots=True)
class ModelUse:
    """How the language model took part. ``failure`` is a ``ModelFailure`` value when it gave no usable answer.

    calls, tokens and seconds are those of the whole consultation. temperature: of the sampling. asked: why.
    before: the verdict that it was asked about; None on diagnoses stored by earlier versions. tools: what it looked at,
    in order. hypotheses: None where it gave no usable answer, or no second cause.
    """

    model: str
    prompt: str
    prompt_hash: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    failure: str = ""
    temperature: float = 0.0
    asked: tuple[AskReason, ...] = ()
    effect: ModelEffect = ModelEffect.NONE
    before: RulesVerdict | None = None
    tools: tuple[ToolUse, ...] = ()
    hypotheses: Hypotheses | None = None


LISTED_SYMPTOMS = 20
"""Most symptoms and rejected candidates listed in a diagnosis: a thousand ranks may print the same."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one attempt: what `diagnoser diagnose --json` prints and the API serves."""

    outcome: Outcome
    category: Category
    type: FailureType
    confidence: float
    decided_by: str
    root_cause: RootCause | None = None
    evidence: tuple[EvidenceLine, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    nodes: tuple[Suspect, ...] = ()
    recovery: Advice = Advice(Action.NONE, "")
    mitigation: str = ""
    notes: tuple[str, ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    compression: Compression = field(default_factory=Compression)
    ruleset: str = ""
    policy: str = ""  # hash of the policy table; "" on diagnoses stored by earlier versions
    model: ModelUse | None = None
    grounds: DecisionBasis = DecisionBasis()
    step: int | None = None  # the last training step that the log shows
    rollback: Rollback | None = None  # only when the run should go back to an earlier checkpoint
    proofs: tuple[NodeProof, ...] = ()  # what nodes and scheduler themselves say against nodes, about this failure
    new_lines: tuple[EvidenceLine, ...] = ()  # those that no clean run of the job family printed, in log order
    clean_runs: int = 0  # of the job family that the log was compared with
    doubts: tuple[AskReason, ...] = ()  # what in the rules' verdict leaves room for doubt
    review_kind: str = ""  # the verdicts that are wrong about as often; "" on diagnoses stored by earlier versions
    needs_review: str = ""  # why a person has to look, "" where nobody has to
    hang: HangFindings | None = None  # what dumps of the ranks show; None where none were read
    rivals: tuple[Rival, ...] = ()  # the likeliest other causes, the likeliest first
    precedent: Precedent | None = None  # the judged failure that decided; None where none did

    @property
    def is_undecided(self) -> bool:
        """Whether nothing names the cause: people, judged failures and a model then come before any guess."""
        return self.category is Category.UNKNOWN or self.decided_by == LIKELY_LINE

    @property
    def guess(self) -> str:
        """What an answer that is more likely wrong than right is called: "unknown, most likely ..."; else ""."""
        if self.confidence >= GUESS:
            return ""
        if self.type is FailureType.UNKNOWN:
            named = [(rival.type, rival.confidence) for rival in self.rivals]
        else:
            named = [(self.type, self.confidence), *((rival.type, rival.confidence) for rival in self.rivals)]
        if not named:
            return ""
        choices = [f"{kind.replace('_', ' ')} ({confidence:.0%})" for kind, confidence in named]
        return f"unknown, most likely {' or '.join(choices)}"

    @property
    def held_up(self) -> str:
        """Who holds up how many ranks, where the verdict rests on it; else ""."""
        if self.hang is None or self.root_cause is None or not self.hang.suspects:
            return ""
        return self.hang.headline if self.root_cause.rank == self.hang.suspects[0].rank else ""


def rules_verdict(diagnosis: Diagnosis) -> RulesVerdict:
    """What the rules say, before a model or a judged failure takes their place."""
    rank = node = line = None
    if root := diagnosis.root_cause:
        line, rank, node = root.line, root.rank, root.node
    action = diagnosis.recovery.action
    return RulesVerdict(diagnosis.type, diagnosis.decided_by, diagnosis.confidence, line, rank, node, action)


def changed_by_model(diagnosis: Diagnosis) -> tuple[tuple[str, str, str], ...]:
    """What the model changed: name, what the rules said, what stands now; "" where nothing was or is named."""
    before = diagnosis.model.before if diagnosis.model else None
    if before is None:
        return ()
    now = rules_verdict(diagnosis)
    pairs: tuple[tuple[str, object, object], ...] = (
        ("type", before.type, now.type),
        ("line", before.line, now.line),
        ("rank", before.rank, now.rank),
        ("node", before.node, now.node),
        ("action", before.action, now.action),
    )
    return tuple((name, _told(old), _told(new)) for name, old, new in pairs if old != new)


def _told(value: object) -> str:
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class EarlierHang:
    """A verdict that an attempt hangs. made: when, in seconds since the epoch."""

    diagnosis: Diagnosis
    made: float

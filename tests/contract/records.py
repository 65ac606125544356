"""Small records for the tests."""

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    Diagnosis,
    MessageKind,
    Mode,
    OutboxMessage,
    Plan,
    PlanState,
    RootCause,
    Stream,
    Suspect,
)
from diagnoser.model.logs import Append, Cursor
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.model.work import Claim, DiagnosisRecord, Timing

TIMING = Timing(exit_grace=5.0, fatal_debounce=20.0, fatal_debounce_max=120.0, exit_grace_after_fatal=2.0)
KEY = AttemptKey("llama-70b", 1)
OUT = Stream("stdout", "gpu-004", 3)


def append(
    key: AttemptKey = KEY,
    *,
    at: float = 100.0,
    fatal: bool = False,
    stream: Stream = OUT,
    read: Cursor | None = None,
    lines: int = 10,
    delta: bytes = b"delta",
) -> Append:
    """``lines`` more lines of one stream, after what the cursor ``read`` covers."""
    before = read or Cursor()
    covered = ((1, before.next + lines - 1),)
    return Append(key, delta, at, {stream: (before.version, covered)}, fatal)


def diagnosis(text: str = "NVRM: Xid 79, GPU has fallen off the bus") -> Diagnosis:
    return Diagnosis(
        outcome=Outcome.FAILED,
        category=Category.INFRASTRUCTURE,
        type=FailureType.GPU_LOST,
        confidence=0.9,
        decided_by="rule:gpu-lost",
        root_cause=RootCause(7, text, rank=3, node="gpu-004"),
        nodes=(Suspect("gpu-004", 0.9, "its GPU is gone"), Suspect("gpu-009", 0.2, "its peer")),
    )


def record(id: str, claim: Claim, verdict: Diagnosis | None = None, created: float = 200.0) -> DiagnosisRecord:
    return DiagnosisRecord(id, claim.attempt.key, claim.attempt.revision, created, True, verdict or diagnosis())


def plan(key: AttemptKey = KEY, id: str = "plan-1") -> Plan:
    return Plan(
        id=id,
        key=f"{key.job}/{key.number}/cordon",
        job=key.job,
        attempt=key.number,
        action=Action.CORDON_AND_RESUBMIT,
        nodes=("gpu-004",),
        mode=Mode.OBSERVE,
        state=PlanState.ADVISED,
        reason="a GPU is lost",
        created=200.0,
        expires=3800.0,
    )


def outbox_message(key: str = "effect-1", *, created: float = 200.0, expires: float = 3800.0) -> OutboxMessage:
    return OutboxMessage(key, MessageKind.RECOVERY, "recovery", b'{"action":"cordon"}', created, expires)


async def claimed(store: SqlStore, now: float = 1000.0, lease: float = 60.0, limit: int = 10) -> list[Claim]:
    return await store.work.claim_attempts(now, TIMING, lease, limit)


async def the_claim(store: SqlStore, now: float = 1000.0) -> Claim:
    """The claim on the one attempt that is due."""
    (claim,) = await claimed(store, now)
    return claim

"""The one sentence of a verdict: who failed, of what, what the others then did."""

from diagnoser.model import Diagnosis, RootCause, Suspect, Symptom
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.wording.summaries import summary
from tests.serving import DONE, ECC, SCRIPT, verdict

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=48112, name=python, GPU has fallen off the bus."


def lost(*symptoms: str, kind: FailureType = FailureType.NCCL_TIMEOUT_ERROR) -> Diagnosis:
    """A GPU is lost, and other lines are consequences of that."""
    followed = tuple(Symptom(900 + number, text, kind) for number, text in enumerate(symptoms))
    return verdict(FailureType.GPU_LOST, root_cause=RootCause(7, XID, 3, "gpu-017"), symptoms=followed)


def test_the_sentence_names_who_what_and_what_the_others_did() -> None:
    """Other ranks are counted once each, and the root's own rank is none of them."""
    waiting = [f"[rank{rank}]:[E] [Rank {rank}] Watchdog caught collective operation timeout" for rank in range(64)]
    assert summary(lost(*waiting, *waiting)) == (
        "Rank 3 on gpu-017 lost its GPU (Xid 79); 63 other ranks then waited and timed out."
    )
    assert summary(lost(waiting[3])) == "Rank 3 on gpu-017 lost its GPU (Xid 79)."
    assert summary(lost(waiting[1])).endswith("; 1 other rank then waited and timed out.")


def test_the_sentence_says_what_is_known() -> None:
    """Without a rank the node, without both the job; other endings than a failure are said first."""
    assert summary(ECC).startswith("Rank 12 on hgx-04 had an ECC memory error (Xid 94)")
    assert summary(SCRIPT) == "Rank 5 on hgx-09 failed: import error."
    assert summary(verdict(nodes=(Suspect("n3", 0.5, ""),))) == "Node n3 had an ECC memory error."
    assert summary(verdict(FailureType.OUT_OF_MEMORY_ERROR)) == "The job ran out of GPU memory."
    assert summary(DONE) == "The job completed."
    assert summary(verdict(outcome=Outcome.HUNG)) == "The job hangs. The job had an ECC memory error."
    unknown = verdict(FailureType.UNKNOWN, root_cause=RootCause(1, "x", rank=0))
    assert summary(unknown) == "The job failed, and no rule knows why; the first sign is on rank 0."


def test_a_name_of_the_log_shows_what_it_holds() -> None:
    """A control character or a direction mark in a node's name is made visible."""
    assert "\u202e" not in summary(verdict(nodes=(Suspect("n\u202e3", 0.5, ""),)))

"""The one sentence that a person needs of a verdict: who failed, of what, and what the others then did."""

import re

from diagnoser.model import Diagnosis
from diagnoser.model.diagnosis import LISTED_SYMPTOMS
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.wording.phrases import after, plural
from diagnoser.wording.words import cause, lower_first, visible

_ENDINGS = {
    Outcome.COMPLETED: "The job completed",
    Outcome.CANCELLED: "The job was cancelled",
    Outcome.PREEMPTED: "The job was preempted",
    Outcome.TIME_LIMIT: "The job ran into its time limit",
    Outcome.HUNG: "The job hangs",
    Outcome.FAILED: "The job failed",
    Outcome.UNKNOWN: "It is not clear how the job ended",
}
_EVENTS = {
    FailureType.GPU_LOST: "lost its GPU",
    FailureType.GPU_DRIVER_ERROR: "had an error of the GPU driver",
    FailureType.ECC_ERROR: "had an ECC memory error",
    FailureType.NVLINK_ERROR: "had an NVLink error",
    FailureType.CUDA_ERROR: "had a CUDA error",
    FailureType.NODE_FAILURE: "went down",
    FailureType.HOST_HARDWARE_ERROR: "had a hardware error of the host",
    FailureType.NETWORK_ERROR: "lost the network",
    FailureType.CONNECTION_ERROR: "lost a connection",
    FailureType.NCCL_TIMEOUT_ERROR: "timed out in a collective",
    FailureType.NCCL_REMOTE_ERROR: "lost a peer in a collective",
    FailureType.OUT_OF_MEMORY_ERROR: "ran out of GPU memory",
    FailureType.HOST_OUT_OF_MEMORY: "ran out of host memory",
    FailureType.DISK_FULL: "ran out of disk space",
    FailureType.SEGMENTATION_FAULT: "crashed with a segmentation fault",
    FailureType.LOSS_DIVERGENCE: "reported a loss that diverged",
    FailureType.DATALOADER_KILLED: "lost a data loader that was killed",
}
_CONSEQUENCES = {
    FailureType.NCCL_TIMEOUT_ERROR: "then waited and timed out",
    FailureType.NCCL_REMOTE_ERROR: "then lost their peer",
}
"""What failures of other ranks mean where something else is the root."""
_XID = re.compile(r"\bXid(?: \([^)\n]{0,60}\))?: (\d{1,3})\b")
_RANK = re.compile(r"\[?[Rr]ank ?(\d{1,6})\]")


def summary(verdict: Diagnosis) -> str:
    """Made from what the verdict says, whatever the log says: names in it are escaped like log text."""
    ending = _ENDINGS[verdict.outcome]
    if verdict.held_up:
        return f"{ending}: {visible(verdict.held_up[0].lower() + verdict.held_up[1:])}."
    if verdict.category is Category.NONE:
        return ending + "."
    if verdict.guess:
        return f"{ending}, and the cause is {visible(verdict.guess)}."
    where = _where(verdict)
    if verdict.type is FailureType.UNKNOWN:
        return f"{ending}, and no rule knows why{after('; the first sign is on ', where)}."
    subject = where[:1].upper() + where[1:] or "The job"
    event = _EVENTS.get(verdict.type) or f"failed: {lower_first(cause(verdict.type))}"
    sentence = visible(f"{subject} {event}{_code(verdict)}") + _consequence(verdict) + "."
    if verdict.outcome is Outcome.FAILED:
        return sentence
    return f"{ending}. {sentence}"


def _where(verdict: Diagnosis) -> str:
    root, node = verdict.root_cause, ""
    if verdict.nodes:
        node = verdict.nodes[0].node
    if root is None:
        return after("node ", node)
    if root.node:
        node = root.node
    if root.rank is None:
        return after("node ", node)
    return f"rank {root.rank}{after(' on ', node)}"


def _code(verdict: Diagnosis) -> str:
    """The number of the GPU's own error report, which says more than our type."""
    if verdict.root_cause is None:
        return ""
    match = _XID.search(verdict.root_cause.text)
    return f" (Xid {match.group(1)})" if match else ""


def _consequence(verdict: Diagnosis) -> str:
    for kind, reads in _CONSEQUENCES.items():
        ranks = _other_ranks(verdict, kind)
        if ranks and kind is not verdict.type:
            least = "at least " if len(verdict.symptoms) == LISTED_SYMPTOMS else ""
            return f"; {least}{plural(len(ranks), 'other rank')} {reads}"
    return ""


def _other_ranks(verdict: Diagnosis, kind: FailureType) -> set[int]:
    """Ranks that symptoms of a kind name, without that of the root cause."""
    ranks = set()
    for symptom in verdict.symptoms:
        match = _RANK.search(symptom.text)
        if symptom.type is kind and match:
            ranks.add(int(match.group(1)))
    if verdict.root_cause is not None:
        ranks.discard(verdict.root_cause.rank)
    return ranks

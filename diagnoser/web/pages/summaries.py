"""The one sentence that a person needs of a verdict: who failed, of what, and what the others then did."""

import re

from diagnoser.diagnosis.verdict import LISTED
from diagnoser.model import Diagnosis
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.web.formatting.template_filters import cause, lower_first, visible

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
    where = _where(verdict)
    if verdict.type is FailureType.UNKNOWN:
        return f"{ending}, and no rule knows why{f'; the first sign is on {where}' if where else ''}."
    subject = where[:1].upper() + where[1:] or "The job"
    event = _EVENTS.get(verdict.type) or f"failed: {lower_first(cause(verdict.type))}"
    sentence = visible(f"{subject} {event}{_code(verdict)}") + _consequence(verdict) + "."
    return sentence if verdict.outcome is Outcome.FAILED else f"{ending}. {sentence}"


def _where(verdict: Diagnosis) -> str:
    root = verdict.root_cause
    node = (root.node if root else None) or (verdict.nodes[0].node if verdict.nodes else "")
    if root is not None and root.rank is not None:
        return f"rank {root.rank}{f' on {node}' if node else ''}"
    return f"node {node}" if node else ""


def _code(verdict: Diagnosis) -> str:
    """The number of the GPU's own error report, which says more than our type."""
    match = _XID.search(verdict.root_cause.text) if verdict.root_cause else None
    return f" (Xid {match.group(1)})" if match else ""


def _consequence(verdict: Diagnosis) -> str:
    root = verdict.root_cause
    own = {root.rank} if root and root.rank is not None else set()
    for kind, reads in _CONSEQUENCES.items():
        texts = [symptom.text for symptom in verdict.symptoms if symptom.type is kind]
        ranks = {int(match.group(1)) for text in texts if (match := _RANK.search(text))} - own
        if ranks and kind is not verdict.type:
            least = "at least " if len(verdict.symptoms) == LISTED else ""
            return f"; {least}{len(ranks)} other {'rank' if len(ranks) == 1 else 'ranks'} {reads}"
    return ""

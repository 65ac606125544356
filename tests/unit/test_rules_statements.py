"""What lines state, and what they only advise."""

import io

import pytest

from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import FailureType
from tests.rule_files import ANALYZER

T = FailureType
DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
)
STEPS = tuple(f"step {number} loss 2.{number:03d}" for number in range(1, 20))


def diagnose(*lines: str) -> Diagnosis:
    log = ANALYZER.read(io.BytesIO("".join(line + "\n" for line in lines).encode()))
    return ANALYZER.diagnose_with_node_logs(log.evidence, Facts())


@pytest.mark.parametrize(
    "advice",
    [
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory.",
        "Some common causes include: (1) killed by SIGSEGV, (2) No space left on device",
        "Possible reasons: CUDA error: uncorrectable ECC error encountered",
        "This can happen if the GPU has fallen off the bus.",
        "It is possible that the checkpoint is truncated or of another model",
    ],
)
def test_what_advice_lists_is_no_cause(advice: str) -> None:
    """Neither a rule, nor a report of an exit, nor words take the cause from it: behind another failure the verdict is
    that one's, and alone it is unknown."""
    plain, advised = diagnose(*STEPS, DIED), diagnose(*STEPS, DIED + advice)
    assert (advised.type, advised.decided_by) == (plain.type, plain.decided_by)
    assert diagnose(*STEPS, f"the loop has stopped. {advice}").type is T.UNKNOWN


def test_the_items_of_a_list_of_advice_are_no_causes() -> None:
    """The list goes on over lines; the first one that is no item ends it."""
    listed = ("The loop has stopped. Common causes include:", "  - no space left on device", "  - GPU 3 is lost")
    assert diagnose(*STEPS, *listed).type is T.UNKNOWN
    assert diagnose(*STEPS, *listed, "OSError: [Errno 28] No space left on device: '/a'").type is T.DISK_FULL


def test_a_message_that_a_rule_knows_may_reach_into_advice() -> None:
    """Only what begins in the advice is no statement."""
    message = "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"
    assert diagnose(*STEPS, message).type is T.GPU_DRIVER_ERROR

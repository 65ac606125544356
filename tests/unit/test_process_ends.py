"""The process that ended first by itself is the cause; what its peers print about the lost connection is a symptom."""

from collections.abc import Sequence
from io import BytesIO

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import FailureType
from tests import accuracy_bars

RAISED = ("Traceback (most recent call last):", '  File "/srv/fit.py", line 31, in <module>', "    fit(batch)")
SCHEDULE = "planner.errors.ScheduleError: no slot for stage 3"
UNHEALTHY = "XlaRuntimeError: UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats). Connection reset by peer"
COMPLAINTS = (
    "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31412",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0/store_based_barrier_key",
    "ray.exceptions.ActorDiedError: The actor died because its worker process has died.",
    "grpc._channel._InactiveRpcError: status = StatusCode.UNAVAILABLE, details = Socket closed",
    f"jaxlib.xla_extension.{UNHEALTHY}",
)


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def steps(rank: int) -> list[str]:
    return [f"[rank{rank}]: step {step} loss {3 - step / 50:.3f}" for step in range(1, 30)]


def printed(rank: int, lines: Sequence[str], clock: str = "") -> list[str]:
    return [f"[rank{rank}]: {clock}{line}" for line in lines]


def diagnose(analyzer: LogAnalyzer, *lines: str) -> Diagnosis:
    text = "\n".join([*steps(0), *steps(1), *steps(2), *lines, ""])
    return analyzer.analyze(analyzer.read(BytesIO(text.encode())), Facts())


def rank_of(verdict: Diagnosis) -> int | None:
    assert verdict.root_cause is not None
    return verdict.root_cause.rank


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_a_complaint_about_a_peer_is_explained_by_the_peers_own_end(analyzer: LogAnalyzer, complaint: str) -> None:
    """Whichever rule knows the complaint, and in whichever order the two are printed."""
    ended, complained = printed(2, [*RAISED, SCHEDULE]), printed(0, [*RAISED, complaint])
    assert rank_of(diagnose(analyzer, *ended, *complained)) == 2
    assert rank_of(diagnose(analyzer, *complained, *ended)) == 2


def test_a_process_that_goes_on_after_an_exception_has_not_ended(analyzer: LogAnalyzer) -> None:
    """It explains no complaint of its peers."""
    survived = printed(2, [*RAISED, SCHEDULE, "rebuilt the schedule", "carrying on"])
    verdict = diagnose(analyzer, *survived, *printed(0, [*RAISED, COMPLAINTS[0]]))
    assert rank_of(verdict) == 0


def test_a_network_without_a_route_is_no_complaint_about_a_peer(analyzer: LogAnalyzer) -> None:
    """No process that ends takes the route to its host away."""
    network = "OSError: [Errno 113] No route to host: ('10.0.0.7', 29500), connection reset"
    verdict = diagnose(analyzer, *printed(0, [*RAISED, network]), *printed(2, [*RAISED, SCHEDULE]))
    assert verdict.type is FailureType.NETWORK_ERROR


def test_an_abort_of_a_rank_that_complains_is_not_its_own_end(analyzer: LogAnalyzer) -> None:
    """The watchdog of a rank that waits for another aborts its process."""
    waited = printed(0, [*RAISED, COMPLAINTS[1]])
    aborted = "srun: error: node7: task 0: Aborted (core dumped)"
    verdict = diagnose(analyzer, *waited, *printed(1, [*RAISED, COMPLAINTS[1]]), aborted)
    assert verdict.type in (FailureType.CONNECTION_ERROR, FailureType.NCCL_REMOTE_ERROR)


def test_a_segmentation_fault_that_a_launcher_reports_explains_its_peers(analyzer: LogAnalyzer) -> None:
    """The rank that died says nothing itself; the report comes after all complaints."""
    complained = [*printed(0, [*RAISED, COMPLAINTS[0]]), *printed(1, [*RAISED, COMPLAINTS[0]])]
    verdict = diagnose(analyzer, *complained, "srun: error: node7: task 2: Segmentation fault (core dumped)")
    assert (verdict.type, rank_of(verdict)) == (FailureType.SEGMENTATION_FAULT, 2)


def test_a_process_that_slurm_kills_after_it_stopped_the_others_is_not_the_cause(analyzer: LogAnalyzer) -> None:
    """It waited in a collective, as its peers say, and did not heed the order to end; alone, a kill is the cause."""
    waited = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation"
    complained = [*printed(0, [*RAISED, waited]), *printed(1, [*RAISED, waited])]
    stopped, killed = "srun: error: node6: task 0: Terminated", "srun: error: node7: task 2: Killed"
    assert diagnose(analyzer, stopped, killed, *complained).type is FailureType.NCCL_TIMEOUT_ERROR
    assert diagnose(analyzer, killed, *complained).type is FailureType.HOST_OUT_OF_MEMORY


PUSH = "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"


def caught(pod: str, epoch: int) -> list[str]:
    """What a process prints of an epoch whose metrics it could not push."""
    told = [f"{epoch} {epoch * 4} {3 - epoch / 50:.2f}", "ERROR: could not push metrics", *RAISED, PUSH]
    return [f"{pod} trainer {line}" for line in told]


def test_an_exception_that_is_caught_in_each_epoch_is_no_failure(analyzer: LogAnalyzer) -> None:
    """Nor is the last one, where no steps are recognised and only a launcher's prefix names the process."""
    lines = [line for epoch in range(120) for pod in ("worker-0", "worker-1") for line in caught(pod, epoch)]
    ends = [f"{pod} trainer saved the pipeline to out/last" for pod in ("worker-0", "worker-1")]
    verdict = analyzer.analyze(analyzer.read(BytesIO("\n".join([*lines, *ends, ""]).encode())), Facts())
    assert verdict.type in (FailureType.UNKNOWN, FailureType.COMPLETED)


def test_the_exception_that_ends_the_only_process_is_its_failure(analyzer: LogAnalyzer) -> None:
    """However often it was caught before, where the last one is raised for good."""
    lines = [line for epoch in range(3) for line in printed(0, ["WARNING attempt failed, retry", *RAISED, PUSH])]
    verdict = diagnose(analyzer, *lines, *printed(0, [*RAISED, PUSH]))
    assert verdict.type is FailureType.CONNECTION_ERROR


def test_a_pod_that_falls_silent_within_its_exception_ended_first(analyzer: LogAnalyzer) -> None:
    """Steps of other pods behind it do not show that it survived, and they complain of it by its rank."""
    steps = [f"worker-{pod} trainer step {step} loss {3 - step / 50:.3f}" for step in range(30) for pod in range(3)]
    ended = [f"worker-2 trainer {line}" for line in (*RAISED, SCHEDULE)]
    on = [f"worker-{pod} trainer step {step} loss {3 - step / 50:.3f}" for step in range(30, 34) for pod in range(2)]
    lost = [f"worker-0 trainer {line}" for line in (*RAISED, "ConnectionError: rank 2 closed the connection")]
    text = "\n".join([*steps, *ended, *on, *lost, ""])
    root = analyzer.analyze(analyzer.read(BytesIO(text.encode())), Facts()).root_cause
    assert root is not None
    assert SCHEDULE in root.text

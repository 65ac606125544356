"""A full disk of the host takes the host out; a limit of the container, the job or the user does not."""

import pytest

from diagnoser.diagnosis import pipeline
from diagnoser.model import Diagnosis, Facts, Job
from diagnoser.model.taxonomy import Action, FailureType
from tests.rule_files import ANALYZER

RANKS = Job("j", rank_nodes={0: "gpu-016", 1: "gpu-017"})
CLOSED = "[rank0]: RuntimeError: Connection closed by peer [10.4.0.9]:777\n[rank0]: 10.4.0.9  gpu-017\n"
"""What the other rank prints once the process is gone: by itself it would name the node of the failing rank."""


def diagnose(text: str) -> Diagnosis:
    return pipeline.diagnose(ANALYZER.evidence_of(text.encode()), Facts(RANKS), ANALYZER.knowledge)


LIMITS = {
    "shm": "gpu-017: OSError: [Errno 28] No space left on device: '/dev/shm/torch_1021_77'",
    "shm by syslog": "Nov 22 01:00:00 gpu-017 kernel: tmpfs write to /dev/shm/psm_1: No space left on device",
    "shm of a rank": "[rank1]: OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-8w1x'",
    "shm of torch": "[rank1]: RuntimeError: unable to write to file </torch_2231_418>: No space left on device (28)",
    "shm of NCCL": "gpu-017:2210:2290 [1] NCCL WARN Call to posix_fallocate failed: No space left on device",
    "shm segment": "gpu-017:40:88 [1] include/shm.h:48 NCCL WARN Error while creating shared memory segment "
    "/dev/shm/nccl-8wNcXa (size 9637888)",
    "quota": "[rank1]: OSError: [Errno 122] Disk quota exceeded: '/home/u7/run/iter_200'",
    "quota with a host": "gpu-017: cp: error writing '/lustre/acme/u7/model.bin': Disk quota exceeded",
    "quota on a local path": "[rank1]: OSError: [Errno 122] Disk quota exceeded: '/local_nvme/u7/ckpt/iter_300'",
    "quota by name": "[rank1]: open('/lustre/acme/out') failed: EDQUOT",
    "tmp": "[rank1]: OSError: [Errno 28] No space left on device: '/tmp/u7/shards/part_3.bin'",
    "workspace": "gpu-017: OSError: [Errno 28] No space left on device: '/workspace/cache/shard_3.bin'",
    "overlay": "gpu-017: FATAL: while creating overlay upper: write /run/overlay/img: no space left on device",
    "ephemeral limit": "Nov 22 01:00:00 gpu-017 kubelet: Container trainer exceeded its local ephemeral storage limit "
    '"50Gi".',
    "ephemeral usage": "Message: Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.",
    "ephemeral of the node": "Warning  Evicted  3m  kubelet  The node was low on resource: ephemeral-storage.",
    "emptyDir": 'Message: Usage of EmptyDir volume "scratch" exceeds the limit "64Gi".',
}
MOUNTS = {
    "image": "gpu-017: OSError: [Errno 30] Read-only file system: '/workspace/out'",
    "home": "[rank1]: OSError: [Errno 30] Read-only file system: '/root/.cache/huggingface'",
    "tmp": "[rank1]: mkdir: cannot create directory '/tmp/run7': Read-only file system",
}
WHAT_TO_CHANGE = {"shm": "--shm-size", "quota": "quota -s", "tmp": "TMPDIR", "ephemeral limit": "ephemeral-storage"}


@pytest.mark.parametrize("text", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("around", ["", CLOSED])
def test_a_limit_of_the_job_does_not_blame_the_host(text: str, around: str) -> None:
    """/dev/shm, a quota and a container's disk are for a person, and name no node, whoever prints the line."""
    diagnosis = diagnose(f"{text}\n{around}")
    assert (diagnosis.type, diagnosis.recovery.action) == (FailureType.DISK_FULL, Action.NOTIFY_USER)
    assert diagnosis.nodes == ()


@pytest.mark.parametrize("text", MOUNTS.values(), ids=MOUNTS.keys())
def test_a_read_only_mount_of_the_job_does_not_blame_the_host(text: str) -> None:
    """A path of the image or of the home that cannot be written is for the job's author."""
    diagnosis = diagnose(f"{text}\n{CLOSED}")
    assert (diagnosis.type, diagnosis.recovery.action) == (FailureType.FILESYSTEM_ERROR, Action.NOTIFY_USER)
    assert diagnosis.nodes == () and "readOnly" in diagnosis.mitigation


@pytest.mark.parametrize(("limit", "advice"), WHAT_TO_CHANGE.items())
def test_the_advice_says_which_limit_to_change(limit: str, advice: str) -> None:
    """The size of shared memory, the quota, or where the container writes."""
    assert advice in diagnose(f"{LIMITS[limit]}\n").mitigation


HOSTS = (
    "[rank1]: OSError: [Errno 28] No space left on device: '/local_nvme/u7/ckpt/iter_0000300'",
    "[rank1]: OSError: [Errno 28] No space left on device: '/var/scratch/u7/run.pt'",
    "slurmstepd-gpu-017: error: could not write the job script to /var/spool/slurmd/job00311: No space left on device",
    "Nov 22 01:00:00 gpu-017 dockerd: failed to register layer: write /var/lib/docker/overlay2/6f1c/diff/opt/lib.so: "
    "no space left on device",
    "[rank1]: OSError: [Errno 30] Read-only file system: '/scratch/acme/ckpt/iter_0000200'",
    "Nov 22 01:00:00 gpu-017 kernel: EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
)


@pytest.mark.parametrize("text", HOSTS)
def test_a_disk_of_the_host_still_takes_the_host_out(text: str) -> None:
    """A local scratch disk, the spool of the scheduler, the store of the container runtime, a disk gone read-only."""
    diagnosis = diagnose(f"{text}\n")
    assert [suspect.node for suspect in diagnosis.nodes[:1]] == ["gpu-017"]
    assert diagnosis.recovery.action is Action.CORDON_AND_RESUBMIT

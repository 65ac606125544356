"""Who is running, by the environments of launchers and schedulers as they set them."""

import re

import pytest

from diagnoser.client.launch import Launch, Options, is_launcher, launch_of
from diagnoser.model import JOB_ID

TRAIN = ("python3", "train.py")
BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_CLUSTER_NAME": "main",
    "SLURM_JOB_NAME": "pretrain",
    "SLURM_PROCID": "0",
    "SLURMD_NODENAME": "gpu-017",
    "SLURM_NNODES": "2",
}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_RESTART_COUNT": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-worker-1", "NODE_NAME": "gpu-04"}


def launched(environment: dict[str, str], command: tuple[str, ...] = TRAIN, **named: object) -> Launch:
    return launch_of(environment, Options(**named), "gpu-01.example", "1122-215803.7", command)  # type: ignore[arg-type]


def test_without_any_scheduler_the_job_gets_an_id_that_no_other_launch_has() -> None:
    """It says what runs, where and when."""
    launch = launched({})
    assert (launch.job, launch.attempt, launch.rank, launch.node) == (
        "train-gpu-01-1122-215803.7",
        1,
        -1,
        "gpu-01.example",
    )
    assert launch.is_new


def test_a_batch_script_speaks_for_its_job() -> None:
    """It has task number 0, as if it were a rank, but it is none. The id is the one that the agent uses."""
    launch = launched(BATCH, ("torchrun", "train.py"))
    assert launch == Launch("slurm-main-4711", 1, -1, "gpu-017", "pretrain")


def test_a_task_of_a_step_is_a_rank() -> None:
    """Unless it starts the ranks of its node itself."""
    assert launched(STEP) == Launch("slurm-main-4711", 3, 9, "gpu-017", "pretrain")
    assert launched(STEP, ("torchrun", "--nproc-per-node", "8", "train.py")).rank == -1


def test_torchrun_and_mpi_name_the_rank() -> None:
    """What is nearest to the process counts."""
    torch = {"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "run-7"}
    assert (launched(torch).job, launched(torch).rank) == ("torchrun-run-7", 11)
    assert launched({**STEP, **torch}).job == "slurm-main-4711"
    assert launched({**torch, "TORCHELASTIC_RUN_ID": "none"}).is_new
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"):
        assert launched({name: "5"}).rank == 5


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("llama-worker-1", "pods-llama"),
        ("llama-master-0", "pods-llama"),
        ("llama-launcher-x7k2p", "pods-llama"),
        ("llama-workers-0-3-b9zqk", "pods-llama"),
        ("llama-3-b9zqk", "pods-llama"),
        ("llama-b9zqk", "pods-llama"),
    ],
)
def test_the_pods_of_a_workload_share_a_job(pod: str, job: str) -> None:
    """The name of a pod is that of its workload with an index or random letters behind it; it is no node's name."""
    launch = launched({**POD, "HOSTNAME": pod})
    assert (launch.job, launch.node, launch.pod, launch.attempt) == (job, "gpu-04", pod, None)
    del (environment := {**POD, "HOSTNAME": pod})["NODE_NAME"]
    assert launched(environment).node == ""


def test_what_a_person_names_wins() -> None:
    """On the command line, then in the environment; a named job may have had attempts that only the service knows."""
    assert launched(STEP, job="mine", rank=2, node="n1", attempt=5, name="x") == Launch("mine", 5, 2, "n1", "x")
    assert launched({**STEP, "DIAGNOSER_JOB": "theirs"}).job == "theirs"
    assert launched({"DIAGNOSER_JOB": "theirs"}).attempt is None
    assert launched({"DIAGNOSER_JOB": "theirs", "DIAGNOSER_ATTEMPT": "4"}).attempt == 4


@pytest.mark.parametrize("name", ["a/b c\n", "-x", "ä" * 300, "j" * 300, "???"])
def test_any_name_becomes_one_that_the_service_takes(name: str) -> None:
    """Whatever a person or a scheduler calls the job."""
    assert re.fullmatch(JOB_ID, launched({}, job=name).job)


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("torchrun --nproc-per-node 8 train.py", True),
        ("/opt/conda/bin/torchrun train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python3 /usr/bin/torchrun train.py", True),
        ("mpirun -np 8 python train.py", True),
        ("python train.py --launcher srun", False),
        ("python train.py", False),
    ],
)
def test_launchers_are_known(command: str, launches: bool) -> None:
    """What starts many ranks has none itself."""
    assert is_launcher(command.split()) == launches

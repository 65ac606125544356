"""What Slurm writes about jobs and nodes."""

from typing import Any

import orjson
import pytest

from diagnoser.agent.slurm.parsing import JobRecord, expand, parse_jobs, parse_nodes, rank_map, valid_node
from diagnoser.model.errors import BadInput

OLD: dict[str, Any] = {
    "job_id": 41,
    "job_state": "FAILED",
    "nodes": "trn-[08-10]",
    "restart_cnt": 1,
    "exit_code": 17 << 8,
    "priority": 4294901759,
    "start_time": 1795255607,
    "end_time": 1795255700,
    "name": "seven b",
    "user_name": "ida",
    "user_id": 1001,
    "group_id": 100,
    "standard_output": "/fs/%u/%x-%4j.log",
    "current_working_directory": "/fs/ida",
    "tasks": 24,
    "node_count": 3,
    "partition": "train",
    "tres_alloc_str": "cpu=96,node=3,billing=96,gres/gpu=24",
    "time_limit": 60,
}
NEW: dict[str, Any] = OLD | {
    "job_state": ["NODE_FAIL", "COMPLETING"],
    "restart_cnt": 0,
    "exit_code": {"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": True, "number": 9}}},
    "priority": {"set": True, "infinite": False, "number": 0},
    "start_time": {"set": True, "infinite": False, "number": 1795255607},
    "time_limit": {"set": False, "infinite": True, "number": 0},
    "tasks": {"set": True, "number": 24},
}
NODE = (
    "NodeName=trn-08 Arch=x86_64 CPUAlloc=0 Gres=gpu:h100:8(S:0-1) NodeAddr=10.2.0.8 NodeHostName=trn-08 "
    "State=IDLE+DRAIN Partitions=train  Reason=see Ida State=IDLE [root@2026-11-21T10:06:50]"
)


def job(row: dict[str, Any]) -> JobRecord:
    return parse_jobs(orjson.dumps({"jobs": [row]}).decode())[row["job_id"]]


def test_an_older_squeue_is_read() -> None:
    """Plain numbers, one word of state, an exit code as wait(2) gives it."""
    found = job(OLD)
    assert (found.state, found.finished, found.attempt) == ("FAILED", True, 2)
    assert (found.code, found.signal, found.held) == (17, 0, False)
    assert found.nodes == ("trn-08", "trn-09", "trn-10")
    assert found.output == "/fs/ida/seven b-0041.log"
    assert (found.gpus_per_node, found.minutes, found.labels) == (8, 60, {"partition": "train"})


def test_a_newer_squeue_is_read() -> None:
    """Numbers in objects, states in a list."""
    found = job(NEW)
    assert (found.state, found.completing, found.attempt) == ("NODE_FAIL", True, 1)
    assert (found.code, found.signal, found.held, found.minutes) == (3, 9, True, 0)


@pytest.mark.parametrize("user", [None, {"set": False, "infinite": False, "number": 0}])
def test_a_job_whose_user_slurm_does_not_state_is_not_that_of_root(user: object) -> None:
    """By its number a log file is found to be the job's own."""
    assert job(NEW | {"user_id": user}).uid == -1


def test_a_queue_is_read() -> None:
    """When the launch was submitted, and why it waits: no reason is one in words."""
    found = job(OLD | {"job_state": "PENDING", "submit_time": 1700000000, "state_reason": "QOSMaxGRESPerUser"})
    assert (found.submitted, found.wait_reason) == (1700000000.0, "QOSMaxGRESPerUser")
    found = job(NEW | {"submit_time": {"set": True, "infinite": False, "number": 1700000000}, "state_reason": "None"})
    assert (found.submitted, found.wait_reason) == (1700000000.0, "")


def test_a_name_cannot_pass_for_another_field() -> None:
    """A user chooses the job's name; what stands in it stays in it."""
    found = job(OLD | {"name": 'x StdOut=/etc/shadow", "standard_output": "/etc/shadow'})
    assert found.output.startswith("/fs/ida/x StdOut=")
    assert (found.uid, found.state) == (1001, "FAILED")


def test_an_output_that_cannot_be_told_is_none() -> None:
    """A pattern with a part that only the node knows is left alone."""
    assert job(OLD | {"standard_output": "/fs/%Q.log"}).output == ""
    assert job(OLD | {"standard_output": ""}).output == "/fs/ida/slurm-41.out"
    assert job(OLD | {"standard_output": "", "array_job_id": 40, "array_task_id": 7}).output == "/fs/ida/slurm-40_7.out"
    assert job(OLD | {"standard_output": "/fs/100%%.log"}).output == "/fs/100%.log"


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": [{}]}', '{"jobs": [{"job_id": "x", "job_state": "R"}]}', "[]"])
def test_what_is_no_squeue_is_refused(text: str) -> None:
    """Broken JSON is an error that a loop can live with."""
    with pytest.raises(BadInput):
        parse_jobs(text)


def test_nodes_are_read_with_state_reason_and_address() -> None:
    """The reason is the last field and may hold anything."""
    found = parse_nodes(NODE + "\nnothing of interest\n")["trn-08"]
    assert found.cordoned
    assert found.up
    assert (found.reason, found.address, found.gpus) == ("see Ida State=IDLE", "10.2.0.8", 8)


@pytest.mark.parametrize(
    ("state", "down"), [("DOWN*", True), ("MIXED*", True), ("IDLE", False), ("ALLOCATED+DRAIN", False)]
)
def test_a_node_that_does_not_respond_is_down(state: str, down: bool) -> None:
    """A star behind the state is Slurm's sign for it."""
    assert parse_nodes(f"NodeName=n1 NodeAddr=n1 State={state} ThreadsPerCore=1")["n1"].up is not down


@pytest.mark.parametrize(
    ("reason", "cordoned"),
    [("DIMM, ask Ida [root@2026-11-21T10:06:50]", True), ("Not responding [slurm@2026-11-21T10:06:50]", False)],
)
def test_a_node_that_somebody_took_down_is_cordoned(reason: str, cordoned: bool) -> None:
    """No plan writes over that reason, or gives the node back; Slurm's own reason ends by itself."""
    assert parse_nodes(f"NodeName=n1 State=DOWN ThreadsPerCore=1 Reason={reason}")["n1"].cordoned is cordoned


def test_a_task_of_an_array_and_a_part_of_a_heterogeneous_job_are_known() -> None:
    """Also task 0; what is left of an array has no task yet, and no command of ours names all of it."""
    rows = [OLD | {"array_job_id": 41, "array_task_id": task} for task in (0, None)]
    assert [job(row).target for row in [OLD, *rows]] == ["41", "41_0", "41_-1"]
    parts = [OLD | {"het_job_id": 40, "het_job_offset": offset} for offset in (0, 1)]
    assert [job(row).leader for row in parts] == [0, 40]


def test_lists_of_nodes_are_expanded() -> None:
    """Ranges keep their leading zeros; parts may be mixed."""
    assert expand("trn-[08-10,12],login") == ("trn-08", "trn-09", "trn-10", "trn-12", "login")
    assert expand("r[1-2]n[08,09]") == ("r1n08", "r1n09", "r2n08", "r2n09")
    with pytest.raises(BadInput):
        expand("n[1-2")
    with pytest.raises(BadInput):
        expand("n[1-999999999]")
    assert expand("") == ()


@pytest.mark.parametrize("name", ["--all", "a b", "a,b", "n[1-3]", "", "x" * 300, "n;reboot", "ALL\n"])
def test_what_is_no_name_of_a_node_is_refused(name: str) -> None:
    """A name goes to a command line: no option, no list, no space."""
    with pytest.raises(BadInput):
        valid_node(name)


def test_ranks_are_mapped_only_where_slurm_knows() -> None:
    """Tasks in block order; one task on a node with eight GPUs is a launcher of its own."""
    nodes = ("a", "b")
    assert rank_map(JobRecord(1, "RUNNING", nodes=nodes, tasks=4)) == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert rank_map(JobRecord(1, "RUNNING", nodes=nodes, tasks=2)) == {0: "a", 1: "b"}
    assert rank_map(JobRecord(1, "RUNNING", nodes=nodes, tasks=2, gpus_per_node=8)) == {}
    assert rank_map(JobRecord(1, "RUNNING", nodes=nodes, tasks=3)) == {}


def test_a_node_that_is_silent_has_a_reason() -> None:
    """The line that is shipped for a node says why it is out, also before Slurm gives a reason."""
    node = parse_nodes("NodeName=n1 NodeAddr=n1 State=MIXED* RealMemory=1000 ThreadsPerCore=1")["n1"]
    assert node.record == "NodeName=n1 State=MIXED* Reason=Not responding"
    assert parse_nodes(NODE)["trn-08"].record.startswith("NodeName=trn-08 State=IDLE+DRAIN Reason=see Ida")

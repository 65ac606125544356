"""Ranks and nodes as launchers name them."""

import io
from dataclasses import replace

from diagnoser.localize import ranks
from diagnoser.model import Evidence, Facts, Job, Severity
from tests.rule_files import ANALYZER, log

TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "Failures:",
    "[1]:",
    "  time      : 2026-02-03_10:00:05",
    "  host      : n12",
    "  rank      : 9 (local_rank: 1)",
    "  exitcode  : -15 (pid: 702)",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-02-03_10:00:04",
    "  host      : n12",
    "  rank      : 8 (local_rank: 0)",
    "  exitcode  : 1 (pid: 701)",
)
UNCAUGHT = (
    "Traceback (most recent call last):",
    '  File "/srv/fit.py", line 3, in <module>',
    "    fit(rows['text'])",
    "KeyError: 'text'",
)


def place(
    evidence: Evidence, at: int, rank: int | None = None, node: str | None = None, alone: bool = True
) -> tuple[int | None, str | None]:
    spot = ranks.place(ranks.read(evidence, Facts()), evidence.lines, at, rank, node, alone=alone)
    return spot.rank, spot.node


def test_the_elastic_table_names_rank_and_host() -> None:
    """A failure whose line names no rank is placed where torchelastic saw the first failure."""
    assert place(log("KeyError: 'x'", *TABLE), 0) == (8, "n12")


def test_the_table_is_not_asked_when_other_ranks_tell_of_it_too() -> None:
    """What several ranks print is not pinned on the launcher's first one."""
    assert place(log("KeyError: 'x'", *TABLE), 0, alone=False) == (None, "n12")


def test_a_killed_child_is_found_by_its_pid() -> None:
    """The agent's line about a child is placed by the table entry of the same process."""
    child = "failed (exitcode: -9) local_rank: 0 (pid: 701) of binary: /bin/python"
    assert place(log(child, *TABLE), 0) == (8, "n12")


def test_a_lone_agent_names_local_ranks() -> None:
    """Without a table the only agent's local rank is the rank."""
    assert place(log("failed (exitcode: -11) local_rank: 3 (pid: 5) of binary: python"), 0)[0] == 3


def test_an_uncaught_exception_is_of_the_rank_that_aborted() -> None:
    """The traceback that another rank prints right behind it says nothing of the process that aborted."""
    lines = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 32 vs 16.",
        "Traceback (most recent call last):",
        "RuntimeError: Connection reset by peer",
        "srun: error: gpu-04: task 3: Aborted",
        "srun: error: gpu-03: task 2: Exited with exit code 1",
    )
    assert place(log(*lines, ranks={2: 2, 3: 2}), 1, alone=False) == (3, "gpu-04")
    assert place(log(*lines[:4], ranks={2: 2, 3: 2}), 1, alone=False)[0] is None


def test_srun_places_tasks_only_where_they_are_ranks() -> None:
    """`task 5` is rank 5 under srun alone, and an agent where torchrun starts the ranks."""
    killed = "srun: error: n03: task 5: Killed"
    assert place(log(killed), 0, rank=5, node="n03") == (5, "n03")
    assert place(log("torch/distributed/elastic/agent/server/api.py x", killed), 1, rank=5, node="n03") == (None, "n03")


def test_the_step_daemon_names_the_node_and_srun_the_task() -> None:
    """The OOM notice comes from the node's daemon under another rank's label: the killed task is the rank."""
    evidence = log(
        "slurmstepd-n07: error: Detected 1 oom-kill event(s) in StepId=9.0.",
        "srun: error: n07: task 5: Out Of Memory",
        "srun: error: n02: tasks 0-1: Terminated",
    )
    labelled = replace(evidence, lines=(replace(evidence.lines[0], rank=4), *evidence.lines[1:]))
    assert place(labelled, 0, rank=4) == (5, "n07")


def test_announced_ranks_give_nodes() -> None:
    """`rank N on node H` and NCCL banners map ranks to nodes; registration wins over both."""
    evidence = log("rank 3 on node n04 (pid 1)", "n05:10:11 [0] NCCL INFO comm 0x1 rank 4 nranks 8 cudaDev 0")
    assert ranks.read(evidence, Facts()).nodes == {3: "n04", 4: "n05"}
    assert ranks.read(evidence, Facts(Job("j", rank_nodes={3: "n99"}))).nodes[3] == "n99"


def test_the_message_names_its_rank() -> None:
    """A rank in the line, or in the lines that belong to its message, is read."""
    assert place(log("[1,12]<stdout>:gpu fault"), 0)[0] == 12
    assert place(log("RuntimeError: unfinished reduction", "unused parameters for rank 3: a, b"), 0)[0] == 3


def test_nothing_shown_is_nothing_said() -> None:
    """A log without ranks and nodes gives neither."""
    assert place(log("KeyError: 'x'"), 0) == (None, None)


def test_task_lists_are_bounded() -> None:
    """An absurd task range does not make a list of billions."""
    (exit_,) = ranks.read(log("srun: error: n01: tasks 0,2-9999999999: Killed"), Facts()).exits
    assert exit_.ranks[:2] == (0, 2) and len(exit_.ranks) <= 100_002


def test_what_was_said_about_other_hosts_places_nobody() -> None:
    """The log told where ranks ran, and then quite other hosts report the end: ranks are where those say they were."""
    said = ["rank 0 on node old-1", "rank 1 on node old-2", "step 9", "boom"]
    other = log(*said, "srun: error: new-7: task 1: Exited with exit code 1")
    assert ranks.read(other, Facts(Job("j")), at=3).nodes == {1: "new-7"}
    assert ranks.read(other, Facts(Job("j")), at=3).only_node == "new-7"
    same = log(*said, "srun: error: OLD-2.cluster.example: task 1: Exited with exit code 1")
    assert ranks.read(same, Facts(Job("j")), at=3).nodes == {0: "old-1", 1: "old-2"}
    assert ranks.read(log(*said), Facts(Job("j")), at=3).nodes == {0: "old-1", 1: "old-2"}


def test_mails_messages_and_parallel_shells_name_the_host() -> None:
    """A scheduler's mail, Ray's own words and a host before each line place a failure; a counter before it does not."""
    mail = log("PBS Job Id: 71.head", "Exec host:  n22/5+n22/6", "job deleted", "job preempted (node failure)")
    assert place(mail, 3)[1] == "n22"
    killed = "(raylet) 2 Workers killed due to memory pressure (OOM) at node (ID: 64642ccb6a, IP: 10.3.0.7) lately"
    assert place(log(killed), 0)[1] == "10.3.0.7"
    shell = log("n07: FileNotFoundError: [Errno 2] x", "n08:   train = build(0)", "n07:   File 'a.py'")
    assert place(shell, 0)[1] == "n07"
    assert place(log("step7: FileNotFoundError: x", "step8: going on"), 0)[1] is None


def test_a_message_that_names_its_rank_and_node_is_believed() -> None:
    """The line after the failure says on which node the rank is."""
    said = log("Unexpected result nan on rank 3 at iteration 3", "Rank 3, node n58, device 3: rerun gives nan as well")
    assert place(said, 0) == (3, "n58")
    behind = log("old-1:77:78 [0] NCCL INFO Bootstrap : Using eth0", *(line.body for line in said.lines))
    assert ranks.read(behind, Facts(), at=1).nodes == {3: "n58"}


def test_a_silent_node_of_the_jobs_list_is_named() -> None:
    """A node that printed nothing is known from the job's list of nodes; two of them in a line are no answer."""
    start = "Nodes: gpu-[01-03,08]  master: gpu-01:29500"
    assert place(log(start, "ssh: connect to host gpu-08 port 22: No route to host"), 1) == (None, "gpu-08")
    assert place(log(start, "no route from gpu-01 to gpu-08"), 1) == (None, None)
    assert place(log(start, "no route to gpu-09"), 1) == (None, None)


def test_the_only_node_that_prints_is_not_the_jobs_only_node() -> None:
    """Where the job's list has more nodes, what one of them printed does not place a failure on it."""
    banner = "gpu-01:77:78 [0] NCCL INFO Bootstrap : Using eth0"
    assert place(log(banner, "KeyError: 'x'"), 1) == (None, "gpu-01")
    assert place(log("Nodes: gpu-[01-02]", banner, "KeyError: 'x'"), 2) == (None, None)


def test_a_pod_that_runs_one_process_tells_its_rank() -> None:
    """The number among the job's pods is the rank, unless the log counts more ranks than pods or a launcher runs."""
    said = [f"[pod/llm-worker-{pod}/main] {text}" for pod, text in ((0, "step 1"), (1, "KeyError: 'x'"))]
    assert placed_by_compressor(*said, at=1) == 1
    led = ["[pod/llm-master-0/main] step 1", *said]
    assert placed_by_compressor(*led, at=2) == 2
    assert placed_by_compressor(*said, "[pod/llm-worker-0/main] world_size=16", at=1) is None
    assert placed_by_compressor(*said, "[pod/llm-worker-0/main] [rank5]: boom", at=1) is None
    assert placed_by_compressor(*said, "[pod/llm-worker-0/main] torchrun --nproc-per-node 8 a.py", at=1) is None
    assert placed_by_compressor(said[1], at=0) is None


def placed_by_compressor(*texts: str, at: int) -> int | None:
    """The rank of a line as the compressor splits it."""
    evidence = ANALYZER.read(io.BytesIO("\n".join(texts).encode()), lambda _: None).evidence
    return place(evidence, at)[0]


def test_another_loggers_line_is_no_part_of_a_message() -> None:
    """What a logger writes behind an exception may be of any rank; the launcher's report tells whose it was."""
    other = "[2026-02-03 10:00:05,123][trainer][INFO] - [rank 0] step 9"
    ended = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"
    assert place(log("KeyError: 'x'", other), 0) == (None, None)
    assert place(log("KeyError: 'x'", other, ended, "with errorcode 1."), 0)[0] == 1


def test_the_process_table_names_the_rank_of_who_speaks() -> None:
    """Ray Train lists its workers once; later their heads, and reports about them, name the process only."""
    table = [f"- (ip=10.1.2.3, pid={771 + rank}) world_rank={rank}, local_rank={rank}" for rank in (0, 1)]
    raised = "(RayTrainWorker pid=772, ip=10.1.2.3) KeyError: 'x'"
    said = [*table, raised, "(raylet) A worker died. Worker PID: 771"]
    assert [placed_by_compressor(*said, at=at) for at in (2, 3)] == [1, 0]


def test_a_process_of_two_ranks_names_none() -> None:
    """Its number was given twice: on other nodes, or in other launches."""
    table = ("- (ip=10.1.2.3, pid=771) world_rank=0", "- (ip=10.1.2.4, pid=771) world_rank=1")
    assert place(log(*table, "(RayTrainWorker pid=771) KeyError: 'x'"), 2)[0] is None


def test_the_head_of_a_copied_traceback_names_its_rank() -> None:
    """However long the traceback is."""
    frames = [line for number in range(9) for line in (f'  File "a.py", line {number}, in f', "    f()")]
    evidence = log("[Rank 1 Error Snippet]:", "Traceback (most recent call last):", *frames, "KeyError: 'x'")
    assert place(evidence, len(evidence.lines) - 1)[0] == 1


def test_a_pods_dump_has_the_rank_of_its_pod() -> None:
    """faulthandler prints no rank: the head that the cluster puts in front tells it."""
    heads = [f"[pod/train-worker-{pod}/trainer] " for pod in (0, 1)]
    dump = ("Fatal Python error: Segmentation fault", "", "Current thread 0x00007f2b (most recent call first):")
    said = [f"{head}step {step} loss 2.0" for step in (1, 2) for head in heads]
    assert placed_by_compressor(*said, *(heads[1] + text for text in dump), at=4) == 1


def test_a_kernels_line_is_of_the_rank_that_complains_next_on_its_node() -> None:
    """The rank of another node that complains first is not asked."""
    lines = "cn17 kernel: NVRM: Xid (PCI:0000:5d:00): 48, DBE", "ERROR lost a peer", "ERROR CUDA error"
    evidence = log(*lines)
    kernel, other, own = evidence.lines
    found = (
        kernel,
        replace(other, rank=5, node="cn18", severity=Severity.ERROR),
        replace(own, rank=2, node="cn17", severity=Severity.ERROR),
    )
    evidence = replace(evidence, lines=found)
    assert ranks.place(ranks.read(evidence, Facts()), found, 0, None, "cn17", alone=True).rank == 2


def test_a_rank_runs_on_the_only_host_that_it_states() -> None:
    """One that states several hosts may speak of its peers."""
    evidence = log("ready, host=cn17", "ready, host=cn18", "peer host=cn17", ranks={0: 1, 1: 2, 2: 2})
    assert ranks.read(evidence, Facts()).nodes == {1: "cn17"}


def test_a_rank_runs_on_the_machine_in_the_heads_of_its_lines() -> None:
    """A name that no machine has by its form counts only beside others of its kind."""
    heads = log("[r12-n03] step 1", "[r12-n07] step 1", "KeyError: 'x'", ranks={0: 0, 1: 1, 2: 1})
    assert place(heads, 2, rank=1) == (1, "r12-n07")
    assert ranks.read(log("[resnet-50] step 1", ranks={0: 0}), Facts()).nodes == {}


def test_a_copied_traceback_is_of_the_process_above_it() -> None:
    """A driver prints the exception of an actor: the rank is that of the actor, which said once who it is."""
    texts = (
        "(Worker pid=71) worker 0 of 2 ready",
        "(Worker pid=72) worker 1 of 2 ready",
        "ActorError(KeyError): step() (pid=72, ip=10.0.0.3)",
        '  File "/srv/fit.py", line 3, in step',
        "KeyError: 'x'",
    )
    assert placed_by_compressor(*texts, at=4) == 1


def test_a_numbered_actor_is_the_rank() -> None:
    """The number counts the ranks where every actor has one."""
    texts = "(Fit[0] pid=71) step 1", "(Fit[1] pid=90) step 1", "(Fit[1] pid=90) KeyError: 'x'"
    assert placed_by_compressor(*texts, at=2) == 1


def test_a_job_of_one_rank_fails_at_rank_0() -> None:
    """A launcher that says that it starts one says the rank; a second size may be that of the job."""
    assert place(log("starting world_size=1", "KeyError: 'x'"), 1)[0] == 0
    assert place(log("starting world_size=1", "group world_size=2", "KeyError: 'x'"), 2)[0] is None


def test_the_machine_in_front_of_all_lines_is_the_node() -> None:
    """Behind a time it tells no processes apart, and is still where the run ran."""
    text = "".join(f"Jan  2 03:04:0{second} cn017: {body}\n" for second, body in enumerate(UNCAUGHT))
    root = ANALYZER.analyze(ANALYZER.read(io.BytesIO(text.encode())), Facts()).root_cause
    assert root is not None
    assert root.node == "cn017"


def test_who_tells_of_a_peer_does_not_tell_where_it_ran() -> None:
    """The coordinator names the task that it lost: its own host is no place of that one."""
    task = "The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:2"
    steps = "".join(f"cn0{number}: step 5 loss 0.9\n" for number in (1, 2, 3))
    text = f"{steps}cn01: E0102 03:04:05.123456 771 service.cc:571] {task}\ncn01: E0102 03:04:06.123456 771 ending\n"
    root = ANALYZER.analyze(ANALYZER.read(io.BytesIO(text.encode())), Facts()).root_cause
    assert root is not None
    assert (root.rank, root.node) == (2, None)


def test_the_only_silent_rank_of_a_known_size_is_told() -> None:
    """All others complained of it; of an unknown size, or with two silent ones, nothing is told."""
    known, unknown = log("dist_world_size=3 local_world_size=1"), log("step 1")
    assert ranks.only_silent(known, {0, 2}) == 1
    assert ranks.only_silent(known, {0}) is None and ranks.only_silent(unknown, {0, 2}) is None
    assert ranks.only_silent(known, ()) is None


def test_a_copied_traceback_is_of_the_rank_that_its_heading_names() -> None:
    """A checkpoint's error on one rank is raised on all of them."""
    copied = ["Traceback (most recent call last): (RANK 3)", '  File "/srv/io.py", line 7, in write', "OSError: full"]
    assert place(log(*copied, ranks=dict.fromkeys(range(3), 0)), 2, alone=False)[0] == 3

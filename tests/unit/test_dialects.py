"""Each dialect reads its own examples, in lines and in blurred lines alike."""

import re
from itertools import islice
from pathlib import Path

import pytest

from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import body_of, carried_blur, clean, strip_blurred
from diagnoser.dialects import DIALECTS, Dialect, Example, PrefixStripping, mentions, node_lists, rank_tables, runtimes
from diagnoser.dialects.mentions import Tells
from diagnoser.dialects.replicas import pod_ranks

EXAMPLES = [(dialect, example) for dialect in DIALECTS for example in dialect.examples]


@pytest.mark.parametrize(("dialect", "example"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_a_dialect_reads_its_examples(dialect: Dialect, example: Example) -> None:
    """Body and fields are those that the example states, and the blurred line gives the blur of the same body."""
    _, blur_of_body = strip_blurred(blurred(example.line.encode()))
    if dialect.peeled is PrefixStripping.CARRIED:
        assert carried_blur(blur_of_body).strip() == blurred(example.body.encode()).strip()
        return
    prefix, body = body_of(example.line.encode())
    assert body.decode() == example.body
    fields = example.fields
    assert prefix.rank == int(fields.get("rank", -1))
    assert (prefix.task, prefix.local) == (int(fields.get("task", -1)), int(fields.get("local", -1)))
    assert prefix.node == fields.get("node", fields.get("host", fields.get("ip", "")))
    assert prefix.pod == fields.get("pod", "")
    assert blur_of_body.strip() == blurred(example.body.encode()).strip()


def test_a_pod_is_no_node() -> None:
    """The name of a pod tells who speaks and nothing about the machine."""
    for line in (b"[pod/llm-worker-3/trainer] boom", b"llm-worker-3 boom"):
        prefix, body = body_of(line)
        assert (prefix.pod, prefix.node, body) == ("llm-worker-3", "", b"boom")


@pytest.mark.parametrize(
    ("pods", "ranks"),
    [
        (["llm-worker-0", "llm-worker-2"], {"llm-worker-0": 0, "llm-worker-2": 2}),
        (["llm-master-0", "llm-worker-0"], {"llm-master-0": 0, "llm-worker-0": 1}),
        (["run-0-x7k2p", "run-1-bb4cd"], {"run-0-x7k2p": 0, "run-1-bb4cd": 1}),
        (["run-workers-0-0-x7k2p", "run-workers-0-1-bb4cd"], {"run-workers-0-0-x7k2p": 0, "run-workers-0-1-bb4cd": 1}),
        (["llm-worker-0"], {}),
        (["llm-worker-0", "other-worker-1"], {}),
        (["llm-7d9f8b6c5d-x7k2p", "llm-7d9f8b6c5d-abcde"], {}),
    ],
)
def test_pods_of_one_set_are_numbered(pods: list[str], ranks: dict[str, int]) -> None:
    """Workers of one set in order, behind their leader; other names tell nothing."""
    assert pod_ranks(pods) == ranks


@pytest.mark.parametrize("mention", mentions.MENTIONS, ids=lambda mention: mention.examples[0][1])
def test_a_mention_reads_its_examples(mention: mentions.Mention) -> None:
    """A message tells the rank, node or host that its examples state."""
    for line, told in mention.examples:
        found = mention.pattern.search(line)
        assert found is not None and found[1] == told
        assert told in mentions.named(mention.tells, line)


def test_the_scheduler_of_kubernetes_places_a_pod() -> None:
    """Its event names pod and node; another line names none."""
    event = "Normal  Scheduled  2m  default-scheduler  Successfully assigned default/llm-worker-1 to gpu-017"
    assert mentions.assigned_pod(event) == ("llm-worker-1", "gpu-017")
    assert mentions.assigned_pod("assigned llm-worker-1 to gpu-017") is None


@pytest.mark.parametrize(
    ("listed", "nodes"),
    [
        ("gpu-[01-03,08],login", ["gpu-01", "gpu-02", "gpu-03", "gpu-08", "login"]),
        ("r[1-2]n[08,09]-ib", ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]),
        ("n7", ["n7"]),
        ("", []),
    ],
)
def test_a_list_of_nodes_is_expanded(listed: str, nodes: list[str]) -> None:
    """Ranges keep their leading zeros; a name may have several brackets, a list several names."""
    assert list(node_lists.expanded(listed)) == nodes


@pytest.mark.parametrize("listed", ["n[1-2", "n]1[", "n[1-]", "n[,]", "[1-2][1-2][1-2][1-2][1-2]", "a,,b", "a,[-1]"])
def test_what_is_no_list_of_nodes_is_refused(listed: str) -> None:
    """Its syntax is an error of its own, never half a list."""
    with pytest.raises(ValueError, match=r"list|range|brackets"):
        list(node_lists.expanded(listed))


def test_a_list_of_a_billion_nodes_is_read_as_far_as_it_is_asked_for() -> None:
    """What is not taken is never built, and a text adds a bounded number of names."""
    listed = "r[0-99999]n[1-1000000000]"
    assert list(islice(node_lists.expanded(listed), 2)) == ["r0n1", "r0n2"]
    assert len(node_lists.listed_nodes(f"nodes={listed}")) == node_lists.NAMES_MAX


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("Nodes: gpu-[01-03,08]  master: gpu-01:29500", ["gpu-01", "gpu-02", "gpu-03", "gpu-08"]),
        ("job 9 (ctx) on 2 nodes: gpu-[05,07]", ["gpu-05", "gpu-07"]),
        ("+ mpirun -np 16 -H gpu-1:8,gpu-2:8 python train.py", ["gpu-1", "gpu-2"]),
        ("cmd = pdsh -S -f 1024 -w n1,n2 export PATH", ["n1", "n2"]),
        ("    exec_host = b4/0+b5/0", ["b4", "b5"]),
        ('LSB_MCPU_HOSTS="b12 8 b13 8"', ["b12", "b13"]),
        ("[launch.py:146:main] WORLD INFO DICT: {'n-1': [0, 1], 'n-2': [0, 1]}", ["n-1", "n-2"]),
        ("nodes=2 hosts: localhost, loss: nan", []),
    ],
)
def test_lists_of_nodes_are_found_in_lines(line: str, nodes: list[str]) -> None:
    """Lists of Slurm, Open MPI, pdsh, PBS, LSF and DeepSpeed name the nodes of the job."""
    assert node_lists.listed_nodes(line) == nodes


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            rb'{"log":"  File \"a.py\", line 3\n","stream":"stderr","time":"2026-01-02T03:04:05.123456789Z"}',
            b'2026-01-02T03:04:05.123456789Z stderr F   File "a.py", line 3',
        ),
        (
            rb'{"log":"half","stream":"stdout","time":"2026-01-02T03:04:05.1234567Z"}',
            b"2026-01-02T03:04:05.1234567Z stdout P half",
        ),
        (
            rb'{"log": "KeyError: 1\n", "stream": "stderr", "time": "2026-01-02T03:04:05.123456789Z"}',
            b"2026-01-02T03:04:05.123456789Z stderr F KeyError: 1",
        ),
        (rb'{"log":"x\n","stream":"stderr"}', rb'{"log":"x\n","stream":"stderr"}'),
        (rb'{"log":"cut', rb'{"log":"cut'),
        (rb'{"log":{"a":1},"loss":3}', rb'{"log":{"a":1},"loss":3}'),
    ],
)
def test_dockers_records_are_opened(record: bytes, line: bytes) -> None:
    """A record of the JSON log driver reads like a line of the container runtime; anything else stays as it came."""
    assert clean(record + b"\nnext\n").lines == [line, b"next"]


def test_the_process_of_a_rank_is_read() -> None:
    """A line that names both tells which process runs the rank; one that names two processes tells nothing."""
    assert mentions.process_rank("- (ip=10.1.2.3, pid=812) world_rank=1, local_rank=1, node_rank=0") == (812, 1)
    assert mentions.process_rank("Global rank 3 (PID 771) exited with code 1") == (771, 3)
    assert mentions.process_rank("pid=1, pid=2 world_rank=0") is None
    assert mentions.process_rank("pid=1 local_rank=0") is None


def test_addresses_of_nodes_are_read() -> None:
    """From NCCL's bootstrap, and from tables with the address on either side."""
    nccl = "trn-4:811:902 [0] NCCL INFO Bootstrap : Using [0]eth0:10.1.2.4<0>"
    assert mentions.node_addresses(nccl) == [("10.1.2.4", "trn-4")]
    assert ("10.1.2.5", "trn-5") in mentions.node_addresses("trn-5 (10.1.2.5) joined")
    assert mentions.node_addresses("step 3 of 10") == []


def test_no_pattern_repeats_a_group_possessively() -> None:
    """CPython 3.11 before 3.11.5 (as in Debian 12) matches such a repeat too short; an atomic group is read well."""
    possessive = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    sources = {path: path.read_text() for path in (Path(__file__).parents[2] / "diagnoser").rglob("*.py")}
    assert sources and possessive.search(r"(?:ab)*+")
    assert not [(path.name, found[0]) for path, text in sources.items() for found in possessive.finditer(text)]


@pytest.mark.parametrize("form", rank_tables.FORMS, ids=lambda form: form.examples[0][0])
def test_a_sentence_places_its_ranks(form: rank_tables.PlacementForm) -> None:
    """A line tells the ranks and the node that its examples state."""
    for line, ranks, node in form.examples:
        assert rank_tables.read([line]) == dict.fromkeys(ranks, node)


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        (["rank  host    pid", "0     cn0004  4000", "1     cn0005  4001", "step 3"], {0: "cn0004", 1: "cn0005"}),
        (["| rank | hostname |", "+------+----------+", "| 3    | gpu-07   |"], {3: "gpu-07"}),
        (["node    local_rank  global_rank", "n017    0           5"], {5: "n017"}),
        (["rank 3: layer1.bias, layer2.bias"], {}),
        (["WARNING unused parameters for rank 3: encoder.layer1"], {}),
        (["ranks per node: {'nodes': 2, 'gpus': 8}"], {}),
        (["rank  loss   time", "0     0.31   12.0"], {}),
    ],
)
def test_tables_place_ranks(lines: list[str], nodes: dict[int, str]) -> None:
    """Rows below a header that names a rank and a node do; lists of other things place nobody."""
    assert rank_tables.read(lines) == nodes


@pytest.mark.parametrize(
    ("tells", "line"),
    [
        (Tells.FAILED, "Local process 0 encountered an error: [Errno 5]"),
        (Tells.FAILED, "KeyError: Caught KeyError in DataLoader worker process 0."),
        (Tells.FAILED, "Process 3 exited with code 0"),
        (Tells.FAILED, "rank 2 of 8 is ready, none failed"),
        (Tells.SELF, "Local process index: 1"),
        (Tells.HOST, "Machine: x86_64"),
        (Tells.HOST, "Nodes: gpu-01,gpu-02"),
        (Tells.HOST, "ada@gpu-07:~$ srun -N 4 python train.py"),
        (Tells.HOST, "ada@login-1:~$ python train.py"),
    ],
)
def test_other_processes_and_machines_are_not_mentioned(tells: Tells, line: str) -> None:
    """A loader's worker, a clean end, a local number, an architecture, a list and a login node tell nothing."""
    assert list(mentions.named(tells, line)) == []


def test_what_ray_held_back_is_known_by_its_mark() -> None:
    """With and without the hint that Ray adds once."""
    assert runtimes.repetition("loss 2.0 [repeated 5x across cluster]") == "loss 2.0"
    hint = " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable)"
    assert runtimes.repetition("loss 2.0 [repeated 19x across cluster]" + hint) == "loss 2.0"
    assert runtimes.repetition("repeated 5x across cluster") == ""

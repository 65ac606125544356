"""Records in the digest: text lines of their own, who speaks, and what goes on with them."""

import json
from collections.abc import Callable

import pytest

from diagnoser.compress import Compressor, CompressorLimits, digest
from diagnoser.compress.digest import Digest
from diagnoser.compress.limits import DEFAULT_LIMITS
from diagnoser.model import LineBlock, Mark, Provenance, Severity, Stream

_RAISED = ("Traceback (most recent call last):", '  File "/opt/t.py", line 6, in step', "KeyError: 'labels'")


def read(*lines: str, limits: CompressorLimits = DEFAULT_LIMITS) -> Digest:
    compressor = Compressor(limits=limits)
    compressor.feed(LineBlock(Stream(), "\n".join(lines).encode(), 1))
    return digest(compressor.take())


def of(message: str, rank: int, **fields: object) -> str:
    return json.dumps({"event": message, "level": "info", "rank": rank, "host": f"gpu-{rank}", **fields})


def failed(rank: int) -> str:
    return of("step failed", rank, level="error", exception="\n".join(_RAISED))


def test_a_traceback_in_a_field_is_lines() -> None:
    """Each text line of a record is a line of the evidence, with the number, text, rank and node of the record."""
    evidence = read(of("step", 2), failed(2), of("step", 3)).evidence
    parts = [line for line in evidence.lines if line.number == 2]
    assert [line.body for line in parts] == ["step failed", *_RAISED]
    assert [line.part for line in parts] == [0, 1, 2, 3]
    assert {(line.text, line.rank, line.node, line.severity) for line in parts} == {
        (failed(2), 2, "gpu-2", Severity.ERROR)
    }
    (trace,) = evidence.tracebacks
    assert (trace.exception, trace.message, trace.rank) == ("KeyError", "'labels'", 2)
    assert evidence.lines[trace.raised].part == 3


def test_what_people_view_is_one_line_a_line() -> None:
    """The digest shows a record once, as it was printed."""
    assert [line.text for line in read(of("step", 2), failed(2)).lines] == [of("step", 2), failed(2)]


def test_who_speaks_is_also_known_from_a_prefix() -> None:
    """A launcher's prefix in front of a record, and one within its message, tell the rank."""
    plain = json.dumps({"level": "info", "msg": "[rank5]: joined"})
    first, second = read(f"[rank3]: {json.dumps({'level': 'info', 'msg': 'joined'})}", plain).lines
    assert (first.rank, first.body, second.rank, second.body) == (3, "joined", 5, "joined")


def test_a_process_keeps_its_rank() -> None:
    """A record that states only its process is of the rank that the process stated elsewhere."""
    lines = read(of("step", 3, pid=71), json.dumps({"level": "error", "msg": "boom", "host": "gpu-3", "pid": 71})).lines
    assert [line.rank for line in lines] == [3, 3]


@pytest.mark.parametrize(
    ("units", "ranks"),
    [
        (("train@0", "train@1"), [0, 1]),
        (("serve@8000", "serve@8001"), [-1, -1]),
        (("node@0", "node@1"), [-1, -1]),
        (("train@0", "train@0"), [-1, -1]),
    ],
)
def test_instances_of_a_service_are_ranks_where_they_count_them(units: tuple[str, ...], ranks: list[int]) -> None:
    """What systemd runs as train@0 and train@1 has the ranks 0 and 1; ports, nodes and a single process have none."""
    lines = [json.dumps({"_SYSTEMD_UNIT": f"{unit}.service", "_PID": "7", "MESSAGE": "ready"}) for unit in units]
    assert [line.rank for line in read(*lines).lines] == ranks


_PODS = ("bert-0", "bert-1")
_NODES = ("n-a1", "n-b7")


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        (lambda at: {"kubernetes": {"pod_name": _PODS[at], "host": _NODES[at]}}, _NODES),  # Fluent Bit
        (lambda at: {"kubernetes": {"pod": {"name": _PODS[at]}, "node": {"name": _NODES[at]}}}, _NODES),  # Filebeat
        (lambda at: {"kubernetes": {"pod_name": _PODS[at], "pod_node_name": _NODES[at]}}, _NODES),  # Vector
        (lambda at: {"stream": {"pod": _PODS[at], "node_name": _NODES[at]}}, _NODES),  # Loki
        (lambda at: {"host": _NODES[at], "_container_name": f"bert_{at}"}, _NODES),  # GELF
        (lambda at: {"pod": f"bert-{'xz'[at]}7k2p", "labels": {"job_completion_index": str(at)}}, ("", "")),
        (lambda at: {"container_name": f"/{_PODS[at]}"}, ("", "")),  # the log driver of docker
    ],
)
def test_a_shipper_tells_who_printed_a_line(fields: Callable[[int], dict[str, object]], nodes: tuple[str, str]) -> None:
    """The pod or container is the process, its number or index the rank, and the machine below it the node."""
    lines = [json.dumps({"time": "2026-01-02T03:04:05Z", "message": "ready", **fields(at)}) for at in (1, 0)]
    first, second = read(*lines).lines
    assert ((second.rank, second.node), (first.rank, first.node)) == ((0, nodes[0]), (1, nodes[1]))
    assert first.body.split()[0] == second.body.split()[0] == "ready"


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        ([], [0, 1]),
        ([("bert-0", "world_size=8")], [-1, -1]),
        ([("bert-0", "torchrun --nproc-per-node 4 train.py")], [-1, -1]),
        ([("bert-1", "initialized rank 5"), ("bert-0", "initialized rank 4")], [4, 5]),
        ([("bert-1", "initialized rank 2"), ("bert-1", "initialized rank 3")], [-1, -1]),
    ],
)
def test_a_pod_is_a_rank_where_it_runs_one_process(more: list[tuple[str, str]], ranks: list[int]) -> None:
    """Not where the log counts more ranks, a launcher starts several, or a pod says that it is several."""
    said = [("bert-0", "ready"), ("bert-1", "ready"), *more]
    assert [line.rank for line in read(*(json.dumps({"pod": pod, "msg": text}) for pod, text in said)).lines][
        :2
    ] == ranks


def test_numbers_of_processes_are_ranks_where_they_count_them() -> None:
    """A worker's number in every record is its rank; that of a loader's worker, in some records, is none."""
    of_all = [json.dumps({"level": "info", "worker": at % 2, "msg": "step"}) for at in range(4)]
    assert [line.rank for line in read(*of_all).lines] == [0, 1, 0, 1]
    of_some = [*of_all[:2], *(json.dumps({"level": "info", "msg": f"epoch {at}"}) for at in range(4))]
    assert {line.rank for line in read(*of_some).lines} == {-1}


def _batch(*messages: tuple[str, str, str]) -> str:
    """A batch of OpenTelemetry's. messages: pod, severity, text."""
    resources = []
    for pod, severity, text in messages:
        attributes = [{"key": "k8s.pod.name", "value": {"stringValue": pod}}]
        record = {"severityText": severity, "body": {"stringValue": text}}
        resources.append({"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": [record]}]})
    return json.dumps({"resourceLogs": resources}, separators=(",", ":"))


def test_every_record_of_a_batch_is_a_line() -> None:
    """Each with its own printer and severity, and the number of the line that holds them."""
    batch = _batch(("t-0", "INFO", "step 1"), ("t-1", "ERROR", "\n".join(_RAISED)), ("t-0", "INFO", "step 2"))
    lines = read(batch).evidence.lines
    assert [(line.body, line.rank, line.number) for line in lines] == [
        ("step 1", 0, 1),
        *((text, 1, 1) for text in _RAISED),
        ("step 2", 0, 1),
    ]
    assert [line.part for line in lines] == [0, 1, 2, 3, 4]


def test_the_errors_of_a_batch_are_not_cut_from_its_middle() -> None:
    """A batch that is longer than a line may be loses routine records only."""
    routine = [("t-0", "INFO", f"step {step} {'.' * 400}") for step in range(60)]
    bodies = [line.body for line in read(_batch(*routine[:30], ("t-1", "ERROR", "boom"), *routine[30:])).evidence.lines]
    assert "boom" in bodies
    assert bodies[-1].startswith("step 59")


@pytest.mark.parametrize("head", ["[2026-01-02 03:04:05 TP{}]", "[2026-01-02 03:04:05 DP0 TP{}]"])
def test_lines_below_a_head_with_a_name_are_of_its_process(head: str) -> None:
    """The traceback that follows the head of a record without any prefix is of the process that the head names."""
    lines = [
        f"{head.format(at % 2)} {text}" for text in ("loads weights", "captures graphs", "is ready") for at in range(4)
    ]
    lines += [f"{head.format(1)} hit an exception: {_RAISED[0]}", *_RAISED[1:], f"{head.format(0)} is ready"]
    assert [line.rank for line in read(*lines).lines][-4:] == [1, 1, 1, 0]


def spoken(evidence: Digest) -> list[tuple[int, Severity | None, str]]:
    return [(line.rank, line.severity, line.body) for line in evidence.lines]


def test_lines_below_a_record_are_of_it() -> None:
    """Tracebacks of two ranks, each right below the record that logs it, do not mix; a bare one is of nobody."""
    head = "2026-01-02 03:04:05,123 [rank {0}] {1} train: {2}"
    lines = read(
        head.format(0, "ERROR", "step failed"),
        *_RAISED,
        head.format(1, "ERROR", "step failed"),
        *_RAISED,
        head.format(0, "INFO", "step 8"),
        *_RAISED,
    ).lines
    assert [line.rank for line in lines] == [0] * 4 + [1] * 4 + [0] + [-1] * 3
    assert [line.severity for line in lines] == [Severity.ERROR] * 8 + [Severity.INFO] + [None] * 3


RICH = (
    "[03:04:05] INFO     [rank 2] step 7 loss 2.5                      train.py:60",
    "           ERROR    [rank 2] step failed                          train.py:64",
    "                    Traceback (most recent call last):                       ",
    '                      File "/opt/t.py", line 6, in step                      ',
    "                        raise KeyError('no labels for the                    ",
    "                    shards')                                                 ",
    "                    KeyError: 'no labels for the shards'                     ",
)


def test_columns_of_rich_are_taken_off() -> None:
    """The message is what stands in its column; what had no room there is put back behind the line before."""
    evidence = read(*RICH).evidence
    assert [line.body for line in evidence.lines] == [
        "step 7 loss 2.5",
        "step failed",
        "Traceback (most recent call last):",
        '  File "/opt/t.py", line 6, in step',
        "    raise KeyError('no labels for the shards')",
        "",
        "KeyError: 'no labels for the shards'",
    ]
    assert {line.rank for line in evidence.lines} == {2}
    assert [trace.message for trace in evidence.tracebacks] == ["'no labels for the shards'"]


def test_boxes_of_rich_are_tracebacks() -> None:
    """The box that rich draws around a traceback reads as Python prints it."""
    evidence = read(
        "╭──────────────── Traceback (most recent call last) ────────────────╮",
        "│ /opt/t.py:6 in step                                               │",
        "│                                                                   │",
        "│   5 │   try:                                                      │",
        "│ ❱ 6 │   │   batch['labels']                                       │",
        "╰───────────────────────────────────────────────────────────────────╯",
        "KeyError: 'labels'",
        "│ a table │ of results │",
    ).evidence
    (trace,) = evidence.tracebacks
    assert (trace.exception, trace.frames) == ("KeyError", ('File "/opt/t.py", line 6, in step',))
    assert evidence.lines[4].body == "    batch['labels']"
    assert evidence.lines[7].body == "│ a table │ of results │"


@pytest.mark.parametrize(
    "error",
    [
        '{"level": 50, "msg": "boom", "n": 7}',
        '{"levelno": 40, "message": "boom", "n": 7}',
        '{"level": "crit", "msg": "boom", "n": 7}',
        "time=7 level=err msg=boom",
        "2026-01-02 03:04:05.6: E external/xla/step.cc:7] boom",
        f"w7~ {_RAISED[1].replace('  File', 'File')}",
    ],
)
def test_errors_are_kept_whatever_their_words(error: str) -> None:
    """A line that its program calls an error stays verbatim in the middle of a long log, and so does a frame behind an
    unknown name."""
    routine = ['{"level": 30, "msg": "step", "n": 7}'] * 6000
    kept = read(*routine, error, *routine).lines
    assert [line.mark >= Mark.SEVERITY for line in kept if line.number == 6001] == [True]


def test_progress_is_read_by_the_names_of_fields() -> None:
    """Step, loss and rank are fields, whatever a framework calls them; parts that are not of training are none."""
    points = read(
        of("m", 1, update=3, train_loss=0.5),
        of("m", 2, metrics={"val_loss": 9.0, "loss/train": 0.25}, global_step=4),
        json.dumps({"trainer/global_step": 5, "train/loss": float("nan"), "loss_scale": 2.0}),
        'level=info msg=m iter=6 loss=0.125 rank=3 grad_norm="1.5"',
    ).progress
    assert [(point.rank, point.step) for point in points] == [(1, 3), (2, 4), (-1, 5), (3, 6)]
    assert [str(point.loss) for point in points] == ["0.5", "0.25", "nan", "0.125"]


def test_a_stream_of_a_node_has_no_records() -> None:
    """What a machine's own log says is no message of a job, however it is written: nothing is opened there."""
    compressor = Compressor()
    stream = Stream("kernel", node="gpu-1", provenance=Provenance.NODE)
    compressor.feed(LineBlock(stream, failed(2).encode(), 1))
    (line,) = digest(compressor.take()).evidence.lines
    assert (line.body, line.rank, line.severity) == (failed(2), -1, None)


def test_a_wrapping_is_taken_off_behind_a_prefix_that_was_learned() -> None:
    """Cells of a table stand behind the name of the machine that each row begins with."""
    said = ("3 shards are here", "bout 1 of 9", "bout 2 of 9", "bout 3 of 9", "kept lap_3")
    lines = [f'1795885864,xq{host},0,stderr,"{text}"' for text in said for host in (31, 45, 52)]
    lines += ['1795885864,xq45,0,stderr,"{}"'.format(line.replace('"', '""')) for line in _RAISED]
    assert [line.body for line in read(*lines).evidence.lines[-3:]] == list(_RAISED)

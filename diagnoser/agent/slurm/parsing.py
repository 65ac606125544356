"""Reads what Slurm says about jobs and nodes into records. Pure.

Jobs are read from ``squeue --json``, because the text forms let a job's name or comment pass for other fields.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

import orjson

from diagnoser.agent.nodes import NodeRecord
from diagnoser.dialects import node_lists
from diagnoser.model import job_contract
from diagnoser.model.errors import BadInput

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
NODES_LIMIT = 100_000
REASON_LENGTH = 200
RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
REQUEUEING = frozenset({"COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
GONE = "GONE"
"""Our own word for a job that the controller has forgotten and the accounting does not know."""
FINISHED = frozenset({GONE, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY",
                      "BOOT_FAIL", "DEADLINE"})  # fmt: skip
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")
_CONTRACT = re.compile(r'\{\s{0,9}"diagnoser"')
"""How ``{"diagnoser": {...}}`` begins."""
_SLURM_S = re.compile(r"Not responding|Node unexpectedly rebooted|none\b|\s*$", re.IGNORECASE)
"""Slurm's own reasons for a node that is down, which end by themselves, or none at all."""
_WHEN = re.compile(r" \[[^\[\]]*@[^\[\]]*\]$")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. restarts: launches after the first one. output: path of the batch script's standard output.

    pattern: the same, as the user wrote it. code, signal: how the batch script ended. gpus_per_node: 0 when not known.
    minutes: time limit, 0 for none. submitted: when this launch was put into the queue.
    wait_reason: why it waits there, in Slurm's word; "" while it does not. log_of: number of the job that the lines of
    ``output`` are sent for, where several write to it, as nobody can tell whose a line is; 0: this one. arguments: of
    its script. array, task: number of the array that it is a task of, 0 for none, and which one, -1 before it has its
    own record. leader: number of the heterogeneous job that it is a later component of, 0 for none. eligible: since
    when nothing that it depends on keeps it from its start. dependency: on other jobs, as Slurm writes it.
    """

    number: int
    state: str
    completing: bool = False
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    held: bool = False
    code: int = 0
    signal: int = 0
    started: float = 0.0
    ended: float = 0.0
    name: str = ""
    user: str = ""
    uid: int = -1
    gid: int = -1
    output: str = ""
    pattern: str = ""
    folder: str = ""
    comment: str = ""
    tasks: int = 0
    gpus_per_node: int = 0
    node_count: int = 0
    minutes: int = 0
    gres: str = ""
    batch: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    submitted: float = 0.0
    wait_reason: str = ""
    log_of: int = 0
    arguments: tuple[str, ...] = ()
    array: int = 0
    task: int = -1
    leader: int = 0
    eligible: float = 0.0
    dependency: str = ""

    @property
    def target(self) -> str:
        """Names it in Slurm's commands: the number of an array's last task is that of the whole array."""
        return f"{self.array}_{self.task}" if self.array else str(self.number)

    @property
    def is_suspended(self) -> bool:
        return self.state in SUSPENDED

    @property
    def log_key(self) -> str:
        """Names the log file: one of another user is not read."""
        return f"{self.uid}:{self.output}"

    @property
    def attempt(self) -> int:
        return self.restarts + 1

    @property
    def tenant(self) -> str:
        """The user alone: where no accounting enforces associations, a job may name any account."""
        if self.user:
            return self.user
        if self.uid < 0:
            return ""
        return f"uid {self.uid}"

    def has_launch(self, attempt: int) -> bool:
        """Tell whether this launch, or a later one, can still be seen, and whose it is."""
        if self.uid < 0:
            return False
        return self.attempt >= attempt

    def replaces(self, job: "JobRecord | None", number: int) -> bool:
        """Tell whether it can be the copy of the job of this number: another one, of the same user. job: None where
        Slurm has forgotten it."""
        if self.number == number:
            return False
        return job is None or self.uid == job.uid

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def runs(self) -> bool:
        return self.state in RUNS

    @property
    def has_begun(self) -> bool:
        """Whether it runs or ran on nodes that are known."""
        if not self.nodes:
            return False
        return self.finished or self.runs

    @property
    def is_out_of_way(self) -> bool:
        """Whether it has ended, and its nodes are clean."""
        return self.finished and not self.completing

    def waits_for_launch(self, attempt: int) -> bool:
        """Tell whether it waits for the start of this launch, or of a later one."""
        if self.state != "PENDING":
            return False
        return self.attempt >= attempt

    def takes_nodes(self, attempt: int) -> bool:
        """Tell whether it runs, or will: it waits for the start of this launch or of a later one."""
        return self.runs or self.waits_for_launch(attempt)

    def goes_on_for(self, job: "JobRecord") -> bool:
        """Tell whether it is the next link of a chain (``--dependency=afterany``): the same job to its user, queued
        while that one ran, and free to start since that ended. Slurm forgets the dependency then."""
        if (self.uid, self.name, self.folder) != (job.uid, job.name, job.folder):
            return False
        if self.array and self.array == job.array:
            return False
        return self.takes_nodes(1) and job.finished and self.submitted < job.ended <= self.eligible

    @property
    def requeueing(self) -> bool:
        """Whether the next launch counts already while the one before is still being cleaned up."""
        return self.state in REQUEUEING


def parse_jobs(text: str) -> dict[int, JobRecord]:
    """Jobs by number, of ``squeue --json`` from Slurm 22.05 on. Raises BadInput."""
    try:
        rows = orjson.loads(text)["jobs"]
        jobs = list(map(_job, rows))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"squeue's JSON cannot be read: {type(error).__name__}: {error}") from None
    return {job.number: job for job in jobs}


def parse_account(number: int, text: str) -> JobRecord:
    """Read how a job ended, of ``sacct --parsable2 --format=State,ExitCode``; GONE where sacct does not know it."""
    for line in text.splitlines()[::-1]:  # the last launch is the last line
        state, _, ending = line.partition("|")
        word, ended = state.partition(" ")[0], re.fullmatch(r"(\d+)(?::(?:(\d+)|.*))?", ending)
        if word not in FINISHED:
            continue
        if ended:
            return JobRecord(number, word, code=int(ended[1]), signal=_number(ended[2]))
    return JobRecord(number, GONE)


LOAN = "diagnoser_back_"
"""How the name of a reservation begins that keeps a node for the check of its return."""


def parse_nodes(text: str) -> dict[str, NodeRecord]:
    """Nodes by name, of ``scontrol -o show node``: one node a line."""
    return _by_name(_node(line) for line in text.splitlines() if line.startswith("NodeName="))


def parse_rest_nodes(text: str) -> dict[str, NodeRecord]:
    """The same, of slurmrestd's JSON. Raises BadInput."""
    try:
        return _by_name(map(_rest_node, orjson.loads(text)["nodes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"slurmrestd's JSON cannot be read: {type(error).__name__}: {error}") from None


def _by_name(nodes: Iterable[NodeRecord]) -> dict[str, NodeRecord]:
    return {node.name: node for node in nodes}


def parse_reservations(text: str) -> dict[str, tuple[str, ...]]:
    """Name -> nodes, of ``scontrol -o show reservation``. Raises BadInput."""
    prefix = "ReservationName="
    lines = [line for line in text.splitlines() if line.startswith(prefix)]
    return {line.partition(" ")[0].removeprefix(prefix): parse_reservation(line) for line in lines}


def parse_reservation(text: str) -> tuple[str, ...]:
    """Its nodes, of ``scontrol -o show reservation``. Raises BadInput."""
    fields = dict(word.partition("=")[::2] for word in text.split())
    return expand(fields.get("Nodes", "").removeprefix("(null)"))


def expand(hostlist: str) -> tuple[str, ...]:
    """``gpu-[01-03,7],login`` -> all its names, in order. Raises BadInput for what is no list of nodes."""
    try:
        names = tuple(islice(node_lists.expanded(hostlist), NODES_LIMIT + 1))
    except ValueError as error:
        raise BadInput(str(error)) from None
    if len(names) > NODES_LIMIT:
        raise BadInput(f"a list of more than {NODES_LIMIT} nodes")
    return tuple(map(valid_node, names))


def valid_node(name: str) -> str:
    """The name, if it can be one of a node and never an option or a list. Raises BadInput."""
    if not NODE.fullmatch(name):
        raise BadInput(f"{name[:60]!r} cannot be the name of a node")
    return name


def rank_map(job: JobRecord) -> dict[int, str]:
    """Rank -> node for tasks in Slurm's block order; empty when Slurm does not know where the ranks are.

    One task on nodes of several GPUs is a launcher that starts the ranks itself, in an order of its own.
    """
    count = len(job.nodes)
    if job.tasks < 2:
        return {}
    if not count:
        return {}
    on_each, left_over = divmod(job.tasks, count)
    is_launcher = on_each == 1 and job.gpus_per_node > 1
    if left_over:
        return {}
    if is_launcher:
        return {}
    return {rank: job.nodes[rank // on_each] for rank in range(job.tasks)}


def _job(row: Mapping[str, Any]) -> JobRecord:
    states = _words(row["job_state"]) + _words(row.get("state_flags"))
    nodes = expand(_text(row, "nodes"))
    code, signal = _ending(row.get("exit_code"))
    return JobRecord(
        number=_number(row["job_id"]),
        state=next((state for state in states if state != "COMPLETING"), "COMPLETING"),
        completing="COMPLETING" in states,
        restarts=_number(row.get("restart_cnt")),
        nodes=nodes,
        held=_is_zero(row.get("priority")),
        code=code,
        signal=signal,
        started=float(_number(row.get("start_time"))),
        ended=float(_number(row.get("end_time"))),
        name=_text(row, "name"),
        user=_text(row, "user_name"),
        uid=_owner(row, "user_id"),
        gid=_owner(row, "group_id"),
        output=_output(row, nodes),
        pattern=_text(row, "standard_output"),
        folder=_text(row, "current_working_directory"),
        comment=_text(row, "comment"),
        tasks=_number(row.get("tasks")),
        gpus_per_node=_gpus(row),
        node_count=_number(row.get("node_count")),
        minutes=_number(row.get("time_limit")),
        gres=_text(row, "tres_per_node"),
        batch=bool(row.get("batch_flag", True)),
        labels=_labels(row),
        submitted=float(_number(row.get("submit_time"))),
        wait_reason=_wait_reason(row),
        arguments=tuple(_text(row, "command").split()[1:]),
        array=_number(row.get("array_job_id")),
        task=_task(row),
        leader=_number(row.get("het_job_id")) if _number(row.get("het_job_offset")) else 0,
        eligible=float(_number(row.get("eligible_time"))),
        dependency=_text(row, "dependency"),
    )


def _labels(row: Mapping[str, Any]) -> dict[str, str]:
    labels = {name: _text(row, name)[:200] for name in ("partition", "account", "qos")}
    labels[job_contract.LABEL] = _contract(_text(row, "comment"))
    return dict(filter(itemgetter(1), labels.items()))


def _wait_reason(row: Mapping[str, Any]) -> str:
    reason = _text(row, "state_reason")[:REASON_LENGTH]
    return "" if reason == "None" else reason


def _contract(comment: str) -> str:
    """Find the contract in the comment of a job, behind whatever stands there. What is no JSON stays as it is, so that
    the service can say so."""
    begins = _CONTRACT.search(comment)
    if begins is None:
        return ""
    text = comment[begins.start() : begins.start() + 2 * job_contract.LENGTH]
    try:
        return orjson.dumps(orjson.loads(text)["diagnoser"]).decode()
    except orjson.JSONDecodeError:
        return text[: job_contract.LENGTH]


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _owner(row: Mapping[str, Any], name: str) -> int:
    """Number of a user or group; -1 where the row has none: 0 is root."""
    value = row.get(name)
    return -1 if _is_unset(value) else _number(value)


def _task(row: Mapping[str, Any]) -> int:
    value = row.get("array_task_id")
    return -1 if _is_unset(value) else _number(value)


def _is_unset(value: Any) -> bool:
    """Newer versions write numbers as ``{"set": true, "infinite": false, "number": 3}``."""
    if isinstance(value, Mapping):
        return not value.get("set")
    return value is None


def _number(value: Any) -> int:
    if _is_unset(value):
        return 0
    if isinstance(value, Mapping):
        value = value.get("number")
    return int(value or 0)


def _is_zero(value: Any) -> bool:
    """Tell whether it is a number, and 0: one that is not set is neither."""
    if _is_unset(value):
        return False
    return _number(value) == 0


def _words(value: Any) -> list[str]:
    """A state is one word in older versions, a list of words in newer ones."""
    if isinstance(value, str):
        return re.findall(r"[^ ,+]+", value.upper())
    return [str(word).upper() for word in value or ()]


def _ending(value: Any) -> tuple[int, int]:
    """(exit code, signal); older versions give what wait(2) gave."""
    if isinstance(value, Mapping):
        signal = value.get("signal") or {}
        return _number(value.get("return_code")), _number(signal.get("id", signal.get("signal_id")))
    status = _number(value)
    return (status >> 8) & 0xFF, status & 0x7F


def _gpus(row: Mapping[str, Any]) -> int:
    match = re.search(r"gres/gpu(?::[^=,:]+)?[=:](\d+)", _text(row, "tres_alloc_str") or _text(row, "tres_req_str"))
    nodes = _number(row.get("node_count"))
    if match is None:
        return 0
    if not nodes:
        return 0
    return int(match[1]) // nodes


def _output(row: Mapping[str, Any], nodes: Sequence[str]) -> str:
    """Path of the standard output; "" for a device, or when its pattern cannot be filled in from here."""
    values = _output_values(row, nodes)
    default = "slurm-%A_%a.out" if _number(row.get("array_job_id")) else "slurm-%j.out"
    # The split gives literal text, then again and again a width, a letter and the literal text behind it.
    parts = re.split(r"%(\d*)(.)", _text(row, "standard_output") or default)
    path = parts[0]
    for width, letter, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if letter not in values:
            return ""
        path += values[letter].zfill(_number(width[:2])) + rest
    if not path.startswith("/"):
        path = f"{_text(row, 'current_working_directory')}/{path}"
    if not path.startswith("/"):
        return ""
    if path.startswith("/dev/"):
        return ""
    if "\0" in path:
        return ""
    return path


def _output_values(row: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, str]:
    """Give values by the letter of the pattern, as Slurm fills it in for the batch script."""
    array = _number(row.get("array_job_id"))
    number, task = str(_number(row["job_id"])), str(_number(row.get("array_task_id")))
    values = {
        "%": "%",
        **dict.fromkeys("jJ", number),
        "A": number,
        "a": "4294967294",  # as Slurm writes it for a job that is not of an array
        "x": _text(row, "name"),
        "u": _text(row, "user_name"),
        **dict.fromkeys("nt", "0"),
        "s": "batch",
    }
    if array:
        values |= {"A": str(array), "a": task}
    if nodes:
        values["N"] = nodes[0].partition(".")[0]
    return values


def _node(line: str) -> NodeRecord:
    head, _, reason = line.partition(" Reason=")  # the last field: it may hold what looks like others
    _, *parts = _FIELD.split(head)
    fields = dict(zip(parts[::2], parts[1::2], strict=True))
    state = fields.get("State", "").upper()
    states = {word.rstrip("*~#!%$@^-") for word in state.split("+")}
    return _node_record(fields["NodeName"], state, states, reason, fields.get("NodeAddr", ""), fields.get("Gres", ""))


def _rest_node(row: Mapping[str, Any]) -> NodeRecord:
    states = _words(row["state"]) + _words(row.get("state_flags"))
    state = "+".join(word for word in states if word != "NOT_RESPONDING") + "*" * ("NOT_RESPONDING" in states)
    return _node_record(
        row["name"], state, set(states), _text(row, "reason"), _text(row, "address"), _text(row, "gres")
    )


def _node_record(name: str, state: str, states: set[str], reason: str, address: str, gres: str) -> NodeRecord:
    """state: as Slurm writes it, with a star behind for a node that does not answer; the reason says so only later.

    A node that somebody took down is cordoned: his reason stays, and the node out when ours is over.
    """
    cause, up = reason, states.isdisjoint({"DOWN", "FAIL"})
    cordoned = "DRAIN" in states
    if not (up or _SLURM_S.match(reason)):
        cordoned = True
    if "*" in state:
        cause, up = reason or "Not responding", False
    return NodeRecord(
        name=valid_node(name),
        up=up,
        cordoned=cordoned,
        reason=_WHEN.sub("", reason.strip()),
        record=f"NodeName={name} State={state} Reason={cause}".rstrip(),
        address=address,
        gpus=sum(map(int, re.findall(r"\bgpu:(?:[^:,()]+:)?(\d+)", gres))),
    )

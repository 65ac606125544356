"""Ranks and nodes as launchers name them: torchelastic tables, srun task lists, NCCL banners, "rank N on node H"."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diagnoser.localize import exit_reports
from diagnoser.model import Evidence, Facts, Line

_ON_NODE = re.compile(r"\brank[ :=]*(\d{1,6})(?:\b.{0,24}?\bon (?:node|host)|, node) ([\w.-]+)", re.I)
_NCCL = re.compile(r"([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL INFO .*?\b[rR]ank (\d{1,6}) n[rR]anks")
_STEPD = re.compile(r"\bslurmstepd-(?P<node>[A-Za-z][\w.-]*?): ")
_AGENT = re.compile(r"torch[./]distributed[./](?:elastic|launcher|run)|torchrun|elastic_launch")
_FAILED_CHILD = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_SAYS_RANK = (
    re.compile(r"^\S*?\[\d+,(\d+)\]<std(?:out|err)>"),
    re.compile(r"\[[Rr]ank[ :=]?(\d{1,6})\]"),
    re.compile(r"\b(?:on|for|of|by) (?:global )?rank[ :=]?(\d{1,6})\b", re.I),
    re.compile(r"(?:^|: )rank[ :=]?(\d{1,6})[,:]", re.I),
    re.compile(r"\brank=(\d{1,6})\b"),
    re.compile(r"\[(\d+)\] is setting up NCCL communicator"),
    re.compile(r"\bRankID[:=] ?(\d{1,6})"),
    re.compile(r"^\[rank(\d{1,6})\]:"),
    re.compile(r"__rank__'?: \W*(\d{1,6})"),
)
_SAYS_NODE = (
    re.compile(r"(?:^|[>\s])([A-Za-z][\w.-]*):\d+:\d+ \[\d+\]"),
    re.compile(r"^\w{3} +\d+ \d\d:\d\d:\d\d ([A-Za-z][\w.-]*) (?:kernel|systemd|slurm|nvidia|dockerd|kubelet)"),
    re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON ([A-Za-z][\w.-]*) CANCELLED"),
    re.compile(r"(?:update_node: node|Prolog failure on node|Epilog failure on node) ([A-Za-z][\w.-]*)"),
    re.compile(r"^([\w.-]+): kern: \w+: "),
    re.compile(r"\bip: ([\d.]+) has been marked dead"),
    re.compile(r"\bnode(?:info)?_{0,2}'?[:=]? [\"'(]*([A-Za-z][\w-]*\d[\w.-]*)"),
)
_SAYS_HOST = (
    re.compile(r"^\[\w+@([A-Za-z][\w.-]*) [^\]]*\][#$] "),
    re.compile(r"\b[Ee]xec(?:ution)? host: *<?([A-Za-z][\w.-]*)"),
    re.compile(r"\bnode \(ID: [0-9a-f]+, IP: ([\w.:-]+)\)"),
    re.compile(r"__nodeinfo__'?: \W*([A-Za-z][\w.-]*)"),
)
_PREFIX = re.compile(
    r"(?!(?i:rank|epoch|step|iter|gpu|cuda|device|worker|loss|layer|trial|fold)\w*:)([A-Za-z][\w.-]*\d[\w.-]*): "
)
"""A host that a parallel shell puts before each line."""
_DEVICE = re.compile(
    r"mlx\d+_\w+|(?:ib|eth|bond|hsn|hfi\d_|cxi|rdma|roce)\d+|(?:ib|en)[ops]\d\w*|std(?:out|err)|error|localhost"
)
_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error")
_COPIED = 60
"""Lines that a copied traceback may take."""
_MESSAGE = 8
"""Lines that the message of a failure may take."""
_ONE_NODE = 8
"""Ranks that one node can hold: in a job of no more, the only node that the log names is the one."""
_ADDRESS = re.compile(r"[\d.]+$|[\da-fA-F:]*:[\da-fA-F:]*$")
"""A node that is known by its address only is better named by the line itself."""


@dataclass(frozen=True, slots=True)
class LauncherTopology:
    """How the launcher describes the job.

    agents: one process a node starts the ranks (torchrun), so that srun's tasks and the labels they give to lines are
    agents, not ranks. children: local ranks that the job's only agent saw fail, in its order. labelled: the numbers
    that tasks put before their lines are the ranks, as some of the lines say.
    """

    nodes: Mapping[int, str]
    failures: tuple[exit_reports.ElasticFailure, ...]
    exits: tuple[exit_reports.TaskExit, ...]
    agents: bool
    children: tuple[int, ...] = ()
    only_node: str | None = None
    labelled: bool = False

    @property
    def task_nodes(self) -> dict[int, str]:
        """srun task -> node."""
        return {task: one.node for one in self.exits for task in one.tasks}


def read(evidence: Evidence, facts: Facts, at: int | None = None) -> LauncherTopology:
    """Registration wins over what the compressor saw in the log, and that over tables and lists.

    at: index of the line that tells of the failure. Where other hosts speak from there on (else, just before) than
    those that ranks were said to run on, what was said is about another launch.
    """
    failures, exits = tuple(exit_reports.failures(evidence)), tuple(exit_reports.exits(evidence))
    agents = any(_AGENT.search(line.body) for line in evidence.lines)
    nodes: dict[int, str] = {} if agents else {task: one.node for one in exits for task in one.tasks}
    nodes |= {one.rank: one.host for one in failures if one.host}
    near = evidence if at is None else _speaking(evidence, at)
    for said in (_announced(evidence), evidence.rank_nodes):
        nodes |= said if _is_about(said, near) else {}
    nodes |= dict(facts.job.rank_nodes)
    older = _hosts(replace(evidence, lines=evidence.lines[:at]))
    if older and at is not None and _hosts(near) and older.isdisjoint(_hosts(near)):
        hosts = {one.rank: one.host for one in exit_reports.failures(near) if one.host}
        only = _only_node(near, hosts, tuple(exit_reports.exits(near)))
    else:
        only = _only_node(evidence, nodes, exits)
    labelled = not agents and _labelled(evidence)
    return LauncherTopology(nodes, failures, exits, agents, _children(evidence), only, labelled)


def _speaking(evidence: Evidence, at: int) -> Evidence:
    """The lines from ``at`` on, or those just before where hosts speak only there."""
    after = replace(evidence, lines=evidence.lines[at:])
    near = after if _hosts(after) else replace(evidence, lines=evidence.lines[max(0, at - _COPIED) :])
    return replace(near, ranks=frozenset(line.rank for line in near.lines))


def _is_about(said: Mapping[int, str], near: Evidence) -> bool:
    hosts = _hosts(near)
    return not hosts or not hosts.isdisjoint(map(_short, said.values()))


def _hosts(evidence: Evidence) -> frozenset[str]:
    """Short names of the hosts that print, or are reported."""
    lines = evidence.lines
    said = [line.node for line in lines] + [found[1] for line in lines if (found := _SAYS_NODE[0].search(line.text))]
    said += [one.host for one in exit_reports.failures(evidence)]
    said += [one.node for one in exit_reports.exits(evidence)]
    said += [found["node"] for line in lines if (found := _STEPD.search(line.text))] + [*_announced(evidence).values()]
    return frozenset(_short(name) for name in said if name and not _ADDRESS.match(name) and not _is_device(name))


def _short(name: str) -> str:
    return name if _ADDRESS.match(name) else name.partition(".")[0].lower()


def _labelled(evidence: Evidence) -> bool:
    said = [line.rank == line.task for line in evidence.lines if line.rank >= 0 and line.task >= 0]
    return bool(said) and all(said)


def place(
    launch: LauncherTopology, lines: Sequence[Line], at: int, rank: int | None, node: str | None, *, alone: bool
) -> tuple[int | None, str | None]:
    """Rank and node of the failure that ``lines[at]`` tells of.

    rank, node: what a rule extracted from it. alone: no other rank tells of the same failure, so that the launcher's
    "first failure" is this one.
    """
    line = lines[at]
    rank = line.task if rank is None and launch.labelled and line.task >= 0 else rank
    rank = _said_near(lines, at) if rank is None else rank
    node = node or _node_in(line) or _node_near(lines, at)
    child = _FAILED_CHILD.search(line.body)
    if child:
        found = [one for one in launch.failures if one.pid == int(child[3])]
        if found:
            return found[0].rank, found[0].host
        if launch.children and not launch.failures:
            return int(child[2]), node
    if node and (_STEPD.search(line.text) or "srun: error:" in line.text):
        return _task_on(launch, node, rank if "srun: error:" in line.text else None), node
    if rank is None and alone:
        rank, host = _first_failure(launch)
        node = node or host
    if rank is not None:
        known = launch.nodes.get(rank)
        node = node if known is None or (node and _ADDRESS.match(known)) else known
    return rank, node or line.node or launch.task_nodes.get(line.task) or launch.only_node


def _first_failure(launch: LauncherTopology) -> tuple[int | None, str | None]:
    """What the launcher saw fail first: torchelastic's own word, else the first task that srun reports."""
    mine = [one for one in launch.failures if one.by_itself]
    if mine:
        first = min(mine, key=lambda one: (not one.first, one.time or "~"))
        return first.rank, first.host or None
    if launch.children and not launch.failures:
        return launch.children[0], None
    exits = [one for one in launch.exits if one.by_itself]
    if exits and not launch.agents and len(exits[0].tasks) == 1:
        return exits[0].tasks[0], exits[0].node
    return None, None


def _task_on(launch: LauncherTopology, node: str, rank: int | None) -> int | None:
    if launch.agents:
        mine = [one for one in launch.failures if one.host == node and one.by_itself]
        return mine[0].rank if mine else None
    if rank is not None:
        return rank
    dead = [one for one in launch.exits if one.node == node and one.by_itself and len(one.tasks) == 1]
    dead.sort(key=lambda one: one.how.startswith("Exited"))
    return dead[0].tasks[0] if dead else None


def _node_in(line: Line) -> str | None:
    if found := _STEPD.search(line.text):
        return found["node"]
    task = exit_reports.SRUN.search(line.text)
    if task and "[" not in task["node"]:
        return task["node"]
    said = (found[1] for pattern in _SAYS_NODE if (found := pattern.search(line.text)))
    return next((node for node in said if not _is_device(node)), None)


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def _is_device(name: str) -> bool:
    """Network devices stand where hosts stand in some lines of NCCL."""
    return _DEVICE.fullmatch(name) is not None


def _said(line: Line, patterns: tuple[re.Pattern[str], ...]) -> int | None:
    return next((int(found[1]) for pattern in patterns if (found := pattern.search(line.text))), None)


def _node_near(lines: Sequence[Line], at: int) -> str | None:
    """The host of the prompt or of the job's mail that the line stands under, or that the rest of its message names;
    else the one that a parallel shell put before the line, where it put others before the lines around."""
    around = lines[max(0, at - _MESSAGE) : at + 3]
    said = (found[1] for line in around for pattern in _SAYS_HOST if (found := pattern.search(line.text)))
    own = _PREFIX.match(lines[at].text)
    before = {found[1] for line in around if (found := _PREFIX.match(line.text))}
    return next(said, own[1] if own and len(before) > 1 else None)


def _said_near(lines: Sequence[Line], at: int) -> int | None:
    """The rank that the line names, else the rest of its message, else what led to it; lines of other ranks aside."""
    here = lines[at]
    after, before = range(at, min(at + _MESSAGE, len(lines))), range(at - 1, max(-1, at - _MESSAGE // 2), -1)
    for index in (*after, *before):
        if (lines[index].stream, lines[index].rank, lines[index].task) == (here.stream, here.rank, here.task):
            rank = _said(lines[index], _SAYS_RANK)
            if rank is not None:
                return rank
    return _spawned(lines, at)


def _spawned(lines: Sequence[Line], at: int) -> int | None:
    """The child that torch.multiprocessing names above the traceback that it copies."""
    for index in range(at, max(-1, at - _COPIED), -1):
        if found := _SPAWNED.search(lines[index].body):
            return int(found[1])
    return None


def _children(evidence: Evidence) -> tuple[int, ...]:
    """Local ranks that failed by themselves, when one agent alone reports them: then they are the ranks."""
    found = [(line.text[: line.text.find("failed (")], _FAILED_CHILD.search(line.body)) for line in evidence.lines]
    seen = [(head, child) for head, child in found if child and child[1] != "-15"]
    labels = {label[0] for head, _ in seen if (label := exit_reports.LABEL.match(head))}
    return tuple(int(child[2]) for _, child in seen) if len(labels) <= 1 else ()


def _announced(evidence: Evidence) -> dict[int, str]:
    nodes: dict[int, str] = {}
    for line in evidence.lines:
        if (" on " in line.body or ", node " in line.body) and (found := _ON_NODE.search(line.body)):
            nodes[int(found[1])] = found[2]
        elif "NCCL INFO" in line.text and (found := _NCCL.search(line.text)) and not _is_device(found[1]):
            nodes.setdefault(int(found[2]), found[1])
    return nodes


def _only_node(evidence: Evidence, nodes: Mapping[int, str], exits: Sequence[exit_reports.TaskExit]) -> str | None:
    named = set(nodes.values()) | {one.node for one in exits} | {line.node for line in evidence.lines if line.node}
    hosts = {found[1] for line in evidence.lines if (found := _SAYS_NODE[0].search(line.text))}
    named |= {host for host in hosts if not _is_device(host)}
    return named.pop() if len(named) == 1 and max(evidence.ranks, default=0) < _ONE_NODE else None

"""Ranks and nodes as launchers name them: torchelastic tables, srun task lists, NCCL banners, "rank N on node H"."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.dialects import mentions, node_lists
from diagnoser.dialects.mentions import Tells
from diagnoser.dialects.prefixes import Prefix, read_prefix, split_prefix
from diagnoser.dialects.replicas import pod_ranks
from diagnoser.localize import exit_reports
from diagnoser.model import Evidence, ExitReport, Facts, Line, Stream

_AGENT = re.compile(r"torch[./]distributed[./](?:elastic|launcher|run)|torchrun|elastic_launch")
_FAILED_CHILD = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_WORD = re.compile(r"[A-Za-z][\w.-]*\w")
_WORLD_SIZE = re.compile(
    r"(?i)(?<![a-z])(?<!local_)(?:world[ _]?size|n_?ranks|num_processes)\b[\"' :=]{1,4}(\d{1,6})\b"
)
_RECORD = re.compile(
    r"\s{0,4}[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d:\d\d:\d\d|[IWEF]\d{4} |(?:DEBUG|INFO|WARNING|ERROR)\b)"
)
"""How a logger begins."""
_OF_OTHERS = re.compile(r"Killed|Terminated|Aborted|Segmentation fault|Bus error|Floating point|srun:|slurmstepd")
"""What a shell or launcher says about a process."""
_COPIED = 60
"""Longest copied traceback, in lines."""
_MOST = 100_000
"""Most ranks of a job."""
_MESSAGE = 8
"""Longest failure message, in lines."""
_ONE_NODE = 8
"""Most ranks that one node holds: in a job no larger, the only node that the log names is the node of all ranks."""
_ADDRESS = re.compile(r"[\d.]+$|[\da-fA-F:]*:[\da-fA-F:]*$")
"""Where a node is known by its address only, a name in the line itself is better."""


@dataclass(frozen=True, slots=True)
class LauncherTopology:
    """How the launcher describes the job.

    agents: one process per node starts the ranks (torchrun), so srun's tasks and the labels on their lines are agents,
    not ranks. children: local ranks that the job's only agent saw fail, in its order. labelled: the task numbers
    in front of lines are the ranks, as some of the lines confirm. pods: pod -> node that it was assigned to.
    processes: process id -> rank, where the launcher lists both.
    listed: nodes that lists of nodes name, those that never print as well.
    """

    nodes: Mapping[int, str]
    failures: tuple[exit_reports.ElasticFailure, ...]
    exits: tuple[ExitReport, ...]
    agents: bool
    children: tuple[int, ...] = ()
    only_node: str | None = None
    labelled: bool = False
    pods: Mapping[str, str] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    processes: Mapping[int, int] = field(default_factory=dict)

    @property
    def task_nodes(self) -> dict[int, str]:
        """srun task -> node."""
        return _task_nodes(self.exits)


def read(evidence: Evidence, facts: Facts, at: int | None = None) -> LauncherTopology:
    """Registration wins over what the compressor saw in the log, which wins over tables and lists.

    at: index of the line that reports the failure. If none of the hosts that speak from there on (else, just before)
    is one where ranks were said to run, those placements are about another launch.
    """
    failures, exits = tuple(exit_reports.failures(evidence)), evidence.exits
    agents = any(_AGENT.search(line.body) for line in evidence.lines)
    nodes: dict[int, str] = {} if agents else _task_nodes(exits)
    nodes |= {failure.rank: failure.host for failure in failures if failure.host}
    near = evidence if at is None else _speaking(evidence, at)
    nodes |= evidence.rank_nodes if _is_about(evidence.rank_nodes, near) else {}
    nodes |= dict(facts.job.rank_nodes)
    hosts_before = _hosts(replace(evidence, lines=evidence.lines[:at]))
    if hosts_before and at is not None and _hosts(near) and hosts_before.isdisjoint(_hosts(near)):
        hosts = {failure.rank: failure.host for failure in exit_reports.failures(near) if failure.host}
        only = _only_node(near, hosts, [report for report in exits if report.line >= at])
    else:
        only = _only_node(evidence, nodes, exits)
    listed = _listed(evidence)
    only = None if len(listed) > 1 and only in listed else only
    labelled = not agents and _labelled(evidence)
    pods = dict(filter(None, (mentions.assigned_pod(line.body) for line in evidence.lines)))
    children = _children(evidence)
    processes = _processes(evidence.lines)
    return LauncherTopology(nodes, failures, exits, agents, children, only, labelled, pods, listed, processes)


def _processes(lines: Sequence[Line]) -> dict[int, int]:
    """Without the numbers that processes of several ranks have: on other nodes, or in other launches."""
    ranks: dict[int, set[int]] = {}
    for line in lines:
        if listed := mentions.process_rank(line.body):
            ranks.setdefault(listed[0], set()).add(listed[1])
    return {process: min(numbers) for process, numbers in ranks.items() if len(numbers) == 1}


def _task_nodes(exits: Sequence[ExitReport]) -> dict[int, str]:
    return {rank: report.node for report in exits if report.node for rank in report.ranks}


def _speaking(evidence: Evidence, at: int) -> Evidence:
    """The lines from ``at`` on, with the ones just before it where no host speaks after it."""
    exits = tuple(report for report in evidence.exits if report.line >= at)
    after = replace(evidence, lines=evidence.lines[at:], exits=exits)
    near = after if _hosts(after) else replace(evidence, lines=evidence.lines[max(0, at - _COPIED) :])
    return replace(near, ranks=frozenset(line.rank for line in near.lines))


def _is_about(placements: Mapping[int, str], near: Evidence) -> bool:
    hosts = _hosts(near)
    return not hosts or not hosts.isdisjoint(map(_short, placements.values()))


def _hosts(evidence: Evidence) -> frozenset[str]:
    """Short names of hosts that print or are reported on."""
    lines = evidence.lines
    names = [line.node for line in lines] + [
        match[1] for line in lines if (match := mentions.NCCL_HOST.search(line.text))
    ]
    names += [failure.host for failure in exit_reports.failures(evidence)]
    names += [report.node for report in evidence.exits if report.node]
    names += [match["node"] for line in lines if (match := mentions.STEP_DAEMON.search(line.text))]
    names += [reading[2] for line in lines if (reading := mentions.placed(line.text))]
    return frozenset(
        _short(name) for name in names if name and not _ADDRESS.match(name) and not mentions.is_device(name)
    )


def _short(name: str) -> str:
    return name if _ADDRESS.match(name) else name.partition(".")[0].lower()


def _labelled(evidence: Evidence) -> bool:
    agreements = [line.rank == line.task for line in evidence.lines if line.rank >= 0 and line.task >= 0]
    return bool(agreements) and all(agreements)


def place(
    launch: LauncherTopology, lines: Sequence[Line], at: int, rank: int | None, node: str | None, *, alone: bool
) -> tuple[int | None, str | None]:
    """Rank and node of the failure that ``lines[at]`` reports.

    rank, node: what a rule extracted from it. alone: no other rank reports the same failure, so the launcher's
    "first failure" is this one.
    """
    line = lines[at]
    rank = line.task if rank is None and launch.labelled and line.task >= 0 else rank
    rank = _rank_of_process(launch, line) if rank is None else rank
    rank = _rank_near(lines, at) if rank is None else rank
    node = node or _node_in(line) or _listed_in(line, launch.listed) or _node_near(lines, at)
    child = _FAILED_CHILD.search(line.body)
    if child:
        failures = [failure for failure in launch.failures if failure.pid == int(child[3])]
        if failures:
            return failures[0].rank, failures[0].host
        if launch.children and all(failure.rank == failure.local for failure in launch.failures):
            return int(child[2]), node
    if node and (mentions.STEP_DAEMON.search(line.text) or "srun: error:" in line.text):
        return _task_on(launch, node, rank if "srun: error:" in line.text else None), node
    if rank is None and alone:
        rank, host = _first_failure(launch)
        node = node or host
    if rank is not None:
        placed = launch.nodes.get(rank)
        node = node if placed is None or (node and _ADDRESS.match(placed)) else placed
    node = node or line.node or launch.task_nodes.get(line.task)
    pod = _pod(line)
    rank = _rank_of_pod(launch, lines, pod) if rank is None and pod else rank
    return rank, node or launch.pods.get(pod) or launch.only_node


def _prefix(line: Line) -> Prefix:
    return read_prefix(split_prefix(line.text.encode())[0]) if line.body != line.text else Prefix()


def _pod(line: Line) -> str:
    return _prefix(line).pod


def _rank_of_process(launch: LauncherTopology, line: Line) -> int | None:
    """The rank that the line names, else that of the process that printed it, or that it names."""
    if not launch.processes:
        return None
    named = _rank_in(line)
    ids = (_prefix(line).pid, *mentions.process_ids(line.body))
    return next((launch.processes[pid] for pid in ids if pid in launch.processes), None) if named is None else named


def only_silent(evidence: Evidence, complained: Collection[int]) -> int | None:
    """The one rank of a job of known size that did not complain of its peer, where all others did."""
    sizes = {int(match[1]) for line in evidence.lines if (match := _WORLD_SIZE.search(line.body))}
    silent = set(range(min(max(sizes, default=0), _MOST))).difference(complained)
    return silent.pop() if len(silent) == 1 and complained and len(sizes) == 1 else None


def _rank_of_pod(launch: LauncherTopology, lines: Sequence[Line], pod: str) -> int | None:
    """The rank of a pod that runs one process, as its number among the job's pods tells: nothing in the log may count
    more ranks than pods."""
    ranks_by_pod = pod_ranks({name for line in lines if (name := _pod(line))})
    sizes = {int(match[1]) for line in lines if (match := _WORLD_SIZE.search(line.body))}
    ranks = {line.rank for line in lines} - {-1}
    if launch.agents or not ranks.issubset(ranks_by_pod.values()) or sizes - {len(ranks_by_pod)}:
        return None
    return ranks_by_pod.get(pod)


def _first_failure(launch: LauncherTopology) -> tuple[int | None, str | None]:
    """What failed first according to the launcher: torchelastic's own mark, else the first task that srun reports."""
    failures = [failure for failure in launch.failures if failure.by_itself]
    if failures:
        first = min(failures, key=lambda failure: (not failure.first, failure.time or "~"))
        return first.rank, first.host or None
    if launch.children and not launch.failures:
        return launch.children[0], None
    exits = [report for report in launch.exits if report.failed and report.ranks]
    if exits and not launch.agents and len(exits[0].ranks) == 1:
        return exits[0].ranks[0], exits[0].node or None
    return None, None


def _task_on(launch: LauncherTopology, node: str, rank: int | None) -> int | None:
    if launch.agents:
        failures = [failure for failure in launch.failures if failure.host == node and failure.by_itself]
        return failures[0].rank if failures else None
    if rank is not None:
        return rank
    exits = [report for report in launch.exits if report.node == node and report.failed and len(report.ranks) == 1]
    exits.sort(key=lambda report: report.signal is None)
    return exits[0].ranks[0] if exits else None


def _node_in(line: Line) -> str | None:
    if match := mentions.STEP_DAEMON.search(line.text):
        return match["node"]
    return next((node for node in mentions.named(Tells.NODE, line.text) if not mentions.is_device(node)), None)


def _listed(evidence: Evidence) -> frozenset[str]:
    texts = (line.body for line in evidence.lines if "=" in line.body or ":" in line.body)
    return frozenset(node for text in texts for node in node_lists.listed_nodes(text))


def _listed_in(line: Line, listed: frozenset[str]) -> str | None:
    """The one node of the job's list that a line names which no process of the job printed."""
    if not listed or line.rank >= 0 or line.task >= 0 or line.node:
        return None
    nodes = listed.intersection(_WORD.findall(line.body))
    return min(nodes) if len(nodes) == 1 else None


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def _rank_in(line: Line) -> int | None:
    return next(map(int, mentions.named(Tells.RANK, line.text)), None)


def _node_near(lines: Sequence[Line], at: int) -> str | None:
    """The host in the shell prompt, job mail or message around the line; else the prefix of a parallel shell, provided
    that lines around it carry other prefixes."""
    window = lines[max(0, at - _MESSAGE) : at + 3]
    hosts = (host for line in window for host in mentions.named(Tells.HOST, line.text))
    prefix = mentions.PARALLEL_SHELL.match(lines[at].text)
    prefixes = {match[1] for line in window if (match := mentions.PARALLEL_SHELL.match(line.text))}
    return next(hosts, prefix[1] if prefix and len(prefixes) > 1 else None)


def _rank_near(lines: Sequence[Line], at: int) -> int | None:
    """The rank that the line names, else the rest of its message, else what led up to it; not lines of other ranks."""
    line = lines[at]
    after, before = range(at, _end_of_message(lines, at)), range(at - 1, max(-1, at - _MESSAGE // 2), -1)
    for index in (*after, *before):
        if _speaker(lines[index]) == _speaker(line) and (index == at or not mentions.process_rank(lines[index].body)):
            rank = _rank_in(lines[index])
            if rank is not None:
                return rank
    copied = _copied_from(lines, at)
    return _raised_next(lines, at) if copied is None else copied


def _speaker(line: Line) -> tuple[Stream, int, int, str]:
    return line.stream, line.rank, line.task, line.node


def _end_of_message(lines: Sequence[Line], at: int) -> int:
    """A logger's line is no part of a message that no logger wrote: it may be of any rank."""
    end = min(at + _MESSAGE, len(lines))
    if _RECORD.match(lines[at].body):
        return end
    return next((index for index in range(at + 1, end) if _RECORD.match(lines[index].body)), end)


def _raised_next(lines: Sequence[Line], at: int) -> int | None:
    """The rank whose traceback follows at once on a line without any prefix: what a process writes past Python's own
    hooks has none."""
    line = lines[at]
    after = lines[at + 1] if at + 1 < len(lines) else line
    if line.rank >= 0 or line.task >= 0 or line.body != line.text or after.rank < 0 or _OF_OTHERS.search(line.body):
        return None
    follows = (after.stream, after.number) == (line.stream, line.number + 1)
    return after.rank if follows and after.body.startswith("Traceback (most recent call last)") else None


def _copied_from(lines: Sequence[Line], at: int) -> int | None:
    """The rank that a launcher names above the traceback it copies."""
    for index in range(at, max(-1, at - _COPIED), -1):
        if rank := next(mentions.named(Tells.COPIED, lines[index].body), ""):
            return int(rank)
    return None


def _children(evidence: Evidence) -> tuple[int, ...]:
    """Local ranks that failed by themselves, if only one agent reports any: local ranks are the ranks then."""
    matches = [(line.task, _FAILED_CHILD.search(line.body)) for line in evidence.lines]
    children = [(task, child) for task, child in matches if child and child[1] != "-15"]
    labels = {task for task, _ in children if task >= 0}
    return tuple(int(child[2]) for _, child in children) if len(labels) <= 1 else ()


def _only_node(evidence: Evidence, nodes: Mapping[int, str], exits: Sequence[ExitReport]) -> str | None:
    names = {
        *nodes.values(),
        *(report.node for report in exits if report.node),
        *(line.node for line in evidence.lines if line.node),
    }
    hosts = {match[1] for line in evidence.lines if (match := mentions.NCCL_HOST.search(line.text))}
    names |= {host for host in hosts if not mentions.is_device(host)}
    return names.pop() if len(names) == 1 and max(evidence.ranks, default=0) < _ONE_NODE else None

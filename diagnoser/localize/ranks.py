"""Ranks and nodes as launchers name them: torchelastic tables, srun task lists, NCCL banners, "rank N on node H"."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    failures = tuple(exit_reports.failures(evidence))
    agents = any(_AGENT.search(line.body) for line in evidence.lines)
    near = evidence if at is None else _speaking(evidence, at)
    nodes: dict[int, str] = {} if agents else _task_nodes(evidence.exits)
    nodes |= _failed_on(failures)
    if _is_about(evidence.rank_nodes, near):
        nodes |= evidence.rank_nodes
    nodes |= facts.job.rank_nodes
    only = _only_node_since(evidence, near, at, nodes)
    listed = _listed(evidence)
    if len(listed) > 1 and only in listed:
        only = None  # the others just do not print
    return LauncherTopology(
        nodes,
        failures,
        evidence.exits,
        agents,
        children=_children(evidence),
        only_node=only,
        labelled=not agents and _labelled(evidence),
        pods=dict(filter(None, (mentions.assigned_pod(line.body) for line in evidence.lines))),
        listed=listed,
        processes=_processes(evidence.lines),
    )


def _failed_on(failures: Iterable[exit_reports.ElasticFailure]) -> dict[int, str]:
    """rank -> the host that torchelastic's table names."""
    return {failure.rank: failure.host for failure in failures if failure.host}


def _only_node_since(evidence: Evidence, near: Evidence, at: int | None, nodes: Mapping[int, str]) -> str | None:
    """The only node that the log names; of a job that was launched anew elsewhere, the only one of the newest launch.

    near: the lines about the failure. nodes: rank -> node, by the whole log.
    """
    if at is None:
        return _only_node(evidence, nodes, evidence.exits)
    before, since = _hosts(replace(evidence, lines=evidence.lines[:at])), _hosts(near)
    moved = before and since and before.isdisjoint(since)
    if not moved:
        return _only_node(evidence, nodes, evidence.exits)
    exits = [report for report in evidence.exits if report.line >= at]
    return _only_node(near, _failed_on(exit_reports.failures(near)), exits)


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


_Spot = tuple[int | None, str | None]
"""Rank and node; None where not shown."""


@dataclass(frozen=True, slots=True)
class _Report:
    """A failure that ``lines[at]`` reports. rank, node: as far as they are known."""

    launch: LauncherTopology
    lines: Sequence[Line]
    at: int
    rank: int | None
    node: str | None

    @property
    def line(self) -> Line:
        return self.lines[self.at]


_RankSource = Callable[[_Report], int | None]
_NodeSource = Callable[[_Report], str | None]
"""A node, or None or "" where the source names none."""
_Statement = Callable[[_Report], _Spot | None]


def place(
    launch: LauncherTopology, lines: Sequence[Line], at: int, rank: int | None, node: str | None, *, alone: bool
) -> tuple[int | None, str | None]:
    """Rank and node of the failure that ``lines[at]`` reports.

    rank, node: what a rule extracted from it. alone: no other rank reports the same failure, so the launcher's
    "first failure" is this one.
    """
    report = _Report(launch, lines, at, rank, node)
    if rank is None:
        report = replace(report, rank=_rank_in_message(report))
    report = replace(report, node=node or _node_in_message(report))
    for statement in _STATEMENTS:
        spot = statement(report)
        if spot is not None:
            return spot
    if report.rank is None and alone:
        rank, host = _first_failure(launch)
        report = replace(report, rank=rank, node=report.node or host)
    rank = _rank_of_pod(report) if report.rank is None else report.rank
    return rank, _node_of_rank(report) or _node_of_printer(report)


def _rank_in_message(report: _Report) -> int | None:
    ranks = (source(report) for source in _RANK_SOURCES)
    return next((rank for rank in ranks if rank is not None), None)


def _node_in_message(report: _Report) -> str | None:
    return next(filter(None, (source(report) for source in _NODE_SOURCES)), None)


def _rank_by_label(report: _Report) -> int | None:
    """The task number in front of the line, where these are the ranks."""
    task = report.line.task
    return task if report.launch.labelled and task >= 0 else None


def _rank_of_process(report: _Report) -> int | None:
    """The rank that the line names, else that of the process that printed it, or that it names."""
    processes = report.launch.processes
    if not processes:
        return None
    named = _rank_in(report.line)
    if named is not None:
        return named
    ids = (_prefix(report.line).pid, *mentions.process_ids(report.line.body))
    return next((processes[pid] for pid in ids if pid in processes), None)


def _rank_near(report: _Report) -> int | None:
    """The rank that the line names, else the rest of its message, else what led up to it; not lines of other ranks."""
    lines, at = report.lines, report.at
    speaker = _speaker(report.line)
    after, before = range(at, _end_of_message(lines, at)), range(at - 1, max(-1, at - _MESSAGE // 2), -1)
    for index in (*after, *before):
        if _speaker(lines[index]) != speaker:
            continue
        if index != at and mentions.process_rank(lines[index].body):
            continue  # a list of processes names every rank
        rank = _rank_in(lines[index])
        if rank is not None:
            return rank
    copied = _copied_from(lines, at)
    return _raised_next(lines, at) if copied is None else copied


_RANK_SOURCES: tuple[_RankSource, ...] = (_rank_by_label, _rank_of_process, _rank_near)
"""The surest first; a later one is asked where all before know no rank."""


def _node_in(report: _Report) -> str | None:
    """The node that the line itself names."""
    text = report.line.text
    if match := mentions.STEP_DAEMON.search(text):
        return match["node"]
    return next((node for node in mentions.named(Tells.NODE, text) if not mentions.is_device(node)), None)


def _listed_in(report: _Report) -> str | None:
    """The one node of the job's list that a line names which no process of the job printed."""
    line, listed = report.line, report.launch.listed
    if not listed or line.rank >= 0 or line.task >= 0 or line.node:
        return None
    nodes = listed.intersection(_WORD.findall(line.body))
    return min(nodes) if len(nodes) == 1 else None


def _node_near(report: _Report) -> str | None:
    """The host in the shell prompt, job mail or message around the line; else the prefix of a parallel shell, provided
    that lines around it carry other prefixes."""
    window = report.lines[max(0, report.at - _MESSAGE) : report.at + 3]
    hosts = (host for line in window for host in mentions.named(Tells.HOST, line.text))
    prefix = mentions.PARALLEL_SHELL.match(report.line.text)
    prefixes = {match[1] for line in window if (match := mentions.PARALLEL_SHELL.match(line.text))}
    return next(hosts, prefix[1] if prefix and len(prefixes) > 1 else None)


_NODE_SOURCES: tuple[_NodeSource, ...] = (_node_in, _listed_in, _node_near)
"""The surest first, as for ranks."""


def _stated_by_agent(report: _Report) -> _Spot | None:
    """A child that torchelastic's agent calls failed: its entry in the table of failures names rank and host; without
    one the local rank is the rank, where the numbers are known to be the same."""
    child = _FAILED_CHILD.search(report.line.body)
    if not child:
        return None
    launch, pid = report.launch, int(child[3])
    entry = next((failure for failure in launch.failures if failure.pid == pid), None)
    if entry:
        return entry.rank, entry.host
    if launch.children and all(failure.rank == failure.local for failure in launch.failures):
        return int(child[2]), report.node
    return None


def _stated_by_srun(report: _Report) -> _Spot | None:
    """A task that srun or the step's daemon calls failed: it ran on the node that the line names. The daemon knows no
    ranks: a number near its line is somebody else's."""
    text, node = report.line.text, report.node
    by_srun = "srun: error:" in text
    if not node or not (by_srun or mentions.STEP_DAEMON.search(text)):
        return None
    return _task_on(report.launch, node, report.rank if by_srun else None), node


_STATEMENTS: tuple[_Statement, ...] = (_stated_by_agent, _stated_by_srun)
"""Reports of launchers about a process, which say where it ran: nothing else counts beside them."""


def _node_of_rank(report: _Report) -> str | None:
    """The node where the rank is known to run; one that the line names is better than an address."""
    placed = None if report.rank is None else report.launch.nodes.get(report.rank)
    if placed is None or (report.node and _ADDRESS.match(placed)):
        return report.node
    return placed


def _node_of_printer(report: _Report) -> str | None:
    """Where neither message nor rank tells the node: whoever printed the line ran on it."""
    launch, line = report.launch, report.line
    return line.node or launch.task_nodes.get(line.task) or launch.pods.get(_pod(line)) or launch.only_node


def _prefix(line: Line) -> Prefix:
    return read_prefix(split_prefix(line.text.encode())[0]) if line.body != line.text else Prefix()


def _pod(line: Line) -> str:
    return _prefix(line).pod


def only_silent(evidence: Evidence, complained: Collection[int]) -> int | None:
    """The one rank of a job of known size that did not complain of its peer, where all others did."""
    sizes = {int(match[1]) for line in evidence.lines if (match := _WORLD_SIZE.search(line.body))}
    silent = set(range(min(max(sizes, default=0), _MOST))).difference(complained)
    return silent.pop() if len(silent) == 1 and complained and len(sizes) == 1 else None


def _rank_of_pod(report: _Report) -> int | None:
    """The rank of a pod that runs one process, as its number among the job's pods tells: nothing in the log may count
    more ranks than pods."""
    pod, lines = _pod(report.line), report.lines
    if not pod:
        return None
    ranks_by_pod = pod_ranks({name for line in lines if (name := _pod(line))})
    sizes = {int(match[1]) for line in lines if (match := _WORLD_SIZE.search(line.body))}
    ranks = {line.rank for line in lines} - {-1}
    if report.launch.agents or not ranks.issubset(ranks_by_pod.values()) or sizes - {len(ranks_by_pod)}:
        return None
    return ranks_by_pod.get(pod)


def _first_failure(launch: LauncherTopology) -> _Spot:
    """What failed first according to the launcher: torchelastic's own mark, else the first task that srun reports."""
    return _marked_first(launch) or _first_child(launch) or _first_task(launch) or (None, None)


def _marked_first(launch: LauncherTopology) -> _Spot | None:
    """The failure that torchelastic's table calls the first, else the one that it dates first."""
    failures = [failure for failure in launch.failures if failure.by_itself]
    if not failures:
        return None
    first = min(failures, key=lambda failure: (not failure.first, failure.time or "~"))  # "~" sorts behind all times
    return first.rank, first.host or None


def _first_child(launch: LauncherTopology) -> _Spot | None:
    return (launch.children[0], None) if launch.children and not launch.failures else None


def _first_task(launch: LauncherTopology) -> _Spot | None:
    """The first report of ended tasks, where it is about a single one, and tasks are ranks."""
    report = next((report for report in launch.exits if report.failed and report.ranks), None)
    if report is None or launch.agents or len(report.ranks) > 1:
        return None
    return report.ranks[0], report.node or None


def _task_on(launch: LauncherTopology, node: str, rank: int | None) -> int | None:
    if launch.agents:
        failures = [failure for failure in launch.failures if failure.host == node and failure.by_itself]
        return failures[0].rank if failures else None
    if rank is not None:
        return rank
    exits = [report for report in launch.exits if report.node == node and report.failed and len(report.ranks) == 1]
    exits.sort(key=lambda report: report.signal is None)
    return exits[0].ranks[0] if exits else None


def _listed(evidence: Evidence) -> frozenset[str]:
    texts = (line.body for line in evidence.lines if "=" in line.body or ":" in line.body)
    return frozenset(node for text in texts for node in node_lists.listed_nodes(text))


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def _rank_in(line: Line) -> int | None:
    return next(map(int, mentions.named(Tells.RANK, line.text)), None)


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

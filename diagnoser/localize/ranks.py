"""Ranks and nodes as launchers name them: torchelastic tables, srun task lists, NCCL banners, "rank N on node H"."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, filterfalse
from operator import attrgetter

from diagnoser.dialects import launchers, mentions, node_lists, rank_tables
from diagnoser.dialects.mentions import Tells
from diagnoser.dialects.prefixes import Prefix, read_prefix, split_prefix
from diagnoser.localize import exit_reports
from diagnoser.localize.node_names import is_machine
from diagnoser.model import Evidence, ExitReport, Facts, Line, Severity
from diagnoser.model.choice import only, single
from diagnoser.records import process_names, stream_names

_FAILED_CHILD = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_PID_OF_LABEL = re.compile(r"(?:^|/)p(\d{1,8})@")
_WORD = re.compile(r"[A-Za-z][\w.-]*\w")
_WORD_OR_NUMBER = re.compile(r"[A-Za-z][\w.-]*\w|(?<![\w.-])\d+(?![\w.-])")
_RECORD = re.compile(
    r"\s{0,4}[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d:\d\d:\d\d|[IWEF]\d{4} |(?:DEBUG|INFO|WARNING|ERROR)\b)"
)
"""How a logger begins."""
_COPIED = 60
"""Longest copied traceback, in lines."""
_MOST = 100_000
"""Most ranks of a job."""
_MESSAGE = 8
"""Longest failure message, in lines."""
_ABOVE = 2
"""Lines right above or below a failure that may tell whose it is."""
_ONE_NODE = 8
"""Most ranks that one node holds: in a job no larger, the only node that the log names is the node of all ranks."""
_ADDRESS = re.compile(r"[\d.]+$|[\da-fA-F:]*:[\da-fA-F:]*$")
"""Where a node is known by its address only, a name in the line itself is better."""
_LAST_OF_HEAD = re.compile(r"(?:^|\s)([A-Za-z][\w-]{1,80}): ?$")
_RANK_OF, _NODE_OF = attrgetter("rank"), attrgetter("node")
_BY_ITSELF = attrgetter("by_itself")


@dataclass(frozen=True, slots=True)
class LauncherTopology:
    """How the launcher describes the job.

    agents: one process per node starts the ranks (torchrun), so srun's tasks and the labels on their lines are agents,
    not ranks. children: local ranks that the job's only agent saw fail, in its order.
    pods: pod -> node that it was assigned to.
    processes: process id -> rank, where the launcher lists both.
    nouns: word by which the log numbers the ranks -> how many it numbers.
    listed: nodes that lists of nodes name, those that never print as well.
    """

    nodes: Mapping[int, str]
    failures: tuple[exit_reports.ElasticFailure, ...]
    exits: tuple[ExitReport, ...]
    agents: bool
    children: tuple[int, ...] = ()
    only_node: str | None = None
    pods: Mapping[str, str] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    processes: Mapping[int, int] = field(default_factory=dict)
    nouns: Mapping[str, int] = field(default_factory=dict)

    @property
    def printed(self) -> frozenset[str]:
        """The names of nodes that the launcher's tables, lists and reports show."""
        hosts = {failure.host for failure in self.failures if failure.host}
        return self.listed.union(hosts, self.nodes.values(), map(_NODE_OF, self.exits))

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
    bodies = [line.body for line in evidence.lines]
    agents = any(map(launchers.AGENT.search, bodies))
    near = evidence if at is None else _speaking(evidence, at)
    nodes: dict[int, str] = {} if agents else _task_nodes(evidence.exits)
    nodes |= _failed_on(failures)
    for placements in (rank_tables.read(bodies), evidence.rank_nodes):
        if _is_about(placements, near):
            nodes |= placements
    nodes |= facts.job.rank_nodes
    nodes = _said_by_ranks(evidence) | nodes
    only = _only_node(evidence, nodes)
    listed = _listed(evidence).union(evidence.process_hosts)
    if len(listed) > 1 and only in listed:
        only = None  # the others just do not print
    return LauncherTopology(
        nodes,
        failures,
        evidence.exits,
        agents,
        children=_children(evidence),
        only_node=only,
        pods=dict(filter(None, map(mentions.assigned_pod, bodies))),
        listed=listed,
        processes=_processes(evidence.lines),
        nouns=evidence.process_nouns,
    )


def _said_by_ranks(evidence: Evidence) -> dict[int, str]:
    """rank -> the only host that lines of this rank state, in a field, else in their heads."""
    hosts, heads = defaultdict[int, set[str]](set), defaultdict[int, set[str]](set)
    for line in evidence.lines:
        if line.rank >= 0:
            hosts[line.rank].update(filter(node_lists.is_host_name, mentions.stated_hosts(line.body)))
            heads[line.rank].update(mentions.heading_names(line.body))
    headed = single(heads)
    machines = stream_names.machines_among(headed.values())
    return {rank: name for rank, name in headed.items() if name in machines} | single(hosts)


def _failed_on(failures: Iterable[exit_reports.ElasticFailure]) -> dict[int, str]:
    """rank -> the host that torchelastic's table names."""
    return {failure.rank: failure.host for failure in failures if failure.host}


def _processes(lines: Sequence[Line]) -> dict[int, int]:
    """Without the numbers that processes of several ranks have: on other nodes, or in other launches."""
    ranks: dict[int, int] = {}
    shared = set[int]()
    for line in lines:
        listed, pid = mentions.process_rank(line.body), _PID_OF_LABEL.search(line.label)
        if pid and line.rank >= 0:
            listed = int(pid[1]), line.rank
        if not listed:
            continue
        if ranks.setdefault(*listed) != listed[1]:
            shared.add(listed[0])
    for process in shared:
        del ranks[process]
    return ranks


def _task_nodes(exits: Sequence[ExitReport]) -> dict[int, str]:
    nodes: dict[int, str] = {}
    for report in exits:
        if report.node:
            nodes |= dict.fromkeys(report.ranks, report.node)
    return nodes


def _speaking(evidence: Evidence, at: int) -> Evidence:
    """The lines from ``at`` on, with the ones just before it where no host speaks after it."""
    near = replace(evidence, lines=evidence.lines[at:], exits=_exits_since(evidence, at))
    if not _hosts(near):
        near = replace(evidence, lines=evidence.lines[max(0, at - _COPIED) :])
    return replace(near, ranks=frozenset(map(_RANK_OF, near.lines)))


def _exits_since(evidence: Evidence, at: int) -> tuple[ExitReport, ...]:
    return tuple(report for report in evidence.exits if report.line >= at)


def _is_about(placements: Mapping[int, str], near: Evidence) -> bool:
    hosts = _hosts(near)
    if not hosts:
        return True
    return not hosts.isdisjoint(map(_short, placements.values()))


def _hosts(evidence: Evidence) -> frozenset[str]:
    """Short names of hosts that print or are reported on."""
    names = set(map(attrgetter("host"), exit_reports.failures(evidence)))
    names.update(map(_NODE_OF, evidence.exits))
    for line in evidence.lines:
        names.add(line.node)
        names.update(_mentioned(line.text))
    return frozenset(map(_short, filter(_is_host, names)))


def _is_host(name: str) -> bool:
    """Whether it is the name of a machine: no address, no device."""
    if not name:
        return False
    if _ADDRESS.match(name):
        return False
    return not mentions.is_device(name)


def _mentioned(text: str) -> Iterator[str]:
    """Hosts that a line says something runs on."""
    for pattern, group in ((mentions.NCCL_HOST, 1), (mentions.STEP_DAEMON, "node")):
        match = pattern.search(text)
        if match:
            yield match[group]
    placed = mentions.placed(text)
    if placed:
        yield placed[2]


def _short(name: str) -> str:
    if _ADDRESS.match(name):
        return name
    return name.partition(".")[0].lower()


_OF_DEVICE = re.compile(r"\bblock: \[[\d,]+\], thread: \[")
_RULE = re.compile(r"-{20,200}$")
PEER = "peer"
"""Source of a rank that a line names which complains of it."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a failure happened, None where not shown.

    rank_source, node_source: names of the sources that know them.
    """

    rank: int | None
    node: str | None
    rank_source: str = ""
    node_source: str = ""


@dataclass(frozen=True, slots=True)
class _Report:
    """A failure that ``lines[at]`` reports.

    spot: as far as it is known.
    """

    launch: LauncherTopology
    lines: Sequence[Line]
    at: int
    spot: Spot

    @property
    def line(self) -> Line:
        return self.lines[self.at]

    @property
    def rank(self) -> int | None:
        return self.spot.rank

    @property
    def node(self) -> str | None:
        return self.spot.node


_RankSource = Callable[[_Report], int | None]
_NodeSource = Callable[[_Report], str | None]
"""A node, or None or "" where the source names none."""
_Statement = Callable[[_Report], tuple[int | None, str | None] | None]


def place(
    launch: LauncherTopology, lines: Sequence[Line], at: int, rank: int | None, node: str | None, *, alone: bool
) -> Spot:
    """Rank and node of the failure that ``lines[at]`` reports.

    rank, node: what a rule extracted from it.
    alone: no other rank reports the same failure, so the launcher's "first failure" is this one.
    """
    report = _Report(launch, lines, at, Spot(rank, node, "rule", "rule"))
    copied = next(mentions.named(Tells.COPIED, _heading(report)), "")
    if copied:
        report = replace(report, spot=replace(report.spot, rank=int(copied)))
    report = _of_peer(report)
    report = _with_node(_with_rank(report, _RANK_SOURCES), _NODE_SOURCES)
    for name, statement in _STATEMENTS.items():
        stated = statement(report)
        if stated is not None:
            return Spot(*stated, name, name)
    if alone:
        report = _with_first_failure(report)
    report = _with_rank(report, _STATED_RANKS)
    placed = _node_of_rank(report)
    if placed:
        report = replace(report, spot=replace(report.spot, node=placed, node_source="node of the rank"))
    return _with_node(report, _PRINTER_SOURCES).spot


def _of_peer(report: _Report) -> _Report:
    """The report as one of the only other process that the log's own noun for ranks tells: in the line, in those right
    above it, or in one soon after that repeats it."""
    line, nouns = report.line, report.launch.nouns
    if not nouns:
        return report
    above = report.lines[max(0, report.at - _ABOVE) : report.at]
    below = report.lines[report.at + 1 : report.at + _ABOVE + 1]
    texts = [line.body, *(other.body for other in reversed(above) if other.speaker == line.speaker), _heading(report)]
    texts += [other.body for other in below if line.body in other.body]
    for text in texts:
        rank = only(set(process_names.numbered(text, nouns)) - {line.known_rank, report.rank})
        if rank is not None:
            return replace(report, spot=Spot(rank, None, PEER, ""))
    return report


def _with_rank(report: _Report, sources: Mapping[str, _RankSource]) -> _Report:
    """The report with the rank by the first source that knows one, where none is known yet."""
    if report.rank is not None:
        return report
    for name, source in sources.items():
        rank = source(report)
        if rank is not None:
            return replace(report, spot=replace(report.spot, rank=rank, rank_source=name))
    return report


def _with_node(report: _Report, sources: Mapping[str, _NodeSource]) -> _Report:
    """The same for its node."""
    if report.node:
        return report
    for name, source in sources.items():
        node = source(report)
        if node:
            return replace(report, spot=replace(report.spot, node=node, node_source=name))
    return report


def _rank_of_process(report: _Report) -> int | None:
    """The rank that the line names, else that of the process that printed it, or that it names."""
    processes = report.launch.processes
    if not processes:
        return None
    named = _rank_in(report.line)
    if named is not None:
        return named
    bodies = report.line.body, _heading(report)
    for pid in (_prefix(report.line).pid, *chain.from_iterable(map(mentions.process_ids, bodies))):
        if pid in processes:
            return processes[pid]
    return None


def _heading(report: _Report) -> str:
    """The line above the frames of the failure: who copies the traceback of another process names it there."""
    for line in reversed(report.lines[max(0, report.at - _COPIED) : report.at]):
        if line.speaker == report.line.speaker and not line.is_indented:
            return line.body
    return ""


def _rank_in_message(report: _Report) -> int | None:
    """The rank that the line names, else the rest of its message, else what led up to it; not lines of other ranks."""
    lines, at = report.lines, report.at
    after, before = range(at, _end_of_message(lines, at)), range(at - 1, max(-1, at - _MESSAGE // 2), -1)
    for index in (*after, *before):
        if lines[index].speaker != report.line.speaker:
            continue
        if index != at and mentions.process_rank(lines[index].body):
            continue  # a list of processes names every rank
        rank = _rank_in(lines[index])
        if rank is not None:
            return rank
    return None


def _rank_of_copied(report: _Report) -> int | None:
    """The rank that a launcher names above the traceback it copies."""
    for line in reversed(report.lines[max(0, report.at - _COPIED + 1) : report.at + 1]):
        rank = next(mentions.named(Tells.COPIED, line.body), "")
        if rank:
            return int(rank)
    return None


def _rank_by_prefix(report: _Report) -> int | None:
    """The rank in front of the line, where the message is a shell's, which knows of no ranks."""
    line = report.line
    return line.known_rank if line.body != line.text else None


_RANK_SOURCES: Mapping[str, _RankSource] = {
    "list of processes": _rank_of_process,
    "message": _rank_in_message,
    "copied traceback": _rank_of_copied,
    "prefix": _rank_by_prefix,
}
"""The surest first; a later one is asked where all before know no rank."""


def _node_in(report: _Report) -> str | None:
    """The node that the line itself names."""
    text = report.line.text
    match = mentions.STEP_DAEMON.search(text)
    if match:
        return match["node"]
    return next(filterfalse(mentions.is_device, mentions.named(Tells.NODE, text)), None)


def _listed_in(report: _Report) -> str | None:
    """The one node of the job's list that a line names which no process of the job printed."""
    line, listed = report.line, report.launch.listed
    if not listed:
        return None
    if line.node:
        return None
    if max(line.rank, line.task) >= 0:
        return None
    nodes = listed.intersection(_WORD.findall(line.text))
    return only(nodes)


def _node_near(report: _Report) -> str | None:
    """The host in the shell prompt, job mail or message around the line."""
    for line in _window(report):
        host = next(mentions.named(Tells.HOST, line.text), "")
        if host:
            return host
    return None


def _window(report: _Report) -> Sequence[Line]:
    """The lines around the failure, all of a box that rules are drawn around."""
    end = report.at + 3
    if report.at and _RULE.match(report.lines[report.at - 1].body):
        below = range(end, min(report.at + _MESSAGE, len(report.lines)))
        end = next((at for at in below if _RULE.match(report.lines[at].body)), end)
    return report.lines[max(0, report.at - _MESSAGE) : end]


def _node_of_shell(report: _Report) -> str | None:
    """The prefix of a parallel shell, provided that lines around carry other prefixes."""
    prefix = mentions.PARALLEL_SHELL.match(report.line.body)
    if not prefix:
        return None
    prefixes = filter(None, map(mentions.PARALLEL_SHELL.match, map(attrgetter("body"), _window(report))))
    if any(other[1] != prefix[1] for other in prefixes):
        return prefix[1]
    return None


_NODE_SOURCES: Mapping[str, _NodeSource] = {
    "line": _node_in,
    "list of nodes": _listed_in,
    "lines around": _node_near,
    "parallel shell": _node_of_shell,
}
"""The surest first, as for ranks."""


def _rank_reported(report: _Report) -> int | None:
    """The first rank of which a line around or after the failure says that it failed. Of agents' children only the
    local rank is told."""
    if report.launch.agents:
        return None
    for line in report.lines[max(0, report.at - _MESSAGE) :]:
        rank = next(map(int, mentions.named(Tells.FAILED, line.body)), None)
        if rank is None and mentions.says_failed(line.body):
            rank = _rank_counted(report.launch, line.body)
        if rank is not None and _may_run_on(report, rank):
            return rank
    return None


def _rank_counted(launch: LauncherTopology, text: str) -> int | None:
    """The rank that a text calls by its number beside its node, or by the log's own noun."""
    words = set(_WORD_OR_NUMBER.findall(text))
    ranks = {rank for rank, node in launch.nodes.items() if {node, str(rank)} <= words}
    return only(ranks or set(process_names.numbered(text, launch.nouns)))


def _may_run_on(report: _Report, rank: int) -> bool:
    """Whether nothing says that a rank runs elsewhere than on the node of the report."""
    placed = report.launch.nodes.get(rank)
    return not (placed and report.node) or _short(placed) == _short(report.node)


def _rank_complaining_next(report: _Report) -> int | None:
    """The first rank that complains right after a line that names its node and that no process of the job printed, as a
    kernel's. One without a node is not placed by it: the job may have printed it."""
    if max(report.line.rank, report.line.task) >= 0 or not report.node:
        return None
    for line in report.lines[report.at + 1 : report.at + 1 + _MESSAGE]:
        if line.rank < 0 or (line.severity or 0) < Severity.ERROR:
            continue
        node = line.node or report.launch.nodes.get(line.rank) or report.node
        if _short(node) == _short(report.node):
            return line.rank
    return None


def _rank_raising_below(report: _Report) -> int | None:
    """The rank whose traceback stands right below an assertion of device code, which no prefix names: its process lives
    on until it asks for the result."""
    if report.line.body != report.line.text or not _OF_DEVICE.search(report.line.body):
        return None
    for line in report.lines[report.at + 1 : report.at + _COPIED]:
        if line.rank >= 0:
            return line.rank if line.body.startswith("Traceback (most recent") else None
    return None


def _rank_on_node(report: _Report) -> int | None:
    """The only rank on the node, in a job that runs one on each."""
    nodes = report.launch.nodes
    if len(set(nodes.values())) < max(len(nodes), 2):
        return None
    return only({rank for rank, node in nodes.items() if _short(node) == _short(report.node or "")})


def _rank_alone(report: _Report) -> int | None:
    """The only rank of a job that says that it has one, where no line is of another."""
    if _world_sizes(report.lines) != {1}:
        return None
    return None if any(line.rank > 0 for line in report.lines) else 0


_STATED_RANKS: Mapping[str, _RankSource] = {
    "report of a failed rank": _rank_reported,
    "next complaint": _rank_complaining_next,
    "traceback below": _rank_raising_below,
    "only rank of the node": _rank_on_node,
    "only rank of the job": _rank_alone,
}
"""Where neither the line nor the launcher's tables tell the rank."""


def _stated_by_agent(report: _Report) -> tuple[int | None, str | None] | None:
    """A child that torchelastic's agent calls failed: its entry in the table of failures names rank and host; without
    one the local rank is the rank, where the numbers are known to be the same."""
    child = _FAILED_CHILD.search(report.line.body)
    if not child:
        return None
    launch, pid = report.launch, int(child[3])
    for failure in launch.failures:
        if failure.pid == pid:
            return failure.rank, failure.host
    if not launch.children:
        return None
    if any(failure.rank != failure.local for failure in launch.failures):
        return None
    return int(child[2]), report.node


def _stated_by_srun(report: _Report) -> tuple[int | None, str | None] | None:
    """A task that srun or the step's daemon calls failed: it ran on the node that the line names. The daemon knows no
    ranks: a number near its line is somebody else's."""
    text, node = report.line.text, report.node
    if not node:
        return None
    if "srun: error:" in text:
        return _task_on(report.launch, node, report.rank), node
    if mentions.STEP_DAEMON.search(text):
        return _task_on(report.launch, node, None), node
    return None


_STATEMENTS: Mapping[str, _Statement] = {"torchelastic's agent": _stated_by_agent, "srun": _stated_by_srun}
"""Reports of launchers about a process, which say where it ran: nothing else counts beside them."""


def _node_of_rank(report: _Report) -> str | None:
    """The node where the rank is known to run; one that the line names is better than an address."""
    if report.rank is None:
        return None
    placed = report.launch.nodes.get(report.rank)
    if not placed:
        return placed
    if not report.node:
        return placed
    if _ADDRESS.match(placed):
        return None
    return placed


_PRINTER_SOURCES: Mapping[str, _NodeSource] = {
    "printer": lambda report: report.line.node or _machine_in_head(report.line),
    "task": lambda report: report.launch.task_nodes.get(report.line.task),
    "pod": lambda report: report.launch.pods.get(report.line.instance),
    "failed process": lambda report: only({end.node for end in report.launch.exits if end.failed and end.node}),
    "only node": lambda report: report.launch.only_node,
}
"""Where neither message nor rank tells the node: whoever printed the line ran on it."""


def _machine_in_head(line: Line) -> str | None:
    """The machine whose name and a colon stand in front of every line of the log, which tells no process apart."""
    head = _LAST_OF_HEAD.search(line.text.removesuffix(line.body))
    return only(stream_names.machines_among(head.groups())) if head else None


def is_of_printer(spot: Spot, line: Line) -> bool:
    """Whether the node is where the line was printed, though the line names another rank than who printed it."""
    if spot.rank_source not in {"message", "rule"} or spot.rank == line.known_rank:
        return False
    return spot.node_source in {"parallel shell", *_PRINTER_SOURCES}


def _prefix(line: Line) -> Prefix:
    if line.body != line.text:
        return read_prefix(split_prefix(line.text.encode())[0])
    return Prefix()


def only_silent(evidence: Evidence, complained: Collection[int]) -> int | None:
    """The one rank of a job of known size that did not complain of its peer, where all others did."""
    sizes = _world_sizes(evidence.lines)
    silent = set(range(min(max(sizes, default=0), _MOST))).difference(complained)
    if (len(silent), len(sizes)) != (1, 1):
        return None
    if not complained:
        return None
    return silent.pop()


def _world_sizes(lines: Iterable[Line]) -> set[int]:
    """The numbers of ranks that lines state."""
    return set(chain.from_iterable(mentions.world_sizes(line.body) for line in lines))


def _with_first_failure(report: _Report) -> _Report:
    """The report with what failed first according to the launcher, where its rank is not known."""
    if report.rank is not None:
        return report
    for name, source in _FIRST_FAILURES.items():
        first = source(report.launch)
        if first:
            rank, host = first
            return replace(report, spot=Spot(rank, report.node or host, name, report.spot.node_source))
    return report


def _marked_first(launch: LauncherTopology) -> tuple[int, str | None] | None:
    """The failure that torchelastic's table calls the first, else the one that it dates first."""
    failures = filter(_BY_ITSELF, launch.failures)
    # "~" sorts behind all times
    first = min(failures, key=lambda failure: (not failure.first, failure.time or "~"), default=None)
    return (first.rank, first.host) if first else None


def _first_child(launch: LauncherTopology) -> tuple[int, str | None] | None:
    """The first child that the job's only agent saw fail, where it prints no table."""
    if launch.failures or not launch.children:
        return None
    return launch.children[0], None


def _first_task(launch: LauncherTopology) -> tuple[int, str | None] | None:
    """The first report of ended tasks, where it is about a single one, and tasks are ranks."""
    if launch.agents:
        return None
    for report in launch.exits:
        if not report.failed:
            continue
        if report.ranks:
            if len(report.ranks) == 1:
                return (report.ranks[0], report.node)
            return None
    return None


_FIRST_FAILURES: Mapping[str, Callable[[LauncherTopology], tuple[int, str | None] | None]] = {
    "first in torchelastic's table": _marked_first,
    "first child of the agent": _first_child,
    "first ended task": _first_task,
}
"""torchelastic's own mark counts before the first task that srun reports."""


def _task_on(launch: LauncherTopology, node: str, rank: int | None) -> int | None:
    """The rank of the task that failed on a node. rank: as the line names it."""
    if launch.agents:
        failures = filter(_BY_ITSELF, launch.failures)
        return next((failure.rank for failure in failures if failure.host == node), None)
    if rank is not None:
        return rank
    exits = [report for report in launch.exits if (report.node, report.failed, len(report.ranks)) == (node, True, 1)]
    first = min(exits, key=lambda report: report.signal is None, default=None)
    return first.ranks[0] if first else None


def _listed(evidence: Evidence) -> frozenset[str]:
    """The nodes of all lists of nodes."""
    listed = set[str]()
    for line in evidence.lines:
        if "=" in line.body or ":" in line.body:
            listed.update(node_lists.listed_nodes(line.body))
    return frozenset(listed)


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def _rank_in(line: Line) -> int | None:
    return next(map(int, mentions.named(Tells.RANK, line.text)), None)


def _end_of_message(lines: Sequence[Line], at: int) -> int:
    """A logger's line is no part of a message that no logger wrote: it may be of any rank."""
    end = min(at + _MESSAGE, len(lines))
    if _RECORD.match(lines[at].body):
        return end
    return next((index for index in range(at + 1, end) if _RECORD.match(lines[index].body)), end)


def _children(evidence: Evidence) -> tuple[int, ...]:
    """Local ranks that failed by themselves, if only one agent reports any: local ranks are the ranks then."""
    children, labels = list[int](), set[int]()
    for line in evidence.lines:
        child = _FAILED_CHILD.search(line.body)
        if not child:
            continue
        if child[1] != "-15":
            children.append(int(child[2]))
            labels.add(line.task)
    return tuple(children) if len(labels - {-1}) <= 1 else ()


def _only_node(evidence: Evidence, nodes: Mapping[int, str]) -> str | None:
    """The only node that is named, in a job that may fit on it."""
    if max(evidence.ranks, default=0) >= _ONE_NODE:
        return None
    if any(_is_larger(line.body) for line in evidence.lines):
        return None
    names = {*nodes.values(), *map(_NODE_OF, evidence.exits)}
    for line in evidence.lines:
        names.add(line.node)
        names.update(mentions.named(Tells.HOST, line.body))
        match = mentions.NCCL_HOST.search(line.text)
        if not match:
            continue
        if not mentions.is_device(match[1]):
            names.add(match[1])
    return only(set(filter(is_machine, names)) or names - {""})


def _is_larger(body: str) -> bool:
    """Whether a line states more nodes than one, or more ranks than one holds."""
    if max(mentions.node_counts(body), default=1) > 1:
        return True
    return max(mentions.world_sizes(body), default=1) > _ONE_NODE

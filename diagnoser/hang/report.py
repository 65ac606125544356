"""All evidence of one hang together: files of any kind in, ranked suspects out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from diagnoser.hang import debug_tables, flight_recorder, nccl_ras, stacks, wait_graph
from diagnoser.hang.flight_recorder import RankDump
from diagnoser.hang.nccl_ras import RasFinding, RasReport
from diagnoser.hang.stacks import Stack
from diagnoser.hang.wait_graph import WaitGraph
from diagnoser.model import EvidenceKind, HangSuspect, RuntimeFile, SuspectKind
from diagnoser.model.errors import BadInput

_UNREACHABLE, _BEHIND, _OUTLIER = 0.7, 0.55, 0.6
_AGREE = 0.5
"""Part of the remaining doubt that a second kind of evidence takes away."""
_PICKLE = b"\x80"
_SNAPSHOT = re.compile(r"^(.{1,200})_\d{8}_\d{6}\.txt$")
"""As PyTorch's debug server names the files that it writes from time to time."""


@dataclass(frozen=True, slots=True)
class RuntimeEvidence:
    """What was read. rejected: (name, why) of files that could not be."""

    dumps: tuple[RankDump, ...] = ()
    ras: tuple[RasReport, ...] = ()
    stacks: tuple[Stack, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HangReport:
    """suspects: the most likely first. graph: who waits for whom. outliers: stacks unlike those of most ranks."""

    suspects: tuple[HangSuspect, ...]
    graph: WaitGraph
    outliers: tuple[Stack, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def kind_of(data: bytes) -> EvidenceKind:
    """Tell the kind by the content: names decide nothing."""
    head = data[:4096].lstrip()
    if data[:1] == _PICKLE:
        return EvidenceKind.FLIGHT_RECORDER
    if head[:1] == b"{":
        recorder = b'"entries"' in data or b'"pg_config"' in data
        return EvidenceKind.FLIGHT_RECORDER if recorder else EvidenceKind.RAS
    if debug_tables.is_table(data):
        return EvidenceKind.FLIGHT_RECORDER
    has_threads = (
        b"Thread " in data[:65536] or b"thread 0x" in data[:65536] or (head[:1] == b"[" and b'"frames"' in data)
    )
    return EvidenceKind.STACKS if has_threads else EvidenceKind.RAS


def current(names: Iterable[str]) -> list[str]:
    """File names, of the snapshots of a debug server only the newest of each kind."""
    newest: dict[str, str] = {}
    for name in sorted(names):
        match = _SNAPSHOT.match(name)
        newest[match[1] if match else f"/{name}"] = name
    return sorted(newest.values())


def names_ranks(data: bytes) -> bool:
    """Whether it says itself of which ranks it is."""
    return data[:1] != _PICKLE and (debug_tables.is_table(data) or stacks.is_of_all_ranks(data))


def read(files: Iterable[tuple[str, bytes]], ranks: Mapping[str, int] | None = None) -> RuntimeEvidence:
    """(name, content) of each file; what cannot be read is listed. ranks: of files whose name does not end in it."""
    of_name = ranks or {}
    return _read((name, data, of_name.get(name, flight_recorder.rank_of_file(name))) for name, data in files)


def read_files(files: Iterable[RuntimeFile]) -> RuntimeEvidence:
    """Dumps as the service stores them."""
    return _read((file.name, file.data, file.rank) for file in files)


def check(file: RuntimeFile) -> None:
    """Raises BadInput for a dump that is not of its kind, or cannot be read."""
    if (kind := kind_of(file.data)) is not file.kind:
        raise BadInput(f"the content is not {file.kind}: it looks like {kind}")
    if rejected := read_files([file]).rejected:
        raise BadInput(rejected[0][1])


def _read(files: Iterable[tuple[str, bytes, int]]) -> RuntimeEvidence:
    reader = flight_recorder.DumpReader()
    dumps, ras, traces, rejected = list[RankDump](), list[RasReport](), list[Stack](), list[tuple[str, str]]()
    for name, data, rank in files:
        try:
            kind = kind_of(data)
            if kind is EvidenceKind.RAS:
                ras.append(nccl_ras.parse_ras(data))
            elif kind is EvidenceKind.STACKS and (all_ranks := stacks.parse_all_stacks(data)):
                traces += all_ranks
            elif kind is EvidenceKind.FLIGHT_RECORDER and debug_tables.is_table(data):
                dumps += debug_tables.read_tables(data, reader)
            elif rank < 0:
                rejected.append((name, "nothing says of which rank it is"))
            elif kind is EvidenceKind.STACKS:
                traces.append(stacks.parse_stacks(data, rank))
            else:
                dumps.append(reader.read(data, rank))
        except BadInput as error:
            rejected.append((name, str(error)))
    return RuntimeEvidence(tuple(dumps), tuple(ras), tuple(traces), tuple(rejected))


def analyze(evidence: RuntimeEvidence, nodes: Mapping[int, str] | None = None, ranks: int = 0) -> HangReport:
    """Find the ranks that are suspected, with why.

    nodes: rank -> node, as the scheduler or the log has it; where it is silent RAS may know.
    ranks: how many the job has.
    """
    graph = wait_graph.build(evidence.dumps, ranks or len(nodes or ()))
    outliers = stacks.outliers(evidence.stacks)
    hosts = _hosts(evidence.ras) | dict(nodes or {})
    suspects: dict[int, HangSuspect] = {suspect.rank: suspect for suspect in graph.suspects}
    for suspect in (*_by_ras(evidence.ras, suspects), *_by_stacks(outliers, graph)):
        _add(suspects, suspect)
    placed = (replace(suspect, node=suspect.node or hosts.get(suspect.rank, "")) for suspect in suspects.values())
    ranked = tuple(sorted(placed, key=lambda suspect: (-suspect.score, suspect.rank)))
    notes = () if ranked else graph.notes
    return HangReport(ranked, graph, tuple(stack for stack, _ in outliers), evidence.rejected, notes)


def _hosts(reports: Iterable[RasReport]) -> dict[int, str]:
    return {rank: host for report in reports for rank, host in report.nodes if host}


def _add(suspects: dict[int, HangSuspect], suspect: HangSuspect) -> None:
    """Two kinds of evidence against one rank make it surer."""
    known = suspects.get(suspect.rank)
    if known is None:
        suspects[suspect.rank] = suspect
        return
    score = 1 - (1 - max(known.score, suspect.score)) * _AGREE
    node = known.node or suspect.node
    suspects[suspect.rank] = replace(known, why=f"{known.why}; {suspect.why}", score=round(score, 2), node=node)


def _by_ras(reports: Iterable[RasReport], known: Mapping[int, HangSuspect]) -> list[HangSuspect]:
    """Who cannot be reached. Who is behind counts where a recorder names it, too, or where nothing else is known."""
    placed = [finding for report in reports for finding in report.findings if finding.rank >= 0]
    unreachable = [finding for finding in placed if not finding.behind]
    behind = [finding for finding in placed if finding.behind]
    chosen = [finding for finding in behind if finding.rank in known or not (known or unreachable)]
    by_score = ((_UNREACHABLE, unreachable), (_BEHIND, chosen))
    return [_ras_suspect(finding, score) for score, findings in by_score for finding in findings]


def _ras_suspect(finding: RasFinding, score: float) -> HangSuspect:
    kind = SuspectKind.BEHIND if finding.behind else SuspectKind.DEAD
    return HangSuspect(finding.rank, kind, finding.why, score, finding.node)


def _by_stacks(outliers: Iterable[tuple[Stack, int]], graph: WaitGraph) -> list[HangSuspect]:
    """Suspect ranks by their stacks. Where recorders name others, a stack alone accuses nobody."""
    named = {suspect.rank for suspect in graph.suspects}
    return [
        HangSuspect(stack.rank, SuspectKind.STACK, f"stands in {stack.frames[0]} while {waiting} ranks wait", _OUTLIER)
        for stack, waiting in outliers
        if not named or stack.rank in named
    ]

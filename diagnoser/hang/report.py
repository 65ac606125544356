"""All evidence of one hang together: files of any kind in, ranked suspects out."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnoser.hang import activity, debug_tables, flight_recorder, nccl_ras, stacks, wait_graph
from diagnoser.hang.activity import STOPPED, RankActivity
from diagnoser.hang.flight_recorder import RankDump
from diagnoser.hang.nccl_ras import RasReport
from diagnoser.hang.stacks import RankStack
from diagnoser.hang.wait_graph import GroupState, Mismatch, WaitGraph
from diagnoser.model import EvidenceKind, HangSuspect, RuntimeFile, SuspectKind
from diagnoser.model.errors import BadInput

_UNREACHABLE, _BEHIND, _OUTLIER, _STUCK = 0.7, 0.55, 0.6, 0.7
_IN_OWN_CODE = frozenset({SuspectKind.BEHIND, SuspectKind.STACK})
"""Kinds of ranks that have not come to a collective: they may be on their way."""
_MAY_BE_STUCK = _IN_OWN_CODE | {SuspectKind.ABSENT}
"""Kinds of ranks that may have done nothing between two looks."""
_AGREE = 0.5
"""Part of the remaining doubt that a second kind of evidence takes away."""
_PICKLE = b"\x80"
_RECORDER_KEYS = re.compile(rb'"(?:entries|pg_config)"')
_THREADS = re.compile(rb"Thread |thread 0x")
_OF_NO_FILE: Mapping[str, int] = {}
_NO_NODES: Mapping[int, str] = {}
_SNAPSHOT = re.compile(r"^(.{1,200})_\d{8}_\d{6}\.txt$")
"""As PyTorch's debug server names the files that it writes from time to time."""


@dataclass(frozen=True, slots=True)
class RuntimeEvidence:
    """What was read. rejected: (name, why) of files that could not be."""

    dumps: tuple[RankDump, ...] = ()
    ras: tuple[RasReport, ...] = ()
    stacks: tuple[RankStack, ...] = ()
    activity: tuple[RankActivity, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HangReport:
    """suspects: the most likely first. graph: who waits for whom. outliers: stacks unlike those of most ranks."""

    suspects: tuple[HangSuspect, ...]
    graph: WaitGraph
    outliers: tuple[RankStack, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def kind_of(data: bytes) -> EvidenceKind:
    """Tell the kind by the content: names decide nothing."""
    head = data[:4096].lstrip()
    if data[:1] == _PICKLE:
        return EvidenceKind.FLIGHT_RECORDER
    if debug_tables.is_table(data):
        return EvidenceKind.FLIGHT_RECORDER
    if activity.is_activity(data):
        return EvidenceKind.ACTIVITY
    if head[:1] == b"{":
        if _RECORDER_KEYS.search(data):
            return EvidenceKind.FLIGHT_RECORDER
        return EvidenceKind.RAS
    if _THREADS.search(data, 0, 65536):
        return EvidenceKind.STACKS
    if head[:1] == b"[":
        return EvidenceKind.STACKS if b'"frames"' in data else EvidenceKind.RAS
    return EvidenceKind.RAS


def current(names: Iterable[str]) -> list[str]:
    """File names, of the snapshots of a debug server only the newest of each kind."""
    newest: dict[str, str] = {}
    for name in sorted(names):
        match = _SNAPSHOT.match(name)
        newest[match[1] if match else f"/{name}"] = name
    return sorted(newest.values())


def names_ranks(data: bytes) -> bool:
    """Whether it says itself of which ranks it is."""
    if debug_tables.is_table(data):
        return True
    return stacks.is_of_all_ranks(data)


def read(files: Iterable[tuple[str, bytes]], ranks: Mapping[str, int] = _OF_NO_FILE) -> RuntimeEvidence:
    """Read (name, content) of each file; the unreadable ones are listed.

    ranks: of files whose name does not end in it.
    """
    return _read((name, data, ranks.get(name, flight_recorder.rank_of_file(name))) for name, data in files)


def read_files(files: Iterable[RuntimeFile]) -> RuntimeEvidence:
    """Read dumps as the service stores them."""
    return _read((file.name, file.data, file.rank) for file in files)


def check(file: RuntimeFile) -> None:
    """Raises BadInput for a dump that is not of its kind, or cannot be read."""
    if (kind := kind_of(file.data)) is not file.kind:
        raise BadInput(f"the content is not {file.kind}: it looks like {kind}")
    if rejected := read_files([file]).rejected:
        raise BadInput(rejected[0][1])


def _read(files: Iterable[tuple[str, bytes, int]]) -> RuntimeEvidence:
    reader = flight_recorder.DumpReader()
    dumps, ras, traces, rejected = list[RankDump](), list[RasReport](), list[RankStack](), list[tuple[str, str]]()
    looks = list[RankActivity]()
    for name, data, rank in files:
        try:
            match kind_of(data):
                case EvidenceKind.RAS:
                    ras.append(nccl_ras.parse_ras(data))
                case EvidenceKind.STACKS:
                    traces += stacks.parse_all_stacks(data) or [stacks.parse_stacks(data, _checked(rank))]
                case EvidenceKind.ACTIVITY:
                    looks += activity.parse_activity(data)
                case EvidenceKind.FLIGHT_RECORDER:
                    dumps += _dumps(data, rank, reader)
        except BadInput as error:
            rejected.append((name, str(error)))
    return RuntimeEvidence(tuple(dumps), tuple(ras), tuple(traces), activity.with_threads(looks), tuple(rejected))


def _dumps(data: bytes, rank: int, reader: flight_recorder.DumpReader) -> list[RankDump]:
    if debug_tables.is_table(data):
        return debug_tables.read_tables(data, reader)
    return [reader.read(data, _checked(rank))]


def _checked(rank: int) -> int:
    if rank < 0:
        raise BadInput("nothing says of which rank it is")
    if rank >= flight_recorder.RANKS_MAX:  # the default group has every rank up to the last one
        raise BadInput(f"no job has a rank {rank}")
    return rank


def analyze(evidence: RuntimeEvidence, nodes: Mapping[int, str] = _NO_NODES, ranks: int = 0) -> HangReport:
    """Find the ranks that are suspected, with why.

    nodes: rank -> node, as the scheduler or the log has it; where it is silent RAS may know.
    ranks: how many the job has.
    """
    graph = wait_graph.build(evidence.dumps, ranks or len(nodes))
    outliers, waiting = stacks.outliers(evidence.stacks)
    suspects: dict[int, HangSuspect] = {suspect.rank: suspect for suspect in graph.suspects}
    named = frozenset(suspects)
    by_place = _by_place(evidence, named)
    for suspect in (*_by_ras(evidence.ras, suspects), *_by_stacks(outliers, waiting, named), *by_place):
        _add(suspects, suspect)
    hosts = {**_hosts(evidence.ras), **nodes}
    judged = _by_activity(suspects.values(), evidence)
    ranked = [replace(suspect, node=suspect.node or hosts.get(suspect.rank, "")) for suspect in judged]
    ranked.sort(key=lambda suspect: (-suspect.score, suspect.rank))
    notes = () if ranked else graph.notes
    return HangReport(tuple(ranked), graph, tuple(outliers), evidence.rejected, notes)


def _hosts(reports: Iterable[RasReport]) -> dict[int, str]:
    hosts = {}
    for report in reports:
        for rank, host in report.nodes:
            if host:
                hosts[rank] = host
    return hosts


def _add(suspects: dict[int, HangSuspect], suspect: HangSuspect) -> None:
    """Two kinds of evidence against one rank make it surer. One that left no dump is in its own code where its stack,
    or a signal that stopped it, says so."""
    known = suspects.get(suspect.rank)
    if known is None:
        suspects[suspect.rank] = suspect
        return
    score = 1 - (1 - max(known.score, suspect.score)) * _AGREE
    node = known.node or suspect.node
    kind = suspect.kind if known.kind is SuspectKind.ABSENT else known.kind
    why = f"{known.why}; {suspect.why}"
    suspects[suspect.rank] = replace(known, kind=kind, why=why, score=round(score, 2), node=node)


def _by_ras(reports: Iterable[RasReport], known: Mapping[int, HangSuspect]) -> list[HangSuspect]:
    """Suspect ranks that cannot be reached. One that is behind counts where a recorder names it, too, or where nothing
    else is known."""
    unreachable, behind = list[HangSuspect](), list[HangSuspect]()
    for report in reports:
        for finding in report.findings:
            if finding.rank < 0:
                continue
            if finding.behind:
                behind.append(HangSuspect(finding.rank, SuspectKind.BEHIND, finding.why, _BEHIND, finding.node))
            else:
                unreachable.append(HangSuspect(finding.rank, SuspectKind.DEAD, finding.why, _UNREACHABLE, finding.node))
    if known or unreachable:
        behind = [suspect for suspect in behind if suspect.rank in known]
    return unreachable + behind


def _by_stacks(outliers: Iterable[RankStack], waiting: int, named: Collection[int]) -> list[HangSuspect]:
    """Suspect ranks by their stacks.

    waiting: number of ranks that wait.
    named: ranks that the recorders suspect.
    """
    suspects = []
    for stack in outliers:
        if _may_accuse(stack.rank, named):
            why = f"stands in {stack.frames[0]} while {waiting} ranks wait"
            suspects.append(HangSuspect(stack.rank, SuspectKind.STACK, why, _OUTLIER))
    return suspects


def _may_accuse(rank: int, named: Collection[int]) -> bool:
    """Tell whether what a rank does may accuse it: not where recorders name others."""
    return not named or rank in named


def _by_place(evidence: RuntimeEvidence, named: Collection[int]) -> list[HangSuspect]:
    """Suspect ranks by where they stand in the kernel: one that was stopped, and where few ranks left a stack, one that
    waits elsewhere than most. named: as of ``_by_stacks``."""
    suspects = []
    outliers, waiting = activity.outliers(evidence.activity)
    has_stacks = len(evidence.stacks) * 2 > len(evidence.activity)
    for look in outliers:
        if not _may_accuse(look.rank, named):
            continue
        if look.place == STOPPED:
            suspects.append(HangSuspect(look.rank, SuspectKind.STACK, "its process was stopped by a signal", _STUCK))
        elif not has_stacks:
            why = f"{look.stands} while {waiting} ranks wait"
            suspects.append(HangSuspect(look.rank, SuspectKind.STACK, why, _OUTLIER))
    return suspects


def _by_activity(suspects: Iterable[HangSuspect], evidence: RuntimeEvidence) -> list[HangSuspect]:
    """Tell ranks that are stuck in their own code from those that are at work there."""
    looks = {look.rank: look for look in evidence.activity}
    frames = {stack.rank: stack.frames for stack in evidence.stacks}
    judged = []
    for suspect in suspects:
        look = looks.get(suspect.rank)
        if look is not None and suspect.kind in _MAY_BE_STUCK:
            suspect = _stuck_or_at_work(suspect, look, frames.get(suspect.rank, ()))
        judged.append(suspect)
    return judged


def _stuck_or_at_work(suspect: HangSuspect, look: RankActivity, frames: Sequence[str]) -> HangSuspect:
    if look.is_at_work:
        if suspect.kind not in _IN_OWN_CODE:
            return suspect  # in a collective some libraries spin
        work = activity.kind_of_work(look, frames)
        why = f"{work} ({look.describe()}): {suspect.why}"
        return replace(suspect, kind=SuspectKind.AT_WORK, why=why, work_seconds=activity.WORK_SECONDS[work])
    why = f"{suspect.why}, and used neither processor nor disk between two looks"
    return replace(suspect, why=why, score=max(suspect.score, _STUCK), stuck_in="".join(frames[:1]))


def contract(result: HangReport) -> dict[str, Any]:
    """Make values that JSON has; the suspects stand with the most likely first."""
    return {
        "suspects": list(map(_suspect, result.suspects)),
        "groups": list(map(_group, result.graph.groups)),
        "mismatches": list(map(_mismatch, result.graph.mismatches)),
        "not_seen": list(result.graph.not_seen),
        "waits": {str(rank): sorted(others) for rank, others in sorted(result.graph.waits.items())},
        "notes": list(result.notes),
        "rejected": [{"file": name, "why": why} for name, why in result.rejected],
    }


def _suspect(suspect: HangSuspect) -> dict[str, Any]:
    return {
        "rank": suspect.rank,
        "why": suspect.why,
        "score": suspect.score,
        "kind": str(suspect.kind),
        "node": suspect.node or None,
    }


def _group(state: GroupState) -> dict[str, Any]:
    return {
        "group": state.group.title,
        "ranks": list(state.group.ranks),
        "highest": state.highest,
        "operation": state.operation,
        "behind": {str(rank): sequence for rank, sequence in state.behind.items()},
        "not_seen": list(state.not_seen),
    }


def _mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "group": mismatch.group.title,
        "sequence": mismatch.sequence,
        "variants": [{"call": call, "ranks": list(ranks)} for call, ranks in mismatch.variants.items()],
    }

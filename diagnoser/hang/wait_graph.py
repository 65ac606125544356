"""Who waits for whom: from the flight recorders of many ranks to the ranks that hold up the others.

A rank stands in its oldest operation that is not done. It waits for each member of that operation's group that neither
stands there too nor is past it. Who is waited for, and waits for nobody, holds up the others. A rank whose GPU has not
finished what others of its group have finished long ago stands still by itself. The idea of comparing sequence numbers
within a group is that of PyTorch's own analyser (torch/distributed/flight_recorder) and of NVIDIA's resiliency
extension; they list the ranks that are behind, the ones that wait for them among these.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from operator import attrgetter

from diagnoser.hang.flight_recorder import DEFAULT, Group, GroupProgress, Operation, RankDump
from diagnoser.model import HangSuspect, SuspectKind

_NAMED = 4
"""Most ranks or groups that a sentence names."""
_FEW = 0.25
"""Largest part of a group that may be suspected for having left no dump."""
_ABSENT_MAX = 1000
_SURE, _WAITED, _ABSENT, _MISMATCH = 0.95, 0.5, 0.8, 0.85
_SAME_INPUT = re.compile("all_?reduce|broadcast|reduce_scatter|_allgather_base|all_gather")
"""Collectives whose input has one size on all ranks."""
_DEPENDENT = re.compile("all_?reduce|all_?gather|reduce_scatter|all_to_all|barrier")
"""Collectives that no rank can finish before every rank has begun them."""
_NOT_YET = GroupProgress(-1, -1)
_SOMEBODY = -1
"""In place of ranks without a dump that are too many to be suspected one by one."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """Where the ranks of a group are. highest: sequence number of the last collective that any of them enqueued.
    behind: rank -> the last one that it enqueued. not_seen: ranks without a dump."""

    group: Group
    highest: int
    operation: str
    behind: Mapping[int, int]
    not_seen: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that called different collectives, or with different sizes, at one sequence number of a group."""

    group: Group
    sequence: int
    variants: Mapping[str, tuple[int, ...]]

    @property
    def usual(self) -> str:
        """The call of most ranks."""
        return max(self.variants, key=lambda call: len(self.variants[call]))


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """waits: rank -> the ranks that it waits for. heads: rank -> the operation in which it stands."""

    suspects: tuple[HangSuspect, ...] = ()
    groups: tuple[GroupState, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    not_seen: tuple[int, ...] = ()
    waits: Mapping[int, frozenset[int]] = field(default_factory=dict)
    heads: Mapping[int, Operation] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def build(dumps: Iterable[RankDump], ranks: int = 0) -> WaitGraph:
    """Build the graph. Of two dumps of one rank the one that saw more counts.

    ranks: of the job, 0 where nobody knows.
    """
    world = _World(_with_members(list(dumps), ranks))
    mismatches = world.mismatches()
    waits = {rank: world.awaited(rank, head) for rank, head in world.heads.items()}
    suspects = _by_mismatch(mismatches) or _by_waits(world, waits) or _by_sequence(world)
    notes = () if suspects else world.nobody_is_behind()
    return WaitGraph(
        suspects=tuple(sorted(suspects, key=lambda suspect: (-suspect.score, suspect.rank))),
        groups=world.states(),
        mismatches=mismatches,
        not_seen=world.not_seen,
        waits=_named(waits),
        heads=world.heads,
        notes=notes,
    )


def _named(waits: Mapping[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    named = {}
    for rank, others in waits.items():
        if others := others - {_SOMEBODY}:
            named[rank] = others
    return named


def _with_members(dumps: list[RankDump], ranks: int) -> list[RankDump]:
    """Give the groups whose ranks no dump says those that mention them; the default group also those between."""
    seen: dict[Group, list[int]] = defaultdict(list)
    for dump in dumps:
        for group in dump.groups:
            if not group.ranks:
                seen[group].append(dump.rank)
    if not seen:
        return dumps
    everyone = range(max(ranks, 1 + max(dump.rank for dump in dumps)))
    members = {}
    for group, mentioned in seen.items():
        known = everyone if group.description == DEFAULT else sorted(mentioned)
        members[group] = Group(group.description, tuple(known))
    return [_with_groups(dump, members) for dump in dumps]


def _with_groups(dump: RankDump, members: Mapping[Group, Group]) -> RankDump:
    """members: group without its ranks -> the same with them."""
    operations = []
    for operation in dump.operations:
        operations.append(operation._replace(group=members.get(operation.group, operation.group)))
    progress = {}
    for group, numbers in dump.progress.items():
        progress[members.get(group, group)] = numbers
    return replace(dump, operations=tuple(operations), progress=progress)


class _World:
    """All dumps, and what follows from each alone."""

    def __init__(self, dumps: Iterable[RankDump]) -> None:
        self.dumps: dict[int, RankDump] = {}
        for dump in sorted(dumps, key=lambda dump: len(dump.operations)):
            self.dumps[dump.rank] = dump
        pending = dict[int, list[Operation]]()
        self.heads: dict[int, Operation] = {}
        self.groups: set[Group] = set()
        for rank, dump in self.dumps.items():
            pending[rank] = list(filterfalse(attrgetter("done"), dump.operations))
            if pending[rank]:
                self.heads[rank] = pending[rank][0]
            self.groups |= dump.groups
        self.seen: dict[Group, list[int]] = {}
        absent = set[int]()
        self.largest = 0
        for group in self.groups:
            self.seen[group] = list(filter(self.dumps.__contains__, group.ranks))
            absent.update(group.ranks)
            self.largest = max(self.largest, len(group.ranks))
        self.not_seen = tuple(sorted(absent - self.dumps.keys()))
        self.furthest = self._furthest()
        self._awaited: dict[tuple[Group, int], frozenset[int]] = {}
        self.stalled = self._stalled(pending)

    def progress(self, rank: int, group: Group) -> GroupProgress:
        return self.dumps[rank].progress.get(group, _NOT_YET)

    def _furthest(self) -> dict[Group, int]:
        """Group -> the last collective that any rank has completed."""
        furthest: dict[Group, int] = defaultdict(lambda: -1)
        for dump in self.dumps.values():
            for group, progress in dump.progress.items():
                furthest[group] = max(furthest[group], progress.completed)
        return furthest

    def _stalled(self, pending: Mapping[int, Sequence[Operation]]) -> dict[int, Operation]:
        """The first operation of each rank that others have overtaken."""
        stalled = {}
        for rank, operations in pending.items():
            for operation in operations:
                if self._overtaken(rank, operation):
                    stalled[rank] = operation
                    break
        return stalled

    def _overtaken(self, rank: int, operation: Operation) -> bool:
        """Whether others completed not only this but a later collective, which could not begin without this rank. Where
        this rank had not called that one when it wrote its dump, the others only wrote theirs later."""
        if not _depends(operation):
            return False
        called = self.progress(rank, operation.group).enqueued
        return operation.sequence < self.furthest[operation.group] <= called

    def _stands_in(self, rank: int, operation: Operation) -> bool:
        head = self.heads.get(rank)
        if head is None:
            return False
        if head.group != operation.group:
            return False
        if head.is_collective != operation.is_collective:
            return False
        if operation.is_collective:
            return head.sequence == operation.sequence
        return head.sends != operation.sends

    def awaited(self, rank: int, head: Operation) -> frozenset[int]:
        """Ranks that keep this one from going on. Of those without a dump only where no other does."""
        if rank in self.stalled:
            return frozenset()
        if not head.is_collective:
            if self._stands_in(head.peer, head):
                return frozenset()
            return frozenset((head.peer,))
        place = (head.group, head.sequence)
        if place not in self._awaited:
            self._awaited[place] = self._missing(head, self._needed(rank, head.group))
        return self._awaited[place]

    def _needed(self, rank: int, group: Group) -> int:
        """The last collective that this rank has completed, and could not without each of the group."""
        needed = -1
        for operation in self.dumps[rank].operations:
            if operation.group is group and operation.done and _depends(operation):
                needed = max(needed, operation.sequence)
        return needed

    def _missing(self, operation: Operation, needed: int) -> frozenset[int]:
        """Ranks of the group that keep the operation from ending.

        needed: the last collective before it that needed every rank.
        """
        group, seen = operation.group, self.seen[operation.group]
        missing = [rank for rank in seen if self._is_missing(rank, operation, needed)]
        if missing or len(seen) == len(group.ranks):
            return frozenset(missing)
        if len(group.ranks) - len(seen) > min(_ABSENT_MAX, max(1, _FEW * self.largest)):
            return frozenset((_SOMEBODY,))
        return frozenset(group.ranks).difference(self.dumps)

    def _is_missing(self, rank: int, operation: Operation, needed: int) -> bool:
        if self._stands_in(rank, operation):
            return False
        progress = self.progress(rank, operation.group)
        if progress.completed >= operation.sequence:
            return False
        # a rank that had not even called the needed one wrote its dump earlier: nobody knows what it did since
        return not 0 <= progress.enqueued < needed

    def mismatches(self) -> tuple[Mismatch, ...]:
        """Find mismatches of the operations in which ranks stand; where all is over, of the last ones."""
        at: dict[tuple[Group, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, operation in (self.heads or self._last_called()).items():
            if operation.is_collective:
                at[operation.group, operation.sequence][_call(operation)].append(rank)
        mismatches = []
        for (group, sequence), calls in at.items():
            if len(calls) > 1:
                variants = {call: tuple(sorted(ranks)) for call, ranks in calls.items()}
                mismatches.append(Mismatch(group, sequence, variants))
        return tuple(mismatches)

    def _last_called(self) -> dict[int, Operation]:
        return {rank: dump.operations[-1] for rank, dump in self.dumps.items() if dump.operations}

    def states(self) -> tuple[GroupState, ...]:
        """Groups of which some rank is behind or not seen, or in which some rank stands."""
        standing: dict[Group, str] = {}
        for head in self.heads.values():
            standing.setdefault(head.group, head.name)
        states = []
        for group in sorted(self.groups, key=lambda group: (-len(group.ranks), group.description, group.ranks)):
            state = self._state(group, standing.get(group, ""))
            if state.behind or group in standing:
                states.append(state)
        return tuple(states)

    def _state(self, group: Group, operation: str) -> GroupState:
        enqueued = {rank: self.progress(rank, group).enqueued for rank in self.seen[group]}
        highest = max(enqueued.values(), default=-1)
        behind = {rank: sequence for rank, sequence in enqueued.items() if 0 <= sequence < highest}
        not_seen = filterfalse(self.dumps.__contains__, group.ranks)
        return GroupState(group, highest, operation, behind, tuple(not_seen))

    def nobody_is_behind(self) -> tuple[str, ...]:
        """Say where all ranks stand, nothing where none does."""
        if not self.heads:
            return ()
        head = Counter((head.name, head.group.description) for head in self.heads.values()).most_common(1)[0][0]
        where = f"{head[0]} of {head[1] or 'the default group'}"
        return (f"every rank has begun {where}: the network or a GPU stands still",)


def _depends(operation: Operation) -> bool:
    if not operation.is_collective:
        return False
    return _DEPENDENT.search(operation.name) is not None


def _call(operation: Operation) -> str:
    if _SAME_INPUT.search(operation.name):
        return f"{operation.name} {operation.sizes} {operation.types}".strip()
    return operation.name


def _by_mismatch(mismatches: Iterable[Mismatch]) -> list[HangSuspect]:
    """The ranks that called what fewer did. Of equal parts nobody can say which is wrong."""
    suspects: dict[int, HangSuspect] = {}
    for mismatch in mismatches:
        usual = mismatch.usual
        most = len(mismatch.variants[usual])
        for call, ranks in mismatch.variants.items():
            if len(ranks) == most:
                continue
            why = f"calls {call} as number {mismatch.sequence} of {_name(mismatch.group)}; {most} ranks call {usual}"
            for rank in ranks:
                suspects[rank] = HangSuspect(rank, SuspectKind.MISMATCH, why, _MISMATCH)
    return list(suspects.values())


def _by_waits(world: _World, waits: Mapping[int, frozenset[int]]) -> list[HangSuspect]:
    """Ranks at the end of all waiting: each is scored by how many wait for it, directly or not."""
    waiters: dict[int, set[int]] = defaultdict(set)
    for rank, others in waits.items():
        for other in others:
            waiters[other].add(rank)
    ends = [rank for rank in waiters.keys() | world.stalled.keys() if not waits.get(rank)]
    if not ends:
        return _circle(world, waiters)
    behind = {rank: _all_behind(rank, waiters) for rank in ends}
    blamed = list(filter(world.dumps.__contains__, ends)) or _absent(world, behind)
    return [_waited_for(world, rank, waiters[rank], behind[rank]) for rank in blamed]


def _absent(world: _World, behind: Mapping[int, set[int]]) -> list[int]:
    """Ranks without a dump, where no other rank is to blame: those for which most wait. Each of the others may itself
    wait for one of these."""
    most = max(map(len, behind.values()))
    absent = [rank for rank, ranks in behind.items() if 2 * len(ranks) > most and rank != _SOMEBODY]
    return _suspectable(absent, world)


def _suspectable(absent: Sequence[int], world: _World) -> list[int]:
    """List the ranks without a dump that may be suspected: not where most of a rank's group left none."""
    suspects = []
    for rank in absent:
        largest = max((len(group.ranks) for group in world.groups if rank in group.ranks), default=0)
        if len(absent) <= max(1, _FEW * largest):
            suspects.append(rank)
    return suspects


def _all_behind(rank: int, waiters: Mapping[int, set[int]]) -> set[int]:
    reached, todo = {rank}, [rank]
    while todo:
        for waiter in waiters.get(todo.pop(), ()):
            if waiter not in reached:
                reached.add(waiter)
                todo.append(waiter)
    return reached - {rank}


def _waited_for(world: _World, rank: int, direct: set[int], behind: set[int]) -> HangSuspect:
    share = len(behind) / max(1, len(world.dumps) - 1)
    score = _WAITED + (_SURE - _WAITED) * min(1.0, share)
    waits = _waiters(behind)
    place = f" in {_place(world.heads[min(direct)])}" if direct else ""
    if rank not in world.dumps:
        why = f"{waits}{place}, and it left no dump"
        return HangSuspect(rank, SuspectKind.ABSENT, why, round(score * _ABSENT, 2))
    if operation := world.stalled.get(rank):
        done = world.furthest[operation.group]
        why = f"has not finished {_place(operation)}, of which others finished number {done}"
        if waits:
            why = f"{why}; {waits}"
        return HangSuspect(rank, SuspectKind.STALLED, why, round(max(score, 0.7), 2))
    stands = "it has called nothing that is not done"
    if operations := world.dumps[rank].operations:
        stands = f"the last it called is {_place(operations[-1])}"
    return HangSuspect(rank, SuspectKind.BEHIND, f"{waits}{place}; {stands}", round(score, 2))


def _waiters(behind: set[int]) -> str:
    match len(behind):
        case 0:
            return ""
        case 1:
            return f"rank {min(behind)} waits for it"
        case many:
            return f"{many} ranks wait for it"


def _circle(world: _World, waiters: Mapping[int, set[int]]) -> list[HangSuspect]:
    """Ranks that wait for each other. Of an order that one rank has reversed, that one is waited for by most."""
    most = max(map(len, waiters.values()), default=0)
    few = [rank for rank, ranks in waiters.items() if len(ranks) == most]
    if len(few) * 2 > len(waiters) > 2:
        return []
    suspects = []
    for rank in few:
        if rank in world.heads:
            why = (
                f"stands in {_place(world.heads[rank])}, and waits there for ranks that wait for it "
                f"in {_place(world.heads[min(waiters[rank])])}: they call the same groups in another order"
            )
            suspects.append(HangSuspect(rank, SuspectKind.DEADLOCK, why, 0.6))
    return suspects


def _by_sequence(world: _World) -> list[HangSuspect]:
    """Suspect ranks where no operation is open: those that enqueued fewer collectives of a group than the others, or
    left no dump.
    """
    suspects: dict[int, HangSuspect] = {}
    for state in world.states():
        for rank, sequence in state.behind.items():
            why = f"is at collective {sequence} of {_name(state.group)}, others at {state.highest}"
            suspects.setdefault(rank, HangSuspect(rank, SuspectKind.BEHIND, why, 0.7))
    if not (suspects or world.heads):
        why = f"left no dump, as {len(world.dumps)} others did"
        for rank in _suspectable(world.not_seen, world):
            suspects[rank] = HangSuspect(rank, SuspectKind.ABSENT, why, 0.6)
    return list(suspects.values())


def _place(operation: Operation) -> str:
    place = f"{operation.name} from rank {operation.peer} ({_name(operation.group)})"
    if operation.is_collective:
        place = f"{operation.name} number {operation.sequence} of {_name(operation.group)}"
    elif operation.sends:
        place = f"{operation.name} to rank {operation.peer} ({_name(operation.group)})"
    if operation.frame:
        return f"{place} at {operation.frame}"
    return place


def _name(group: Group) -> str:
    name = "the default group" if group.description in ("", DEFAULT) else group.description
    ranks = ", ".join(map(str, group.ranks[:_NAMED]))
    if len(group.ranks) > _NAMED:
        ranks += ", ..."
    return f"{name} [{ranks}]"

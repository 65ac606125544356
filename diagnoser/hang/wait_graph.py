"""Who waits for whom: from the flight recorders of many ranks to the ranks that hold up the others.

A rank stands in its oldest operation that is not done. It waits for each member of that operation's group that neither
stands there too nor is past it. Who is waited for, and waits for nobody, holds up the others. A rank whose GPU has not
finished what others of its group have finished long ago stands still by itself. The idea of comparing sequence numbers
within a group is that of PyTorch's own analyser (torch/distributed/flight_recorder) and of NVIDIA's resiliency
extension; they list the ranks that are behind, the ones that wait for them among these.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.hang.flight_recorder import DEFAULT, Group, Operation, Progress, RankDump
from diagnoser.model import HangSuspect, SuspectKind

_NAMED = 4
"""Most ranks or groups that a sentence names."""
_FEW = 0.25
"""Largest part of a group that may be suspected for having left no dump."""
_ABSENT_MAX = 1000
_SURE, _WAITED, _ABSENT, _MISMATCH = 0.95, 0.5, 0.8, 0.85
_SAME_INPUT = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_allgather_base", "all_gather", "_all_gather")
"""Collectives whose input has one size on all ranks."""
_DEPENDENT = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank can finish before every rank has begun them."""
_NOT_YET = Progress(-1, -1)
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
    notes = () if suspects or not world.heads else (world.nobody_is_behind(),)
    return WaitGraph(
        suspects=tuple(sorted(suspects, key=lambda suspect: (-suspect.score, suspect.rank))),
        groups=world.states(),
        mismatches=mismatches,
        not_seen=world.not_seen,
        waits={rank: named for rank, others in waits.items() if (named := others - {_SOMEBODY})},
        heads=world.heads,
        notes=notes,
    )


def _with_members(dumps: list[RankDump], ranks: int) -> list[RankDump]:
    """Give the groups whose ranks no dump says those that mention them; the default group also those between."""
    seen: dict[Group, list[int]] = defaultdict(list)
    for dump in dumps:
        for group in dump.groups:
            if not group.ranks:
                seen[group].append(dump.rank)
    if not seen:
        return dumps
    everyone = tuple(range(max(ranks, 1 + max(dump.rank for dump in dumps))))
    members = {
        group: Group(group.description, everyone if group.description == DEFAULT else tuple(sorted(own)))
        for group, own in seen.items()
    }
    return [_with_groups(dump, members) for dump in dumps]


def _with_groups(dump: RankDump, members: Mapping[Group, Group]) -> RankDump:
    """members: group without its ranks -> the same with them."""
    operations = [
        operation._replace(group=members.get(operation.group, operation.group)) for operation in dump.operations
    ]
    progress = {members.get(group, group): progress for group, progress in (dump.progress or {}).items()}
    return replace(dump, operations=tuple(operations), progress=progress)


def _pending(dump: RankDump) -> list[Operation]:
    return [operation for operation in dump.operations if not operation.done]


class _World:
    """All dumps, and what follows from each alone."""

    def __init__(self, dumps: Iterable[RankDump]) -> None:
        self.dumps: dict[int, RankDump] = {}
        for dump in sorted(dumps, key=lambda dump: len(dump.operations)):
            self.dumps[dump.rank] = dump
        pending = {rank: _pending(dump) for rank, dump in self.dumps.items()}
        self.heads = {rank: operations[0] for rank, operations in pending.items() if operations}
        self.groups = {group for dump in self.dumps.values() for group in dump.groups}
        self.not_seen = tuple(sorted({rank for group in self.groups for rank in group.ranks} - self.dumps.keys()))
        self.furthest = self._furthest()
        self._awaited: dict[tuple[Group, int], frozenset[int]] = {}
        self.largest = max((len(group.ranks) for group in self.groups), default=0)
        self.seen = {group: [rank for rank in group.ranks if rank in self.dumps] for group in self.groups}
        self.stalled = self._stalled(pending)

    def progress(self, rank: int, group: Group) -> Progress:
        return (self.dumps[rank].progress or {}).get(group, _NOT_YET)

    def _furthest(self) -> dict[Group, int]:
        """Group -> the last collective that any rank has completed."""
        furthest: dict[Group, int] = defaultdict(lambda: -1)
        for dump in self.dumps.values():
            for group, progress in (dump.progress or {}).items():
                furthest[group] = max(furthest[group], progress.completed)
        return furthest

    def _stalled(self, pending: Mapping[int, Sequence[Operation]]) -> dict[int, Operation]:
        """The first operation of each rank that others have overtaken."""
        stalled = {}
        for rank, operations in pending.items():
            overtaken = next((operation for operation in operations if self._overtaken(rank, operation)), None)
            if overtaken:
                stalled[rank] = overtaken
        return stalled

    def _overtaken(self, rank: int, operation: Operation) -> bool:
        """Whether others completed not only this but a later collective, which could not begin without this rank. Where
        this rank had not called that one when it wrote its dump, the others only wrote theirs later."""
        called = self.progress(rank, operation.group).enqueued
        return _depends(operation) and operation.sequence < self.furthest[operation.group] <= called

    def _stands_in(self, rank: int, operation: Operation) -> bool:
        head = self.heads.get(rank)
        if head is None or head.group != operation.group or head.is_collective != operation.is_collective:
            return False
        return head.sequence == operation.sequence if operation.is_collective else head.sends != operation.sends

    def awaited(self, rank: int, head: Operation) -> frozenset[int]:
        """Ranks that keep this one from going on. Of those without a dump only where no other does."""
        if rank in self.stalled:
            return frozenset()
        if not head.is_collective:
            there = head.peer in self.dumps and self._stands_in(head.peer, head)
            return frozenset() if there else frozenset((head.peer,))
        place = (head.group, head.sequence)
        if place not in self._awaited:
            self._awaited[place] = self._missing(head, self._needed(rank, head.group))
        return self._awaited[place]

    def _needed(self, rank: int, group: Group) -> int:
        """The last collective that this rank has completed, and could not without each of the group."""
        return max(
            (
                operation.sequence
                for operation in self.dumps[rank].operations
                if operation.done and operation.group is group and _depends(operation)
            ),
            default=-1,
        )

    def _missing(self, operation: Operation, needed: int) -> frozenset[int]:
        """Ranks of the group that are not in the operation, and not past it. A rank that had not even called what was
        needed before wrote its dump earlier: what it did since nobody knows.
        """
        group, seen = operation.group, self.seen[operation.group]
        missing = [
            rank
            for rank in seen
            if not (self._stands_in(rank, operation) or self._is_past(rank, operation))
            and not 0 <= self.progress(rank, group).enqueued < needed
        ]
        if missing or len(seen) == len(group.ranks):
            return frozenset(missing)
        if len(group.ranks) - len(seen) > min(_ABSENT_MAX, max(1, _FEW * self.largest)):
            return frozenset((_SOMEBODY,))
        return frozenset(rank for rank in group.ranks if rank not in self.dumps)

    def _is_past(self, rank: int, operation: Operation) -> bool:
        return self.progress(rank, operation.group).completed >= operation.sequence

    def mismatches(self) -> tuple[Mismatch, ...]:
        """Find mismatches of the operations in which ranks stand; where all is over, of the last ones."""
        last = {rank: dump.operations[-1] for rank, dump in self.dumps.items() if dump.operations}
        at: dict[tuple[Group, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, operation in (self.heads or last).items():
            if operation.is_collective:
                at[operation.group, operation.sequence][_call(operation)].append(rank)
        return tuple(
            Mismatch(group, sequence, {call: tuple(sorted(ranks)) for call, ranks in variants.items()})
            for (group, sequence), variants in at.items()
            if len(variants) > 1
        )

    def states(self) -> tuple[GroupState, ...]:
        """Groups of which some rank is behind or not seen, or in which some rank stands."""
        standing: dict[Group, Operation] = {}
        for head in self.heads.values():
            standing.setdefault(head.group, head)
        return tuple(
            state
            for group in sorted(self.groups, key=lambda group: (-len(group.ranks), group.description, group.ranks))
            if (state := self._state(group, standing.get(group)))
        )

    def _state(self, group: Group, standing: Operation | None) -> GroupState | None:
        enqueued = {rank: self.progress(rank, group).enqueued for rank in self.seen[group]}
        highest = max(enqueued.values(), default=-1)
        behind = {rank: sequence for rank, sequence in enqueued.items() if 0 <= sequence < highest}
        if not behind and standing is None:
            return None
        not_seen = tuple(rank for rank in group.ranks if rank not in self.dumps)
        return GroupState(group, highest, standing.name if standing else "", behind, not_seen)

    def nobody_is_behind(self) -> str:
        head = Counter((head.name, head.group.description) for head in self.heads.values()).most_common(1)[0][0]
        return f"every rank has begun {head[0]} of {head[1] or 'the default group'}: the network or a GPU stands still"


def _depends(operation: Operation) -> bool:
    return operation.is_collective and any(name in operation.name for name in _DEPENDENT)


def _call(operation: Operation) -> str:
    one_size = any(name in operation.name for name in _SAME_INPUT)
    return f"{operation.name} {operation.sizes} {operation.types}".strip() if one_size else operation.name


def _by_mismatch(mismatches: Iterable[Mismatch]) -> list[HangSuspect]:
    """The ranks that called what fewer did. Of equal parts nobody can say which is wrong."""
    suspects: dict[int, HangSuspect] = {}
    for mismatch in mismatches:
        most = max(map(len, mismatch.variants.values()))
        usual = next(call for call, ranks in mismatch.variants.items() if len(ranks) == most)
        few = {call: ranks for call, ranks in mismatch.variants.items() if len(ranks) < most}
        for call, ranks in few.items():
            why = f"calls {call} as number {mismatch.sequence} of {_name(mismatch.group)}; {most} ranks call {usual}"
            suspects |= {rank: HangSuspect(rank, SuspectKind.MISMATCH, why, _MISMATCH) for rank in ranks}
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
    seen = [rank for rank in ends if rank in world.dumps]
    return [_waited_for(world, rank, waiters[rank], behind[rank]) for rank in seen or _absent(world, behind)]


def _absent(world: _World, behind: Mapping[int, set[int]]) -> list[int]:
    """Ranks without a dump, where no other rank is to blame: those for which most wait. Each of the others may itself
    wait for one of these."""
    most = max(map(len, behind.values()))
    absent = [rank for rank, ranks in behind.items() if 2 * len(ranks) > most and rank != _SOMEBODY]
    return [rank for rank in absent if _may_be_suspected(rank, absent, world)]


def _may_be_suspected(rank: int, absent: list[int], world: _World) -> bool:
    """Whether a rank without a dump may be suspected: not where most of its group left none."""
    groups = [group for group in world.groups if rank in group.ranks and len(group.ranks) > 1]
    largest = max((len(group.ranks) for group in groups), default=0)
    return len(absent) <= max(1, _FEW * largest)


def _all_behind(rank: int, waiters: Mapping[int, set[int]]) -> set[int]:
    reached, todo = set[int](), [rank]
    while todo:
        for waiter in waiters.get(todo.pop(), ()):
            if waiter not in reached and waiter != rank:
                reached.add(waiter)
                todo.append(waiter)
    return reached


def _waited_for(world: _World, rank: int, direct: set[int], behind: set[int]) -> HangSuspect:
    share = len(behind) / max(1, len(world.dumps) - 1)
    score = _WAITED + (_SURE - _WAITED) * min(1.0, share)
    many = f"{len(behind)} ranks wait for it" if behind else ""
    waits = f"rank {min(behind)} waits for it" if len(behind) == 1 else many
    place = f" in {_place(world.heads[min(direct)])}" if direct else ""
    if rank not in world.dumps:
        why = f"{waits}{place}, and it left no dump"
        return HangSuspect(rank, SuspectKind.ABSENT, why, round(score * _ABSENT, 2))
    if operation := world.stalled.get(rank):
        done = world.furthest[operation.group]
        why = f"has not finished {_place(operation)}, of which others finished number {done}"
        return HangSuspect(rank, SuspectKind.STALLED, f"{why}; {waits}" if waits else why, round(max(score, 0.7), 2))
    last = world.dumps[rank].operations[-1:]
    stands = f"; the last it called is {_place(last[0])}" if last else "; it has called nothing that is not done"
    return HangSuspect(rank, SuspectKind.BEHIND, f"{waits}{place}{stands}", round(score, 2))


def _circle(world: _World, waiters: Mapping[int, set[int]]) -> list[HangSuspect]:
    """Ranks that wait for each other. Of an order that one rank has reversed, that one is waited for by most."""
    if not waiters:
        return []
    most = max(map(len, waiters.values()))
    few = [rank for rank, ranks in waiters.items() if len(ranks) == most]
    if len(few) * 2 > len(waiters) and len(waiters) > 2:
        return []
    return [
        HangSuspect(
            rank,
            SuspectKind.DEADLOCK,
            f"stands in {_place(world.heads[rank])}, and waits there for ranks that wait for it "
            f"in {_place(world.heads[min(waiters[rank])])}: they call the same groups in another order",
            0.6,
        )
        for rank in few
        if rank in world.heads
    ]


def _by_sequence(world: _World) -> list[HangSuspect]:
    """Suspect ranks where no operation is open: who enqueued fewer collectives of a group than the others, or left no
    dump.
    """
    suspects: dict[int, HangSuspect] = {}
    for state in world.states():
        for rank, sequence in state.behind.items():
            why = f"is at collective {sequence} of {_name(state.group)}, others at {state.highest}"
            suspects.setdefault(rank, HangSuspect(rank, SuspectKind.BEHIND, why, 0.7))
    if suspects or world.heads:
        return list(suspects.values())
    return [
        HangSuspect(rank, SuspectKind.ABSENT, f"left no dump, as {len(world.dumps)} others did", 0.6)
        for rank in world.not_seen
        if _may_be_suspected(rank, list(world.not_seen), world)
    ]


def _place(operation: Operation) -> str:
    where = f" at {operation.frame}" if operation.frame else ""
    if operation.is_collective:
        return f"{operation.name} number {operation.sequence} of {_name(operation.group)}{where}"
    to = "to" if operation.sends else "from"
    return f"{operation.name} {to} rank {operation.peer} ({_name(operation.group)}){where}"


def _name(group: Group) -> str:
    ranks = ", ".join(map(str, group.ranks[:_NAMED])) + (", ..." if len(group.ranks) > _NAMED else "")
    name = "the default group" if group.description in ("", DEFAULT) else group.description
    return f"{name} [{ranks}]"

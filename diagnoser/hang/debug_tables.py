"""Tables of `torch.distributed.debug`: what PyTorch's debug server writes of the flight recorders of all ranks.

One text for the whole job (`fr_trace_<time>.txt`): its groups, and for each collective which of its ranks have not
called it, or have called another one. That is less than the dumps say from which torch makes it: rows begin where the
records of all ranks overlap, and whether a collective is done is known of one rank only. Sends and receives are left
out here, for torch pairs them as if all of their group took part. Of gloo, whose groups it cannot name, it writes none.
Format: torch/distributed/debug/_debug_handlers.py and torch/distributed/flight_recorder/components of PyTorch 2.13,
printed in columns by tabulate.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from diagnoser.hang.flight_recorder import (
    ENTRIES_MAX,
    RANKS_MAX,
    DumpReader,
    Group,
    Operation,
    RankDump,
    own_frame,
    progress_of,
)
from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
COLUMNS_MAX = 40
MEMBERS_MAX, MISSING_MAX = 1_000_000, 250_000
"""Most ranks that all rows name together, and most of these that are missing."""
_HEADING = re.compile(rb"^=== (?:TorchComms )?FR Trace\b", re.MULTILINE)
_SILENT = re.compile(r"^  Rank (\d{1,7}): ")
_TABLE = re.compile(r"^--- ([A-Z][A-Za-z ]{1,40}) ---$")
_CELL = re.compile(r"\S+(?: \S+)*")
_NUMBER = re.compile(r"\d{1,7}")
_OTHER = re.compile(
    r"(\d{1,7}): Collective\(id=\d{1,18}, group_id='[^']{0,300}', pass_check=\w{4,5}, collective_seq_id=\d{1,18}, "
    r"p2p_seq_id=\d{1,18}, record_id=\d{1,18}, pg_desc='[^']{0,700}', collective_name='([^']{1,200})', "
    r"input_sizes=\[([^=]{0,700})\], "
)
_FRAME = re.compile(r"\{'name': '([^']{0,300})', 'filename': '([^']{0,400})', 'line': (\d{1,9})\}")
_FRAMES_MAX = 50
_MEMBERSHIPS = "Memberships"
_TABLES = (_MEMBERSHIPS, "Collectives")


@dataclass(frozen=True, slots=True)
class _Row:
    """One collective. missing: ranks that have no record of it. others: rank -> name and sizes of what it called in its
    place."""

    group: Group
    sequence: int
    operation: Operation
    missing: frozenset[int]
    others: Mapping[int, tuple[str, str]]


def is_table(data: bytes) -> bool:
    if data[:1] not in b"=P":  # "PARTIAL DATA", where some rank was silent
        return False
    return _HEADING.search(data) is not None


def read_tables(data: bytes, reader: DumpReader) -> list[RankDump]:
    """Read the dump of each rank that answered. Raises BadInput for a text without such a table."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"tables of {len(data)} bytes are larger than {BYTES_MAX}")
    lines = data.decode("utf-8", "replace").splitlines()
    silent = set()
    for line in lines:
        if match := _SILENT.match(line):
            silent.add(int(match[1]))
    members, rows = _members_and_rows(lines, reader)
    for row in rows:
        members.update(row.group.ranks)
    if not members:
        raise BadInput("the tables of torch.distributed.debug name no rank")
    operations = _by_rank(rows, silent)
    dumps = []
    for rank in sorted(members - silent):
        called = tuple(operations.get(rank, ()))
        dumps.append(RankDump(rank, called, progress_of(called)))
    return dumps


def _members_and_rows(lines: Sequence[str], reader: DumpReader) -> tuple[set[int], list[_Row]]:
    """The ranks that the table of memberships names, and the rows of collectives. Raises BadInput for too many."""
    members, rows, named, missing = set[int](), list[_Row](), 0, 0
    for table, cells, line in _rows(lines):
        if table == _MEMBERSHIPS:
            members.update(_ranks(cells.get("global_rank", "")))
            continue
        if len(rows) == ENTRIES_MAX:
            continue
        row = _row(cells, line, len(rows), reader)
        if row is None:
            continue
        rows.append(row)
        named += len(row.group.ranks)
        missing += len(row.missing)
        if named > MEMBERS_MAX or missing > MISSING_MAX:
            raise BadInput(f"the rows of the table name more than {MEMBERS_MAX} ranks, or {MISSING_MAX} as missing")
    return members, rows


def _by_rank(rows: list[_Row], silent: Container[int]) -> dict[int, list[Operation]]:
    """A rank that is missing in one row, and not in a later one of that group, has called both: its record of the first
    is gone, for a full buffer loses the oldest."""
    last = _last_called(rows)
    called: dict[int, list[Operation]] = defaultdict(list)
    for row in rows:
        for rank in row.group.ranks:
            if rank in silent:
                continue
            if rank not in row.missing or last[row.group, rank] > row.sequence:
                called[rank].append(_as_called(row, rank))
    return called


def _last_called(rows: list[_Row]) -> dict[tuple[Group, int], int]:
    """(group, rank) -> number of the last collective that it has called, of ranks that are missing somewhere."""
    sequences: dict[Group, set[int]] = defaultdict(set)
    absences: dict[tuple[Group, int], set[int]] = defaultdict(set)
    for row in rows:
        sequences[row.group].add(row.sequence)
        for rank in row.missing:
            absences[row.group, rank].add(row.sequence)
    latest = {group: sorted(numbers, reverse=True) for group, numbers in sequences.items()}
    last = {}
    for (group, rank), missed in absences.items():
        last[group, rank] = _first_outside(missed, latest[group])
    return last


def _first_outside(missed: Container[int], sequences: Iterable[int]) -> int:
    for sequence in sequences:
        if sequence not in missed:
            return sequence
    return -1


def _as_called(row: _Row, rank: int) -> Operation:
    if rank not in row.others:
        return row.operation
    name, sizes = row.others[rank]
    mine = row.operation
    return Operation(mine.group, name, mine.sequence, mine.order, mine.done, sizes=sizes, frame=mine.frame)


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str], str]]:
    """(table, column -> cell, the whole line) of each row of the tables that are read."""
    table, columns = "", _Columns("")
    for line in lines:
        if match := _TABLE.match(line):
            table, columns = match[1], _Columns("")
        elif line.startswith("==="):
            table = ""
        elif table in _TABLES:
            if columns.known:
                yield table, columns.cells(line), line
            else:
                columns = _Columns(line)


class _Columns:
    """Cells stand below the begin or the end of their column's name, and an empty one is just left out."""

    def __init__(self, header: str) -> None:
        self.begins: dict[int, str] = {}
        self.ends: dict[int, str] = {}
        for match in islice(_CELL.finditer(header), COLUMNS_MAX):
            self.begins[match.start()] = self.ends[match.end()] = match[0]

    @property
    def known(self) -> bool:
        return bool(self.begins)

    def cells(self, line: str) -> dict[str, str]:
        cells: dict[str, str] = {}
        for match in islice(_CELL.finditer(line), COLUMNS_MAX):
            name = self.begins.get(match.start(), self.ends.get(match.end()))
            if name:
                cells.setdefault(name, match[0])
        return cells


def _row(cells: Mapping[str, str], line: str, order: int, reader: DumpReader) -> _Row | None:
    """Read a row; None for a send or receive, and for what is no row."""
    sequence, sends = cells.get("collective_seq_id", ""), cells.get("p2p_seq_id", "")
    ranks, name = _ranks(cells.get("expected_ranks", "")), cells.get("collective_name", "")
    if sends != "0":
        return None
    if not (ranks and name):
        return None
    if not (sequence.isdecimal() and len(sequence) < 19):
        return None
    group_id, description = cells.get("group_id", ""), cells.get("pg_desc", "")
    group = reader.group(description.removeprefix(f"{group_id}:")[:300], sorted(ranks))
    frames = _FRAME.findall(cells.get("collective_frames", "")[: _FRAMES_MAX * 800])
    operation = Operation(
        group=group,
        name=name[:300],
        sequence=int(sequence),
        order=order,
        done=cells.get("collective_state") == "completed",
        sizes=cells.get("input_sizes", "")[1:-1][:700],
        frame=own_frame({"name": at, "filename": file, "line": number} for at, file, number in frames[:_FRAMES_MAX]),
    )
    others = {int(match[1]): (match[2], match[3]) for match in _OTHER.finditer(line)}
    return _Row(group, int(sequence), operation, _ranks(cells.get("missing_ranks", "")), others)


def _ranks(text: str) -> frozenset[int]:
    """Read "{12, 13}", or one number."""
    return frozenset(rank for number in _NUMBER.findall(text) if (rank := int(number)) < RANKS_MAX)

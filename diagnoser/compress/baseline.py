"""The baseline of a job family, pure: what a clean run leaves in it, and which lines of another run are new.

A line is known by its shape: what is left of it without numbers, times and launcher prefixes. What can be a failure is
never known: lines with a rule's anchor, exceptions, parts of tracebacks, diverged values. A line with words of trouble
is known only where every clean run prints it.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict

import orjson
import zstandard

from diagnoser.compress.delta import Delta, LinePosition, TemplateStats
from diagnoser.compress.digest import Digest
from diagnoser.compress.line_flags import LineFlag
from diagnoser.compress.line_masking import blurred, identity, masked
from diagnoser.compress.lines import strip_blurred
from diagnoser.model import Baseline, Cap, CleanRun, Diff, Evidence, Line, Mark, NewLine, Stream
from diagnoser.structure import stacks

KEPT = 5
"""How many of the last clean runs count."""
NEW_MAX = 200
"""Most new lines listed per run."""
_SHAPES_MAX = 20_000
"""Most shapes of a run; one with more has no routine."""
_UNPACKED_MAX = 64 << 20
_NEVER = int(
    LineFlag.ANCHOR
    | LineFlag.FATAL
    | LineFlag.EXCEPTION
    | LineFlag.FRAME
    | LineFlag.DIVERGED
    | LineFlag.TABLE
    | LineFlag.COLLECTIVE
)
_TROUBLE = int(LineFlag.ERROR)
_TELLS_MOST = int(LineFlag.FATAL | LineFlag.EXCEPTION)
_SURGE, _SURGE_LINES = 10, 50
"""A known line is also new when it comes this many times as often as in any clean run, and at least this many times."""
_WORD = re.compile(r"[^\W\d_]{3}")


def clean_run(delta: Delta, name: str) -> CleanRun | None:
    """Summarise a clean run for the baseline; None if it has no routine."""
    counts = {shape: stat.count for shape, stat in delta.shapes.items() if not stat.kind & _NEVER}
    if Cap.SHAPES in delta.caps:
        return None  # not all of its shapes are known
    if not 0 < len(counts) <= _SHAPES_MAX:
        return None
    return CleanRun(name, delta.lines, counts)


def to_bytes(run: CleanRun) -> bytes:
    # The empty fields are for the version before this one, which reads them.
    fields = asdict(run) | {"counts": list(run.counts.items()), "unmatched": [], "filters": []}
    return zstandard.ZstdCompressor(level=3).compress(orjson.dumps(fields))


def load(stored: Sequence[bytes]) -> Baseline:
    """Read the baseline from records of ``to_bytes``, oldest first: the last record of each run."""
    runs = {run.name: run for run in map(_run, stored)}
    return Baseline(tuple(runs.values())[-KEPT:])


def _run(data: bytes) -> CleanRun:
    record = orjson.loads(zstandard.ZstdDecompressor().decompress(data, max_output_size=_UNPACKED_MAX))
    return CleanRun(record["name"], record["lines"], dict(record["counts"]), record.get("pauses", {}))


def is_new(shape: int, stat: TemplateStats, baseline: Baseline) -> bool:
    """Whether clean runs do not print lines of this shape."""
    if stat.kind & _NEVER:
        return True
    if stat.is_folded:
        return False  # learned from clean runs
    printed_in = sum(shape in run.counts for run in baseline.runs)
    if stat.kind & _TROUBLE:
        return printed_in < len(baseline.runs)
    return not printed_in


def diff(digest: Digest, known: Baseline) -> Diff:
    """List what the clean runs do not print: exceptions and lines of root rules first, each part in order of the log.

    A traceback or stack is one line here: the one that says what is wrong.
    """
    if not known.runs:
        return Diff()
    shapes, inside = digest.delta.shapes, _inside_stacks(digest.evidence)
    shape_at = {(line.number, line.stream): shape_of(line.text) for line in digest.lines}
    telling = _telling_lines(digest, shape_at, inside)
    new = set(telling)
    for shape, stat in shapes.items():
        if is_new(shape, stat, known):
            new.add(shape)
    known_shapes = shapes.keys() - new
    surges = _surges(known_shapes, digest.delta, known)
    lines = dict(telling)
    for shape in (new | surges.keys()) - telling.keys():
        line = digest.first_line(shape)
        if (line.number, line.stream) in inside:
            continue
        if _WORD.search(line.body):
            lines[shape] = line
    listed = []
    for shape in _ranked(lines, shapes):
        listed.append(NewLine(lines[shape], shapes[shape].count, surges.get(shape, 0)))
    known_lines = frozenset(place for place, shape in shape_at.items() if shape in known_shapes)
    return Diff(len(known.runs), tuple(listed), known_lines)


def _ranked(lines: dict[int, Line], shapes: dict[int, TemplateStats]) -> list[int]:
    """Choose the shapes that tell most, in the order of ``diff``. lines: the line that stands for each."""

    def place(shape: int) -> tuple[int, float, Stream, int, int]:
        line = lines[shape]
        return _rank(shapes[shape].kind, line.mark), line.time, line.stream, line.number, shape

    return sorted(lines, key=place)[:NEW_MAX]


def _telling_lines(digest: Digest, shape_at: dict[LinePosition, int], inside: set[LinePosition]) -> dict[int, Line]:
    """Find the first line of each shape that a rule or a traceback marks.

    It is new whatever its shape: patterns that ask for certain digits are tried on each line.
    """
    telling: dict[int, Line] = {}
    for line in digest.lines:
        position = line.number, line.stream
        if line.mark < Mark.TRACEBACK:
            continue
        if position in inside:
            continue
        shape = shape_at[position]
        if shape in digest.delta.shapes:
            telling.setdefault(shape, line)
    return telling


def _surges(shapes: set[int], delta: Delta, known: Baseline) -> dict[int, int]:
    """Known shapes that this run prints far more often, with how often a clean run of its length prints them."""
    surges = {}
    for shape in shapes:
        if usual := _surge_over(shape, delta, known):
            surges[shape] = usual
    return surges


def _inside_stacks(evidence: Evidence) -> set[LinePosition]:
    """Lines of tracebacks, except those that say what is wrong, and frames of stacks."""
    inside = {(line.number, line.stream) for line in evidence.lines if stacks.is_frame(line.body)}
    raised = set[LinePosition]()
    for trace in evidence.tracebacks:
        for index in trace.lines:
            line = evidence.lines[index]
            place = line.number, line.stream
            if index == trace.raised:
                raised.add(place)
            else:
                inside.add(place)
    return inside - raised  # a record may hold all of a traceback


def _rank(kind: int, mark: Mark) -> int:
    """Exceptions and lines of root rules first, then what complains or carries an anchor, then the rest."""
    if kind & _TELLS_MOST:
        return 0
    if kind & (_NEVER | _TROUBLE):
        return 1
    if mark >= Mark.TRACEBACK:
        return 1
    return 2


def _surge_over(shape: int, delta: Delta, baseline: Baseline) -> int:
    """How often a clean run as long as this one prints the shape, where this one prints it far more often; else 0."""
    count = delta.shapes[shape].count
    most, rate = 0, 0.0
    for run in baseline.runs:
        printed = run.counts.get(shape, 0)
        most, rate = max(most, printed), max(rate, printed / max(run.lines, 1))
    usual = max(most, round(rate * delta.lines))
    if not most:
        return 0  # no clean run printed it
    if count < max(_SURGE_LINES, _SURGE * usual):
        return 0
    return usual


def shape_of(text: str) -> int:
    """The shape of a line as the compressor names it."""
    return identity(masked(strip_blurred(blurred(text.encode("utf-8", "replace")))[1]))

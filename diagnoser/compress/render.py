"""The numbered view of a digest for a model or a person, within any budget."""

import re
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from diagnoser.compress.templates import mask
from diagnoser.model import NO_DIFF, Compression, Diff, LeftOut, Line, Mark, Progress, Stream, Template
from diagnoser.model.number_runs import spans

_WORD = re.compile(r"[^\W\d]{3}")
_PIECES = re.compile(r"\d+|[^\W\d]+|[^\w\s]|\n")
_WIDEST = 700
_TEMPLATE_SHARE = 0.25
_NEW_SHARE, _NEW_MOST = 0.5, 20
"""Share of the view, and most lines, that new lines may take before all else."""
_PINNED_SHARE = 0.6
"""Share of the view that pinned lines may take."""
_FIXED = 40  # tokens of headings
_LEAST = 8  # tokens below which no line fits
_BETWEEN = 5  # tokens of a line's own end, and perhaps of dots and a line end before it


def render(
    lines: Sequence[Line],
    templates: Sequence[Template],
    progress: Sequence[Progress],
    left_out: LeftOut,
    compression: Compression,
    budget_tokens: int,
    diff: Diff = NO_DIFF,
    pinned: Sequence[tuple[int, Stream]] = (),
) -> str:
    """Write what was read and left out, what is new, templates with counts, then lines with number and rank.

    Templates of what is shown verbatim anyway, of what clean runs print, and of lines without a word, are left out; all
    of them where the whole log is shown.
    Every group of lines of one shape is represented before any is shown in full, so each group of ranks that tells
    something else keeps a block whatever the budget. pinned: lines that get their room before all else.
    """
    head = _head(lines, progress, left_out, compression)
    room = budget_tokens - _cost(head) - _FIXED
    texts = list(map(_numbered, numbers(lines), lines))
    pins, cost = _pins(lines, texts, pinned, int(room * _PINNED_SHARE))
    room -= cost
    first = _new(lines, diff, int(room * _NEW_SHARE))
    new = []
    if first:
        new = [f"## In none of {diff.runs} clean runs of this job family", *first.values(), ""]
    room -= _cost(new)
    routine = [] if _is_shown_whole(texts, compression, room + cost) else _routine(lines, templates, diff)
    counted = _fit(list(map(_template, routine)), int(room * _TEMPLATE_SHARE))
    room -= _cost(counted)
    known = diff.known | {(line.number, line.stream) for line in first}
    body = _lines(lines, texts, room, known, pins)
    if hidden := len(routine) - len(counted):
        counted = [*counted, f"({hidden} more templates)"]
    if counted:
        counted = ["## Routine, as templates", *counted, ""]
    return "\n".join([*head, "", *new, *counted, "## Lines", *body]) + "\n"


def _is_shown_whole(texts: Sequence[str], compression: Compression, room: int) -> bool:
    """Whether every line of the log is shown as it was printed: templates would say it a second time."""
    if len(texts) < compression.lines_in:
        return False
    return sum(tokens(text) + _BETWEEN for text in texts) <= room


def _routine(lines: Sequence[Line], templates: Sequence[Template], diff: Diff) -> list[Template]:
    """Choose the templates that have words and of which no line is shown verbatim or printed by clean runs."""
    verbatim = set()
    for line in lines:
        if _hides_template(line, diff):
            verbatim.add(line.text)
    routine = []
    for template in templates:
        if template.samples[0] in verbatim:
            continue
        if _WORD.search(template.text):
            routine.append(template)
    return routine


def _hides_template(line: Line, diff: Diff) -> bool:
    if line.mark >= Mark.TRACEBACK:
        return True
    if line.mark is Mark.CONTEXT:
        return True
    return (line.number, line.stream) in diff.known


def _cost(lines: Sequence[str]) -> int:
    return sum(map(tokens, lines)) + len(lines)


def tokens(text: str) -> int:
    """An upper estimate of what common tokenisers make of a text: four letters, three digits or one sign each."""
    return sum(-(-len(part) // (3 if part.isdigit() else 4)) for part in _PIECES.findall(text))


def _head(
    lines: Sequence[Line], progress: Sequence[Progress], left_out: LeftOut, compression: Compression
) -> list[str]:
    head = [f"# {compression.lines_in} lines, {compression.bytes_in} bytes; {len(lines)} lines kept verbatim"]
    if left_out.lines:
        head.append(f"Left out: {left_out.lines} lines ({left_out.why})"[:_WIDEST])
    steps = [point for point in progress if point.step is not None]
    if steps:
        first, last = steps[0], steps[-1]
        head.append(
            f"Progress: step {first.step} (line {first.line}) to {last.step} (line {last.line}), loss {last.loss}"
        )
    return head


def _template(template: Template) -> str:
    about = f"{template.count}x lines {template.first[1]}-{template.last[1]}"
    if template.ranks:
        about += f" ranks {spans(template.ranks)}"
    if template.filtered_by:
        about += f" [{template.filtered_by}]"
    return f"{about}: {template.text}"[:_WIDEST]


def numbers(lines: Sequence[Line]) -> Sequence[int]:
    """What each line is called in the view: its number in its stream, or its place where streams share numbers."""
    if len({line.stream for line in lines}) > 1:
        return range(1, len(lines) + 1)
    return list(map(attrgetter("number"), lines))


def _fit(texts: Iterable[str], room: int) -> list[str]:
    fitting = []
    for text in texts:
        room -= tokens(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return fitting


def _new(lines: Sequence[Line], diff: Diff, room: int) -> dict[Line, str]:
    """As many of the most telling new lines as fit, in order of the log."""
    number_of = dict(zip(lines, numbers(lines), strict=True))
    texts: dict[Line, str] = {}
    for added in diff.new[:_NEW_MOST]:
        text = _numbered(number_of[added.line], added.line)
        if added.usual:
            text += f" [{added.count}x, in a clean run at most {added.usual}x]"
        if (cost := tokens(text) + 1) <= room:
            room -= cost
            texts[added.line] = text
    return {line: texts[line] for line in lines if line in texts}


def _pins(
    lines: Sequence[Line], texts: Sequence[str], pinned: Sequence[tuple[int, Stream]], room: int
) -> tuple[set[int], int]:
    """Indices of as many pinned lines as fit, the first ones first, and the tokens that they take."""
    chosen, spent = set[int](), 0
    if not pinned:
        return chosen, spent
    places = {(line.number, line.stream): index for index, line in enumerate(lines)}
    for place in pinned:
        index = places.get(place)
        if index is None:
            continue
        if index in chosen:
            continue
        cost = tokens(texts[index]) + _BETWEEN
        if spent + cost <= room:
            spent += cost
            chosen.add(index)
    return chosen, spent


def _lines(
    lines: Sequence[Line],
    texts: Sequence[str],
    room: int,
    known: Collection[tuple[int, Stream]],
    pins: Collection[int],
) -> list[str]:
    chosen = set(pins)
    for index in _by_worth(lines, known):
        if room < _LEAST:
            break
        cost = tokens(texts[index]) + _BETWEEN
        if index not in chosen and cost <= room:
            room -= cost
            chosen.add(index)
    shown, before = [], -1
    for index in sorted(chosen):
        if index != before + 1:
            shown.append("...")
        shown.append(texts[index])
        before = index
    return shown


def _by_worth(lines: Sequence[Line], known: Collection[tuple[int, Stream]]) -> list[int]:
    """First one line of each shape, those that matter most first; then the second of each, and so on. known: what
    clean runs print, or what was shown already, comes behind all that."""
    seen: dict[str, int] = {}
    keys = []
    for index, line in enumerate(lines):
        shape = mask(line.body[:400])
        repeat = seen.get(shape, 0)
        seen[shape] = repeat + 1
        weak = line.mark < Mark.SEVERITY
        late = 2 * weak + 2 * ((line.number, line.stream) in known)
        keys.append((min(repeat, 3) + late, -line.mark, -index if weak else index, index))
    return [key[-1] for key in sorted(keys)]


def _numbered(number: int, line: Line) -> str:
    """``12 r3| text``; with several streams ``412 stderr:12 r3| text``, so that every number stands for one line."""
    name, text = str(number), line.text
    if (number, line.stream.source) != (line.number, "stdout"):
        name += f" {line.stream.source}:{line.number}"
    if line.rank >= 0:
        name += f" r{line.rank}"
    elif line.node:
        name += f" {line.node}"
    if len(text) > _WIDEST:
        text = f"{text[: _WIDEST // 2]} ... {text[-_WIDEST // 2 :]}"
    return f"{name}| {text}"

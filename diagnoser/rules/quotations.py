"""Diagnoses that a log quotes: what the client, the commands and the service printed about an earlier failure.

A quoted line is no evidence. It is left out only within a block of a known form, from the line with the verdict to the
form's last line, and only if it has the shape of the block's rows: what anybody else prints in between stays, and so
does every line of a traceback that does not lie within the block. A job can print such a block; it can hide
with it only what it prints itself and indents or frames on purpose.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse

from diagnoser.model import Anchor, Evidence, Line
from diagnoser.model.evidence import selected
from diagnoser.model.taxonomy import Action, Category, Outcome

_LINES_MAX = 300
"""Longest quotation, in lines of its stream: `explain` prints about a hundred."""


@dataclass(frozen=True, slots=True)
class QuotedForm:
    """A form in which diagnoses are printed.

    hint: literal that the first line carries.
    verdict: the first line, with the words of the verdict.
    row: the other lines.
    last: the row that ends the block; None for a form of one line.
    example: as printed.
    """

    hint: str
    verdict: re.Pattern[str]
    row: re.Pattern[str]
    last: re.Pattern[str] | None
    example: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """A quotation whose last line has not come yet. first: number of its first line. lines: indices of its lines."""

    form: QuotedForm
    first: int
    lines: list[int]


def _any_of(names: type[Category] | type[Outcome] | type[Action]) -> str:
    return "(?:" + "|".join(names) + ")"


_CATEGORY, _OUTCOME, _ACTION = _any_of(Category), _any_of(Outcome), _any_of(Action)
_NOTHING = re.compile(r"(?!)")
_LABELLED = re.compile(r"  (?:[a-z][a-z ]{11}| {12})\S")
"""A row with its label in a column of twelve, as `diagnose` prints into a pipe, and the client."""
FORMS = (
    QuotedForm(  # `diagnose`
        hint="% sure",
        verdict=re.compile(rf"│ [^│]{{3,200}}  {_CATEGORY}, {_OUTCOME}, \d{{1,3}}% sure *│$"),
        row=re.compile(r"│.*│$|╰─+╯$"),
        last=re.compile(r"╰─+╯$"),
        example=(
            "│ ecc error  infrastructure, failed, 99% sure   │",
            "│ root line   7: Xid 48 on gpu-3                │",
            "╰───────────────────────────────────────────────╯",
        ),
    ),
    QuotedForm(  # `diagnose` in a pipe or a CI log
        hint="% sure",
        verdict=re.compile(rf"  [^()│]{{3,200}}  {_CATEGORY}, {_OUTCOME}, \d{{1,3}}% sure$"),
        row=_LABELLED,
        last=re.compile(r"  decided by  \S"),
        example=(
            "  ecc error  infrastructure, failed, 99% sure",
            "  root line   7: Xid 48 on gpu-3",
            "  decided by  rule:ecc",
        ),
    ),
    QuotedForm(  # `explain`
        hint="% sure",
        verdict=re.compile(rf"  [^()]{{3,200}}  \({_CATEGORY}, {_OUTCOME}\), \d{{1,3}}% sure, decided by \S"),
        row=re.compile(
            r"  |>>| >| ~| \+|$|(?:Chain|Evidence|Notes|Not the cause|Not in clean runs|Who waits for whom)$"
        ),
        last=re.compile(r"  read [\d,]{1,20} lines, kept [\d,]{1,20}$"),
        example=(
            "  ecc error  (infrastructure, failed), 99% sure, decided by rule:ecc",
            "Chain",
            "  line 7 ecc_error",
            ">>  7 Xid 48 on gpu-3",
            "  read 14 lines, kept 14",
        ),
    ),
    QuotedForm(  # the client, below a run that failed
        hint="% sure",
        verdict=re.compile(rf"Diagnosis: [^()]{{3,200}}  \({_CATEGORY}, {_OUTCOME}, \d{{1,3}}% sure\)$"),
        row=_LABELLED,
        last=re.compile(r"  page {8}\S"),
        example=(
            "Diagnosis: ecc error  (infrastructure, failed, 99% sure)",
            "  root line   7: Xid 48 on gpu-3",
            "  page        https://diagnoser.example/diagnoses/d1",
        ),
    ),
    QuotedForm(  # an alert as text
        hint="Cause: ",
        verdict=re.compile(r"Cause: (?:[a-z0-9_]{3,40}|[A-Z][A-Za-z0-9 ,()%]{2,200})$"),
        row=re.compile(
            r"(?:Confidence|Rank|Node|GPU|Decided by|Needs review|Why|Next): |Line \d{1,12} of \S{1,200}:$|- |$"
        ),
        last=re.compile(rf"Next: (?:{_ACTION}|[A-Z][a-z ,]{{5,80}})(?: \(|$)"),
        example=(
            "Cause: ECC error",
            "Confidence: 99%",
            "Needs review: the model names gpu_lost",
            "Next: Cordon the node and resubmit (hardware)",
        ),
    ),
    QuotedForm(  # `diagnose --json | jq`
        hint='"outcome": ',
        verdict=re.compile(rf'\s{{1,8}}"outcome": "{_OUTCOME}",$'),
        row=re.compile(r'\s+(?:"[a-z_]{1,40}": |"|[\]\[{}]|-?[\d.]{1,20}|true|false|null)|\}$'),
        last=re.compile(r"\}$"),
        example=('  "outcome": "failed",', '  "category": "infrastructure",', '  "type": "ecc_error",', "}"),
    ),
    QuotedForm(  # `diagnose --json`, the API
        hint='"decided_by"',
        verdict=re.compile(
            rf'\{{"(?:.{{0,2000}}?)"outcome": ?"{_OUTCOME}", ?"category": ?"{_CATEGORY}", ?"type": ?"\w{{1,60}}",'
            r' ?"confidence": ?[\d.]{1,20}, ?"decided_by": ?"'
        ),
        row=_NOTHING,
        last=None,
        example=(
            '{"file":"a.log","outcome":"failed","category":"script","type":"key_error","confidence":0.9,"decided_by":"x"}',
        ),
    ),
    QuotedForm(  # what the client says about itself
        hint="diagnoser: ",
        verdict=re.compile(r"diagnoser: \S"),
        row=_NOTHING,
        last=None,
        example=("diagnoser: 5 lines were not sent: reset",),
    ),
)
ANCHORS = tuple(map(Anchor, ("% sure", "╰─", " lines, kept ", "  page ", '"outcome": "')))
"""What the compressor must let through for a block to be seen as a whole."""


def without_quotations(evidence: Evidence) -> Evidence:
    """The evidence without the lines that only quote a diagnosis, and without the progress read from them."""
    quoted = _own_words(evidence, frozenset(_quoted(evidence.lines)))
    if not quoted:
        return evidence
    numbers = {(evidence.lines[index].stream, evidence.lines[index].number) for index in quoted}
    progress = tuple(point for point in evidence.progress if (point.stream, point.line) not in numbers)
    order = list(filterfalse(quoted.__contains__, range(len(evidence.lines))))
    return selected(replace(evidence, progress=progress), order)


def _own_words(evidence: Evidence, quoted: frozenset[int]) -> frozenset[int]:
    """The quoted lines without those of a traceback that goes on outside of the quotation."""
    kept = set[int]()
    for trace in evidence.tracebacks:
        if not quoted.issuperset((*trace.lines, trace.raised)):
            kept.update(trace.lines)
            kept.add(trace.raised)
    return quoted - kept


def _quoted(lines: Sequence[Line]) -> Iterator[int]:
    """Indices of the lines of all quotations."""
    blocks = dict[object, _Block]()
    for index, line in enumerate(lines):
        form = _form_of(line)
        if form is None:
            if line.speaker in blocks:
                yield from _continued(blocks, index, line)
        elif form.last is None:
            yield index
        else:
            blocks[line.speaker] = _Block(form, line.number, [index])


def _form_of(line: Line) -> QuotedForm | None:
    """The form whose verdict the line is. What fits on one line may stand in a record."""
    for form in FORMS:
        if form.hint not in line.text:
            continue
        if form.verdict.match(line.body):
            return form
        if form.last is None and form.verdict.match(line.text):
            return form
    return None


def _continued(blocks: dict[object, _Block], index: int, line: Line) -> Sequence[int]:
    """Add a line to the open block of its speaker, if it is a row of it. The lines of the block once it ends well."""
    block = blocks[line.speaker]
    if line.number - block.first > _LINES_MAX:
        del blocks[line.speaker]
        return ()
    if block.form.row.match(line.body):
        block.lines.append(index)
    if not (block.form.last and block.form.last.match(line.body)):
        return ()
    del blocks[line.speaker]
    return block.lines

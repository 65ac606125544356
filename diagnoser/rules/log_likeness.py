"""Whether a text looks like the log of a run at all, or like a document, source code, a table or another program's log.

Every line is of a kind by its form. Records, progress, errors and process ends speak for a run; prose, markup, code,
settings and tables against it. A text is refused only where these outweigh the others by far and it does not end the
way a run ends: a wrong refusal costs a diagnosis, a wrong diagnosis of a document only its reader's time.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from diagnoser.model import Evidence, Line, Traceback


class LineKind(StrEnum):
    """Forms of a line. The value names, for people, what a text of such lines reads like."""

    RUN = "the log of a run"
    MARKUP = "a document"
    PROSE = "a text"
    CODE = "source code"
    SETTINGS = "a file of settings"
    TABLE = "a table"
    PROGRAM = "the log of another program"
    OTHER = "nothing known"


@dataclass(frozen=True, slots=True)
class LineForm:
    """A form and the kind of the lines that have it.

    examples: lines that do.
    marker: of a line that the text must hold for the form to count; None for a form that stands for itself.
    sure: the line is of this form even if it holds a time, an error or progress as the lines of runs do.
    """

    kind: LineKind
    pattern: re.Pattern[str]
    examples: tuple[str, ...]
    marker: re.Pattern[str] | None = None
    sure: bool = False


def _form(kind: LineKind, pattern: str, *examples: str) -> LineForm:
    return LineForm(kind, re.compile(pattern), examples)


def _sure_form(kind: LineKind, pattern: str, *examples: str) -> LineForm:
    return LineForm(kind, re.compile(pattern), examples, sure=True)


def _form_beside(marker: str, kind: LineKind, pattern: str, *examples: str) -> LineForm:
    return LineForm(kind, re.compile(pattern), examples, re.compile(marker))


FORMS = (
    _sure_form(
        LineKind.PROGRAM,
        r'\S{1,80} \S{1,80} \S{1,80} \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "',
        '192.0.2.7 - - [26/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 512 "-" "curl/8.5"',
    ),
    _sure_form(
        LineKind.PROGRAM,
        r"commit [0-9a-f]{40}\b|(?:Author|Commit): +[^<>]{1,100} <[^<> ]{1,100}>$|(?:Author"
        r"|Commit)?Date: +[A-Z][a-z]{2} ",
        "commit 3f9d1c0b7a6e5d4c3b2a19080706050403020100",
        "Author: Ada <ada@example.org>",
        "Date:   Thu Nov 26 10:00:00 2026 +0000",
    ),
    _sure_form(
        LineKind.PROGRAM,
        r"[\w./+-]{1,200}\.(?:c|cc|cpp|cxx|cu|h|hpp|cuh|rs|go|f90|java)(?::\d{1,7}){1,2}: (?:fatal )?(?:error"
        r"|warning|note)\b"
        r"|[\w./+-]{1,200}: In (?:member )?function |In file included from |make(?:\[\d+\])?: "
        r"|\[ *\d{1,3}%\] (?:Building|Linking|Built) "
        r"| {1,8}\d{0,6} \| |(?:gcc|g\+\+|cc|c\+\+|clang|nvcc|ld|ar) -",
        "main.c:12:5: error: expected ';' before 'return'",
        "main.c: In function 'main':",
        "make: *** [Makefile:7: main.o] Error 1",
        "   12 |     return x",
    ),
    _sure_form(
        LineKind.PROGRAM,
        r"(?:Get|Hit|Ign|Err):\d{1,5} \S+://|(?:Selecting previously unselected package|Preparing to unpack"
        r"|Unpacking|Setting up"
        r"|Processing triggers for|Removing|Purging configuration) \S|Reading (?:package lists|state information)"
        r"|Building dependency tree|\(Reading database|Fetched [\d.,]+ \w?B in "
        r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:install|upgrade|status|configure|trigproc|remove|startup) \S",
        "Get:1 http://deb.example.org stable InRelease [151 kB]",
        "Setting up libc6 (2.36-9) ...",
        "2026-11-26 10:00:00 status installed libc6:amd64 2.36-9",
    ),
    _sure_form(
        LineKind.PROGRAM,
        r" {0,4}(?:Collecting|Requirement already satisfied:|Downloading|Using cached|Installing collected packages:"
        r"|Successfully installed|Attempting uninstall:|Found existing installation:|Uninstalling"
        r"|Successfully uninstalled"
        r"|Looking in indexes:|Building wheels? for|Created wheel for|Stored in directory:|Preparing metadata"
        r"|Getting requirements"
        r"|Installing build dependencies) ?\S| +[━╸ -]{10,200} [\d.]+/[\d.]+ \wB",
        "Collecting numpy==1.26",
        "Requirement already satisfied: six in ./lib (1.16)",
        "Successfully installed numpy-1.26",
    ),
    _form(
        LineKind.MARKUP,
        r"#{1,6} +[A-Z0-9`*\[].{0,200}$|```|~~~|\s*(?:[-*+]|\d{1,2}[.)]) +(?:\*\*|`|\[)|.{0,400}\]\((?:https?:"
        r"|[\w./#-]{1,200}\))"
        r"|\s+[\w ]{1,40} --> |\|(?:[ :]?-{3,}[ :]?\|)+$|\.\. [\w-]{1,40}::|<!--"
        r"|.{0,200}`[^`]{1,80}`.{0,200}`[^`]{1,80}`|</?[a-z][a-z0-9]{0,10}(?: [^<>]{0,200})?>",
        "## Install",
        "- `make` builds it, see [the guide](docs/guide.md)",
        "Run `make` and then `make test`.",
    ),
    _form(
        LineKind.CODE,
        r"\s*(?:def|class|async def) \w{1,80}.{0,200}[:(,]$|\s*(?:from [\w.]{1,100} import |import [\w., ]{1,100}$)"
        r"|\s*(?:if|elif|while|for|with|except|match|case)\b.{0,200}:$|\s*(?:else|try|finally):$|\s*(?:return"
        r"|yield|raise|assert|pass|break|continue)\b"
        r"|\s*@[\w.]{1,80}(?:\(.*)?$|\s*[\w.\[\]\"', ]{1,100} [+|-]?= [^=]|\s*(?:\"\"\"|''')|#!/|\s*//"
        r"|\s*/?\*[ */]|\s*#(?:include|define|ifdef|endif|pragma)\b"
        r"|\s+[rbf]?[\"'].{0,400}[\"'],?$|\s+[\w.]{1,80},?$|\s*[\w.]{0,80}[(\[{]$"
        r"|\t@?[$\w./-]{1,80} .{0,200}(?:--?\w|\$|\|)"
        r"|\s*[\])}]{1,4}[,;:]?$|\s+[\w.]{1,100}\(.{0,200}\)[,;]?$|.{0,200}[{;]$|\s*(?:static|public|private"
        r"|const|let|var|fn|func|template|struct|namespace|using)\b",
        "def main(argv: list[str]) -> int:",
        "        'gpu',",
        "\trm -rf $(BUILD)",
        "from collections import Counter",
        "    if not lines:",
        "    total += len(lines)",
        "    }",
    ),
    _form_beside(
        r"@@ -\d{1,7}(?:,\d{1,7})? \+",
        LineKind.CODE,
        r"diff --git |@@ -\d{1,7}(?:,\d{1,7})? \+|index [0-9a-f]{7,40}\.\.|(?:---|\+\+\+) [ab]?/|[ +-]",
        "diff --git a/x.py b/x.py",
        "@@ -1,4 +1,5 @@",
        "+    return 1",
    ),
    _form_beside(r"\|(?: ?:?-{3,}:? ?\|){2,}$", LineKind.MARKUP, r"\| .{1,1000} \|$", "| setting | 12 |"),
    _form_beside(r"commit [0-9a-f]{40}", LineKind.PROGRAM, r" {4}", "    docs: what a start costs"),
    _form_beside(r"\.PHONY:", LineKind.CODE, r"\t\S", "\tpython -m build"),
    _sure_form(
        LineKind.SETTINGS,
        r"\s*(?:- )?[a-z_]{1,40}: (?:[\['\"{]|https?://)",
        "match: ['2026-11-26 10:00:00 ERROR x']",
    ),
    _form(
        LineKind.SETTINGS,
        r"\s*(?:- )?(?P<key>[\"']?[A-Za-z_][\w./-]{0,80}[\"']?) {0,20}[:=](?: [^:]{0,400}| [\"'{\[].{0,400})?$"
        r"|\s*- \S.{0,400}$"
        r"|\s*\[{1,2}[\w. :\"'-]{1,80}\]{1,2}$|\s*# |\s*#$",
        "  learning_rate: 0.1",
        "batch = 12",
        "[tool.ruff]",
        "- gpu",
    ),
)

_STAMP = re.compile(r".{0,40}?(?:\d{4}[-/]\d\d[-/]\d\d[ T]|\b\d{1,2}:\d\d:\d\d\b|\b[IWEF]\d{4} )")
_RUN = re.compile(
    rf"(?!\s*- )(?:{_STAMP.pattern}"
    r"|[IWEF] [\w./-]{1,200}\.(?:cc|cpp|cu|h):\d{1,6}\] "
    r"|\+{1,5} (?! )\S|\s*[\[(<|]?\s*(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b"
    r"|\s*\[?(?i:rank|worker|node|proc|gpu|trainer|pid)[ _:=]?\d+\b|\[\d{1,6}(?:,\d+)?\]|\d{1,5}: "
    r"|[A-Za-z_][\w.]{0,100}(?:Error|Exception|Warning|Interrupt|Exit|Failure)\b(?:[:(]|$)"
    r"|(?:Error|error|fatal|warning)\b[: ]|Traceback |\s+File \"|\s+at [\w.$]+\(|#\d+ +0x|Execution halted"
    r")"
)
"""What programs print as they run, at the place where they print it: times, levels, who speaks, errors."""
_WEAK_RUN = re.compile(
    r"(?!\s*- )(?:.{0,200}?\b(?i:epoch|step|iter(?:ation)?|loss|acc(?:uracy)?|lr|reward|trial|batch|eta|ppl|fps"
    r"|it/s|s/it)\b[\"'\]]{0,2}"
    r"\s{0,4}[:=/\[(]?\s{0,4}-?\d"
    r"|.{0,80}?\d%(?:\||\s)|.{0,80}?\b\d+/\d+\b.{0,40}\d"
    r"|.{0,200}?\b(?:exit(?:ed)? (?:with )?(?:code|status)|signal \d)"
    r"|(?:.{0,200}: )?(?:Killed|Aborted|Segmentation fault|Terminated|Bus error)(?: \(.{1,40}\))?$"
    r"|(?:Failed|Cannot|Could not|Unable|Unsuccessful|Timed out|Aborting|Stopping|No such|Permission denied"
    r"|Connection)\b"
    r"|(?:\S{1,60}: )?(?:srun|slurmstepd|sbatch|mpirun|torchrun|prterun|ORTE)\b"
    r'|\{"'
    r")"
)
"""Progress and ends of processes, wherever in a line. A line that quotes code only speaks of them."""
_QUOTES, _REPEATED, _COLUMNS = 2, 3, 3
"""Marks of a line that quotes code; lines that a speaker begins, at least; columns of a table."""
_WORD = re.compile(r"[(\"'`*|_\[]{0,3}[A-Za-z][A-Za-z'’-]*[.,;:)!?\"'`*|_\]]{0,4}$")
_WORDS_LEAST, _WORDS_SHARE = 7, 0.75
"""Words of a line of prose, and the share of what stands between blanks that are words."""
_SYSTEM_LOG = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\dT\S{8,30}) \S{1,100} (?P<program>[A-Za-z][\w./@-]{0,60})(?:\[\d+\])?: "
)
_DELIMITERS = (",", "\t", ";")
_NAME = re.compile(r"\s*[\"']?[A-Za-z_#][\w ./()%#-]{0,60}[\"']?\s*$")
_VALUE = re.compile(
    r"\s*(?:[\"'].{0,400}[\"']|[-+]?[\d.,:eE+-]{1,40}%?|(?i:nan|inf|true|false|none|null)?|\S{1,80})\s*$"
)
_LOGGED = re.compile(r'(?i)"?(?:@?timestamp|date|ts|(?:date)?time)"?[,;\t].{0,400}"?\b(?:line|message|msg|log|body)"?$')
"""Names of the columns of a log that was exported as a table."""
_LEAST = 4
"""Fewest lines that are judged: less may be anything."""
_RUN_SHARE, _DOCUMENT_SHARE, _PROGRAM_SHARE, _PROGRAMS = 0.2, 0.5, 0.8, 4
"""Most lines of a run in a text that is none; fewest lines of a known other form; programs that a system log is of."""
_TAIL = 5
"""Last lines among which nothing of a run may stand."""
_TROUBLE = re.compile(r"(?i).{0,1000}?(?:error|exception|fail|abort|kill|trace|usage|denied|refused|not found)")
"""What a log of a few lines is about, and what source code and settings may speak of as well."""
_BLOCK_SCALAR = re.compile(r"\s*(?:- |[\w.-]{1,80}: )[|>][-+]?$")
_FEW = 10
"""Lines of a text that is judged by its words as well."""
_STEPS = 20
"""Steps of training that make any text a log."""
_SHORT, _MARKUP_SHARE, _LONG_PROSE = 15, 0.1, 40
"""Lines of a text in which nothing may be of a run; markup in a document; lines of a text that has none."""
_TEMPLATES_READ = 2_000


def unlike_a_run(evidence: Evidence) -> str:
    """What the text reads like, where it is not the log of a run; "" where it may be one."""
    printed = [line for line in evidence.lines if line.body.strip()]
    if not printed:
        return "nothing that a run printed"
    text = _Text(*_texts(evidence))
    if _is_table(printed[0].text, text):
        return LineKind.TABLE
    if _ends_like_a_run(evidence, printed[-_TAIL:], text):
        return ""
    if text.lines < _LEAST:
        return ""
    if text.lines < _FEW and text.holds(_TROUBLE):
        return ""
    if _programs(text) >= _PROGRAMS:
        return LineKind.PROGRAM
    return _document(text)


@dataclass(frozen=True)
class _Text:
    """A text by the shapes of its lines.

    shapes: a line of each shape and how many are of that shape, in the order of their first lines.
    samples: more lines of these shapes.
    """

    shapes: Sequence[tuple[str, int]]
    samples: Sequence[str]

    @cached_property
    def lines(self) -> int:
        return sum(count for _, count in self.shapes)

    @cached_property
    def forms(self) -> tuple[LineForm, ...]:
        """The forms that count in this text."""
        return tuple(form for form in FORMS if form.marker is None or self.holds(form.marker))

    @cached_property
    def quotes_lines(self) -> bool:
        """Whether it is YAML that holds indented text as it is."""
        return self.holds(_BLOCK_SCALAR)

    def holds(self, marker: re.Pattern[str]) -> bool:
        """Whether a line matches."""
        return any(map(marker.match, self.samples))

    def kind(self, line: str) -> LineKind:
        """The kind of a line of this text."""
        kind = _kind_by(filter(attrgetter("sure"), self.forms), line)
        if kind:
            return kind
        if _is_printed(line):
            return LineKind.OTHER if self.quotes_lines and line[:1].isspace() else LineKind.RUN
        kind = _kind_by(self.forms, line)
        if kind:
            return kind
        return LineKind.PROSE if _is_sentence(line) else LineKind.OTHER


def _kind_by(forms: Iterable[LineForm], line: str) -> LineKind | None:
    return next((form.kind for form in forms if form.pattern.match(line)), None)


def _is_printed(line: str) -> bool:
    """Whether programs print such lines as they run."""
    if _RUN.match(line):
        return True
    if line.count("`") >= _QUOTES:
        return False
    return _WEAK_RUN.match(line) is not None


def _is_sentence(line: str) -> bool:
    words = line.replace("|", " ").split()
    if len(words) < _WORDS_LEAST:
        return False
    return len(list(filter(_WORD.match, words))) >= _WORDS_SHARE * len(words)


def _ends_like_a_run(evidence: Evidence, last: Sequence[Line], text: _Text) -> bool:
    """Whether steps were made, something was raised, or the last lines are printed as runs print theirs. What a
    document or a file of settings quotes is indented."""
    if len(evidence.steps) >= _STEPS:
        return True
    printed = [line for line in last if not line.text[:1].isspace()]
    if any(_is_of_run(line.text, text) for line in printed):
        return True
    if any(_is_at_margin(evidence, trace) for trace in evidence.tracebacks):
        return True
    numbers = {line.number for line in printed}
    return any(evidence.lines[report.line].number in numbers for report in evidence.exits)


def _is_of_run(line: str, text: _Text) -> bool:
    if text.kind(line) is not LineKind.RUN:
        return False
    return not _SYSTEM_LOG.match(line)


def _is_at_margin(evidence: Evidence, trace: Traceback) -> bool:
    """Whether a traceback with frames ends at the margin: what is quoted is indented."""
    return bool(trace.frames) and not evidence.lines[trace.raised].is_indented


def _texts(evidence: Evidence) -> tuple[list[tuple[str, int]], list[str]]:
    """The lines of the evidence by their shapes, and all samples of these; without shapes, the lines themselves."""
    shapes, samples = list[tuple[str, int]](), list[str]()
    for template in evidence.templates[:_TEMPLATES_READ]:
        if "".join(template.samples[:1]).strip():
            shapes.append((template.samples[0], template.count))
            samples += template.samples
    if not shapes:
        samples = [line.text for line in evidence.lines if line.text.strip()]
        shapes = [(text, 1) for text in samples]
    return shapes, samples


def _document(text: _Text) -> str:
    """The kind that most lines are of, where those of a run are few and those of no kind are not too many."""
    counts = _counts(text)
    run, unknown = counts.pop(LineKind.RUN, 0), counts.pop(LineKind.OTHER, 0)
    lines = run + unknown + counts.total()
    if counts[LineKind.PROGRAM] >= _PROGRAM_SHARE * lines:
        return LineKind.PROGRAM
    if run > max(0, _RUN_SHARE * (lines - _SHORT)):
        return ""
    del counts[LineKind.PROGRAM]
    if counts.total() < _DOCUMENT_SHARE * lines:
        return ""
    kind = counts.most_common(1)[0][0]
    if kind is not LineKind.PROSE:
        return kind
    if counts[LineKind.MARKUP] > _MARKUP_SHARE * lines:
        return LineKind.MARKUP
    return "" if lines < _LONG_PROSE else LineKind.PROSE


def _counts(text: _Text) -> Counter[LineKind]:
    """Lines by kind. What many lines begin with up to a colon is who speaks, and no setting."""
    speakers = Counter(filter(None, (_before_colon(line) for line, _ in text.shapes)))
    counts = Counter[LineKind]()
    for line, count in text.shapes:
        kind = text.kind(line)
        if kind is LineKind.SETTINGS and speakers[_before_colon(line)] > _REPEATED:
            kind = LineKind.RUN
        counts[kind] += count
    return counts


def _before_colon(line: str) -> str:
    before, colon, _ = line.partition(": ")
    if not colon:
        return ""
    return "" if before.startswith((" ", "\t", "-", "#")) else before


def _is_table(head: str, text: _Text) -> bool:
    """Whether the first line names columns, and all others fill them."""
    rows = [line for line, _ in text.shapes if line != head]
    if not rows or _LOGGED.match(head):
        return False
    for delimiter in _DELIMITERS:
        names = head.split(delimiter)
        if len(names) < _COLUMNS:
            continue
        if not all(map(_NAME.match, names)):
            continue
        if all(_fills(row.split(delimiter), len(names)) for row in rows):
            return True
    return False


def _fills(cells: Sequence[str], columns: int) -> bool:
    if len(cells) != columns:
        return False
    return all(map(_VALUE.match, cells))


def _programs(text: _Text) -> int:
    """How many programs wrote a system log; 0 for a text that is none."""
    programs = set[str]()
    for line, _ in text.shapes:
        match = _SYSTEM_LOG.match(line)
        if match is None:
            return 0
        programs.add(match["program"].rstrip("0123456789"))  # ranks are of one
    return len(programs)

"""`explain --markdown`: a diagnosis for an issue tracker, with secrets masked.

The log is the job's own text: whatever it holds stands in code, which it cannot end.
"""

from collections.abc import Iterator, Sequence

from diagnoser.commands.explain import SIGNS
from diagnoser.commands.render import answer, clipped, places_of
from diagnoser.model import Diagnosis, Line
from diagnoser.model.lines import printable
from diagnoser.redaction.redact import Redact, masked_lines
from diagnoser.web.pages.excerpt import Excerpt, excerpts
from diagnoser.wording.post_mortem import fence


def markdown(name: str, verdict: Diagnosis, kept: Sequence[Line], redact: Redact) -> str:
    """kept: all lines that the compressor kept. redact: masks what must not leave the site."""
    parts = [*_verdict(name, verdict)]
    for excerpt in excerpts(verdict, kept):
        parts += ["", _block(masked_lines(_lines(excerpt), redact))]
    return "\n".join(map(redact, parts)) + "\n"


def _verdict(name: str, verdict: Diagnosis) -> Iterator[str]:
    yield f"### {answer(verdict)} ({verdict.category}, {verdict.outcome}, {verdict.confidence:.0%} sure)"
    yield ""
    yield f"- **log** {_code(name)}: {verdict.compression.lines_in:,} lines"
    if verdict.root_cause:
        for place, value in places_of(verdict.root_cause):
            yield f"- **{place}** {_code(value)}"
        yield f"- **root line** {verdict.root_cause.line}: {_code(verdict.root_cause.text)}"
    for suspect in verdict.nodes:
        yield f"- **suspect** {_code(suspect.node)} ({suspect.score:.2f}): {_code(suspect.why)}"
    yield f"- **action** {verdict.recovery.action}: {_code(verdict.recovery.reason)}"
    yield f"- **decided by** {_code(verdict.decided_by)}"
    yield f"- **what to do** {_code(verdict.mitigation)}"


def _lines(excerpt: Excerpt) -> str:
    width = max(len(str(row.number)) for row in excerpt.rows)
    lines = []
    for row in excerpt.rows:
        if row.gap > 0:
            lines.append(f"   {'':{width}} ... {row.gap:,} lines")
        lines.append(f"{SIGNS[row.role]} {row.number:>{width}} {printable(clipped(row.text))}")
    return "\n".join(lines)


def _code(text: str) -> str:
    plain = printable(clipped(text))
    ticks = fence(plain, 1)
    return f"{ticks} {plain} {ticks}"


def _block(text: str) -> str:
    marks = fence(text, 3)
    return f"{marks}text\n{text}\n{marks}"

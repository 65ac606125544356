"""A diagnosis as a Slack message (Block Kit): the verdict first, then the line that shows it, then what to do.

Log text is not trusted: everything from a log is escaped, so that it can neither mention people nor leave its block.
"""

from collections.abc import Callable

from diagnoser.model import Diagnosis, Plan, cited_place
from diagnoser.model.taxonomy import Category

ROOT_LENGTH = 1_500
TEXT_LENGTH = 600
HEADER_LENGTH = 150
NOTES, NOTE_LENGTH = 6, 400
"""Slack cuts or refuses longer texts: 150 characters in a header, 3,000 in a section, counted after escaping."""

SlackBlock = dict[str, object]


def slack_message(
    diagnosis: Diagnosis, *, job: str, attempt: int, link: str = "", redact: Callable[[str], str] = lambda text: text
) -> dict[str, object]:
    """The body for an incoming webhook. link: URL of the page, "" for none. redact: hides secrets in log text."""
    title = _title(diagnosis, job, attempt)
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title, HEADER_LENGTH), "emoji": False}},
        {"type": "section", "fields": [_mrkdwn(text) for text in _facts(diagnosis)]},
        *_review(diagnosis, redact),
        *_root(diagnosis, redact),
        *_notes(diagnosis, redact),
        *_advice(diagnosis, redact),
        *_link(link),
    ]
    return {"text": escape(_cut(title, TEXT_LENGTH)), "blocks": blocks}


def plan_message(plan: Plan, *, link: str = "", redact: Callable[[str], str] = lambda text: text) -> dict[str, object]:
    """The body that reports the state of a recovery plan: its action, its state, and why.

    redact: hides secrets in what an executor reported.
    """
    why = plan.history[-1].why if plan.history else plan.reason
    title = f"Plan for {plan.job} attempt {plan.attempt}: {plan.state.value.replace('_', ' ')}"
    title = "".join(char if char.isprintable() else " " for char in title)
    nodes = ", ".join(f"`{code(_cut(node, 100))}`" for node in plan.nodes[:10])
    facts = [f"*Action*\n`{plan.action}`", *([f"*Nodes*\n{nodes}"] if nodes else [])]
    blocks: list[SlackBlock] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title, HEADER_LENGTH), "emoji": False}},
        {"type": "section", "fields": [_mrkdwn(text) for text in facts]},
        _section(f"*Why* {_whole(escape(redact(why)), TEXT_LENGTH)}"),
        *_link(link),
    ]
    return {"text": escape(_cut(title, TEXT_LENGTH)), "blocks": blocks}


def escape(text: str) -> str:
    """Slack's three control characters; with them gone, text can neither link nor mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """Text inside backticks, which have no escape of their own: each is replaced by a look-alike."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return escape(printable.replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}"))


def _title(diagnosis: Diagnosis, job: str, attempt: int) -> str:
    no_type = diagnosis.category in (Category.NONE, Category.UNKNOWN)
    cause = diagnosis.category.value if no_type else f"{diagnosis.type} ({diagnosis.category})"
    title = f"{job} attempt {attempt} {diagnosis.outcome}: {diagnosis.held_up or cause}"
    return "".join(char if char.isprintable() else " " for char in title)


def _facts(diagnosis: Diagnosis) -> list[str]:
    """Slack shows at most ten fields."""
    root = diagnosis.root_cause
    facts = [f"*Cause*\n`{code(diagnosis.type)}`", f"*Confidence*\n{diagnosis.confidence:.0%}"]
    if root and root.rank is not None:
        facts.append(f"*Rank*\n{root.rank}")
    nodes = [suspect.node for suspect in diagnosis.nodes[:3]] or ([root.node] if root and root.node else [])
    if nodes:
        facts.append("*Node*\n" + ", ".join(f"`{code(_cut(node, 100))}`" for node in nodes))
    if root and root.gpu:
        facts.append(f"*GPU*\n`{code(_cut(root.gpu, 100))}`")
    return [*facts, f"*Decided by*\n`{code(_cut(diagnosis.decided_by, 100))}`"]


def _review(diagnosis: Diagnosis, redact: Callable[[str], str]) -> list[SlackBlock]:
    why = diagnosis.needs_review
    return [_section(f"*Needs review* {_whole(escape(redact(why)), TEXT_LENGTH)}")] if why else []


def _root(diagnosis: Diagnosis, redact: Callable[[str], str]) -> list[SlackBlock]:
    root = diagnosis.root_cause
    if root is None:
        return []
    line = _whole(code(redact(root.text)), ROOT_LENGTH)
    source = code(_cut(root.source, 100))
    place = f"*Line {root.line}* of {source}" if root.line > 0 else f"*{cited_place(source, 0).capitalize()}*"
    return [_section(f"{place}\n```{line}```")]


def _notes(diagnosis: Diagnosis, redact: Callable[[str], str]) -> list[SlackBlock]:
    """How long a run that hangs has been silent, which ranks are slow, what failed before."""
    notes = [f"\N{BULLET} {_whole(escape(redact(note)), NOTE_LENGTH)}" for note in diagnosis.notes[:NOTES]]
    return [_section("\n".join(notes))] if notes else []


def _advice(diagnosis: Diagnosis, redact: Callable[[str], str]) -> list[SlackBlock]:
    advice = f"*Next* `{diagnosis.recovery.action}`"
    if diagnosis.recovery.reason:
        advice += f" \N{EM DASH} {_whole(escape(diagnosis.recovery.reason), TEXT_LENGTH)}"
    if diagnosis.mitigation:
        advice += f"\n{_whole(escape(redact(diagnosis.mitigation)), ROOT_LENGTH)}"
    return [_section(advice)]


def _link(link: str) -> list[SlackBlock]:
    if not link:
        return []
    target = escape(link).replace("|", "%7C").replace(" ", "%20")
    return [{"type": "context", "elements": [_mrkdwn(f"<{target}|Open the diagnosis>")]}]


def _section(text: str) -> SlackBlock:
    return {"type": "section", "text": _mrkdwn(text)}


def _mrkdwn(text: str) -> SlackBlock:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _whole(escaped: str, length: int) -> str:
    """Cut escaped text without cutting an escape in two."""
    if len(escaped) <= length:
        return escaped
    head = escaped[: length - 1]
    start = head.rfind("&")
    return (head[:start] if start >= 0 and ";" not in head[start:] else head) + "\N{HORIZONTAL ELLIPSIS}"

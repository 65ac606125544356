"""An alert as a Slack message (Block Kit): what happened first, then the line that shows it, then what to do.

Log text is not trusted: everything is escaped, so that it can neither mention people nor leave its block.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import orjson

from diagnoser.model.alerts import Alert, AlertKind
from diagnoser.model.lines import printable, shortened
from diagnoser.wording.words import action_words

SECTION_LENGTH = 1_500
TEXT_LENGTH = 600
HEADER_LENGTH = 150
NOTE_LENGTH = 400
FACTS_MAX = 10
"""Slack cuts or refuses longer texts: 150 characters in a header, 2,000 in a field, 3,000 in a section, counted after
escaping."""
APPROVE, REFUSE, CONFIRM, SILENCE = "approve_plan", "refuse_plan", "confirm_diagnosis", "silence_incident"
"""Ids of the buttons."""
STATUS = "status"

SlackBlock = dict[str, object]


def slack_message(alert: Alert, *, buttons: bool = False) -> dict[str, Any]:
    """Text and blocks for an incoming webhook or `chat.postMessage`. buttons: somebody may press them."""
    blocks = [_header(alert.title), *_told(alert)]
    if buttons:
        blocks.append(_buttons(alert))
    if alert.link:
        name = "Open the diagnosis" if alert.diagnosis else "Open the page"
        blocks.append(_context(f"<{_address(alert.link)}|{name}>"))
    return {"text": escape(shortened(alert.title, TEXT_LENGTH)), "blocks": blocks}


def with_status(message: Mapping[str, Any], status: str, title: str = "") -> dict[str, Any]:
    """A message that says below its title how its incident stands by now. title: another one, "" to leave it."""
    header, *rest = (block for block in message["blocks"] if block.get("block_id") != STATUS)
    shown = _section(f"*{_whole(escape(status), TEXT_LENGTH)}*") | {"block_id": STATUS}
    if title:
        header, message = _header(title), {**message, "text": escape(shortened(title, TEXT_LENGTH))}
    return {**message, "blocks": [header, shown, *rest]}


def answer_message(text: str, lines: Sequence[tuple[str, str, str]], note: str) -> dict[str, Any]:
    """What is answered in a thread. lines: (where it stands, its address or "", its text) of each that is cited.
    note: who says so, as Slack's own markup."""
    blocks = [_section(_whole(escape(text), SECTION_LENGTH))]
    for place, url, line in lines:
        name = f"<{_address(url)}|{code(place)}>" if url else f"*{code(place)}*"
        blocks.append(_section(f"{name}\n```{_whole(code(line), TEXT_LENGTH)}```"))
    blocks.append(_context(_whole(note, SECTION_LENGTH)))
    return {"text": escape(shortened(text, TEXT_LENGTH)), "blocks": blocks, "unfurl_links": False}


def escape(text: str) -> str:
    """Slack's three control characters; with them gone, text can neither link nor mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescape(text: str) -> str:
    """What a person typed, from Slack's form of it."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def code(text: str) -> str:
    """Text inside backticks, which have no escape of their own: each is replaced by a look-alike."""
    shown = printable(text, stays="\n")
    return escape(shown.replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}"))


def _header(title: str) -> SlackBlock:
    text = _whole(escape(title), HEADER_LENGTH)
    return {"type": "header", "text": {"type": "plain_text", "text": text, "emoji": False}}


def _fact(name: str, value: str) -> SlackBlock:
    is_number = value.rstrip("%").isdecimal()
    return _mrkdwn(f"*{name}*\n" + (value if is_number else f"`{_whole(code(value), TEXT_LENGTH)}`"))


def _told(alert: Alert) -> Iterator[SlackBlock]:
    """What the alert says below its title, as far as it says it."""
    if alert.facts:
        yield {"type": "section", "fields": list(starmap(_fact, alert.facts[:FACTS_MAX]))}
    if alert.why:
        name = "Needs review" if alert.kind is AlertKind.FAILURE else "Why"
        yield _section(f"*{name}* {_whole(escape(alert.why), TEXT_LENGTH)}")
    if alert.place:
        yield _section(f"*{code(alert.place)}*\n```{_whole(code(alert.line), SECTION_LENGTH)}```")
    if alert.notes:
        notes = (f"\N{BULLET} {_whole(escape(note), NOTE_LENGTH)}" for note in alert.notes)
        yield _section("\n".join(notes))
    if alert.action:
        yield _section(_advice(alert))


def _advice(alert: Alert) -> str:
    advice = f"*Next* {escape(action_words(alert.action))}"
    if alert.reason:
        advice += f" \N{EM DASH} {_whole(escape(alert.reason), TEXT_LENGTH)}"
    if alert.mitigation:
        advice += f"\n{_whole(escape(alert.mitigation), SECTION_LENGTH)}"
    return advice


def _buttons(alert: Alert) -> SlackBlock:
    """What can be decided from the message. Values are ids of ours: nothing of a log comes back with them."""
    if alert.plan:
        buttons = [_button(APPROVE, "Approve", alert.plan, "primary"), _button(REFUSE, "Refuse", alert.plan, "danger")]
    elif alert.kind is AlertKind.FAILURE and alert.diagnosis:
        buttons = [_button(CONFIRM, "This is right", alert.diagnosis)]
    else:
        buttons = []
    return {"type": "actions", "elements": [*buttons, _button(SILENCE, "Silence for a day", alert.incident)]}


def _button(action: str, text: str, value: str, style: str = "") -> SlackBlock:
    label = {"type": "plain_text", "text": text, "emoji": False}
    button: SlackBlock = {"type": "button", "action_id": action, "text": label, "value": value}
    return button | ({"style": style} if style else {})


def _context(text: str) -> SlackBlock:
    return {"type": "context", "elements": [_mrkdwn(text)]}


def _address(url: str) -> str:
    return escape(url).replace("|", "%7C").replace(" ", "%20")


def place_of(channel: str, ts: str) -> str:
    """The beginning of the handle of the thread whose first message stands there."""
    return orjson.dumps({"channel": channel, "ts": ts}).decode().removesuffix("}") + ","


def _section(text: str) -> SlackBlock:
    return {"type": "section", "text": _mrkdwn(text)}


def _mrkdwn(text: str) -> SlackBlock:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _whole(escaped: str, length: int) -> str:
    """Cut escaped text without cutting an escape in two."""
    if len(escaped) <= length:
        return escaped
    head = escaped[: length - 1]
    start = head.rfind("&")
    return (head[:start] if start >= 0 and ";" not in head[start:] else head) + "\N{HORIZONTAL ELLIPSIS}"

"""An alert as plain text: for terminals, mail and every chat that is no Slack."""

from collections.abc import Iterator

from diagnoser.model.alerts import Alert, AlertKind
from diagnoser.model.lines import printable
from diagnoser.wording.words import action_words


def body(alert: Alert) -> str:
    """Write everything below the title. Control characters of log text are blanks."""
    text = "\n\n".join(filter(None, _parts(alert)))
    return printable(text, stays="\n")


def _parts(alert: Alert) -> Iterator[str]:
    yield "\n".join(f"{name}: {value}" for name, value in alert.facts)
    if alert.why:
        review = "Needs review" if alert.kind is AlertKind.FAILURE else "Why"
        yield f"{review}: {alert.why}"
    if alert.place:
        yield f"{alert.place}:\n{alert.line}"
    yield "\n".join(f"- {note}" for note in alert.notes)
    if alert.action:
        reason = f" ({alert.reason})" if alert.reason else ""
        yield f"Next: {action_words(alert.action)}{reason}"
    yield alert.mitigation
    yield alert.link

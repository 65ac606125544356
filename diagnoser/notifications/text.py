"""An alert as plain text: for terminals, mail and every chat that is no Slack."""

from diagnoser.model.alerts import Alert, AlertKind


def body(alert: Alert) -> str:
    """Everything below the title. Control characters of log text are blanks."""
    review = "Needs review" if alert.kind is AlertKind.FAILURE else "Why"
    parts = [
        "\n".join(f"{name}: {value}" for name, value in alert.facts),
        f"{review}: {alert.why}" if alert.why else "",
        f"{alert.place}:\n{alert.line}" if alert.place else "",
        "\n".join(f"- {note}" for note in alert.notes),
        f"Next: {alert.action}" + (f" ({alert.reason})" if alert.reason else "") if alert.action else "",
        alert.mitigation,
        alert.link,
    ]
    text = "\n\n".join(part for part in parts if part)
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)

"""The Gantt chart of an evaluation as SVG, for a page or a file."""

from collections.abc import Sequence

from markupsafe import Markup

from diagnoser.evaluations.gantt import Bar, BarKind, duration, end_of, kinds
from diagnoser.web.pages.rendering import templates

_WIDTH, _LEFT = 960, 150
_TICKS = 7
"""Most ticks of the axis."""
_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
"""Seconds between two ticks."""
_LETTER = 6.2
"""Pixels of a character, so that a label stays within its bar."""


def svg(chart: Sequence[Bar], title: str, description: str) -> Markup:
    end, rows = end_of(chart), dict[str, int]()
    for bar in chart:
        rows.setdefault(bar.row, len(rows))
    text = (
        templates()
        .get_template("gantt.svg")
        .render(
            chart=chart,
            rows=rows,
            kinds=kinds(chart),
            title=title,
            description=description,
            end=end,
            step=next((step for step in _STEPS if end / step <= _TICKS), end),
            scale=(_WIDTH - _LEFT - 8) / end,
            width=_WIDTH,
            left=_LEFT,
            duration=duration,
            label_of=_label,
        )
    )
    return Markup(text)  # noqa: S704 - the template has escaped its texts


def _label(bar: Bar, width: float) -> str:
    """Choose the longest text that fits into the bar; "" where none does."""
    if bar.kind is BarKind.INFERENCE:
        for name in (bar.label, bar.label.rpartition(" ")[0]):
            if len(name) * _LETTER < width - 6:
                return name
    return ""

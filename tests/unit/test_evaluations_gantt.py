"""The chart of an evaluation: its bars, as SVG that anyone can read, and as text."""

from xml.etree import ElementTree

from diagnoser.evaluations.gantt import Bar, BarKind, bars, duration, text
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.evaluations import Batch, Placement, Schedule, Scoring, TrialShard
from diagnoser.web.pages.gantt_chart import svg

PRIOR = RuntimeEstimates({"gsm8k": 1.0, "<b>": 1.0}, {"gsm8k": 30.0, "<b>": 10.0}, 60.0, 5.0)
MADE = Schedule(
    (
        Placement(Batch((TrialShard("c", "gsm8k", 0, 100),), 165.0), "gpu-10", 0, 0.0, 165.0),
        Placement(
            Batch((TrialShard("c", "<b>", 0, 20), TrialShard("c", "gsm8k", 100, 150)), 140.0), "gpu-9", 1, 0.0, 140.0
        ),
    ),
    (Scoring("c", "<b>", 85.0, 95.0), Scoring("c", "gsm8k", 165.0, 195.0)),
    195.0,
    150.0,
)


def test_bars_are_loads_shards_and_metrics() -> None:
    """In rows of slots, nodes in the order people count, and one CPU for metrics that do not overlap."""
    chart = bars(MADE, PRIOR)
    assert [(bar.row, str(bar.kind), bar.label, bar.start, bar.end) for bar in chart] == [
        ("gpu-9 1", "load", "weights", 0, 60),
        ("gpu-9 1", "inference", "<b> 0-19", 60, 85),
        ("gpu-9 1", "inference", "gsm8k 100-149", 85, 140),
        ("gpu-10 0", "load", "weights", 0, 60),
        ("gpu-10 0", "inference", "gsm8k 0-99", 60, 165),
        ("CPU 0", "scoring", "<b>", 85, 95),
        ("CPU 0", "scoring", "gsm8k", 165, 195),
    ]


def test_the_svg_is_named_and_described() -> None:
    """A title, a description, a title for each bar, patterns besides colours, no script and no style, names escaped."""
    source = svg(bars(MADE, PRIOR), "Schedule of <x>", "Ends after 3 min & 15 s.")
    root = ElementTree.fromstring(source)
    name = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    named = {node.get("id"): node.text for node in root if node.get("id")}
    assert [named[key] for key in (root.get("aria-labelledby") or "").split()] == [
        "Schedule of <x>",
        "Ends after 3 min & 15 s.",
    ]
    titles = [node.text for node in root.iterfind(f".//{name}g/{name}title")]
    assert "<b> 0-19: inference, 1 min 00 s to 1 min 25 s" in titles
    assert len({rect.get("fill") for rect in root.iter(f"{name}rect")}) == 3
    assert not any(word in source for word in ("<script", "<style", "style=", "<b>"))


def test_an_empty_chart_is_drawn() -> None:
    """All was done already."""
    ElementTree.fromstring(svg([], "t", "d"))
    assert "load" in text([])


def test_the_text_has_a_line_a_row_within_its_width() -> None:
    """With a mark for each kind, and the end."""
    lines = text(bars(MADE, PRIOR), 60).splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == ["gpu-9", "gpu-10", "CPU"]
    assert all(len(line) <= 60 for line in lines)
    assert {"/", "█"} <= set(lines[0])
    assert "·" in lines[2]
    assert lines[3].endswith("3 min 15 s")


def test_a_short_bar_is_seen_where_nothing_else_is() -> None:
    """A metric of a second in an hour has its cell."""
    chart = [Bar("a", BarKind.INFERENCE, "x", 0, 3600), Bar("b", BarKind.SCORING, "x", 1800, 1900)]
    assert "·" in text(chart, 60).splitlines()[1]


def test_durations_have_two_units() -> None:
    """Seconds, minutes, hours."""
    assert [duration(seconds) for seconds in (7.4, 59.6, 3599, 3900)] == [
        "7 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 05 min",
    ]

"""Plots of an attempt: numbers only, drawn from the series."""

import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from diagnoser.compress import Delta, to_bytes
from diagnoser.model import AttemptKey, CheckpointPhase, Event, EventKind, Progress, Stage
from diagnoser.model.logs import Append
from diagnoser.web.pages import charts
from tests.serving import NOW, StoredLogs, fill, serving

SVG = "{http://www.w3.org/2000/svg}"


def steps(losses: Sequence[float], first: int = 10) -> list[Progress]:
    return [Progress(n, 0, 0.0, n, loss, None, 0.5, None) for n, loss in enumerate(losses, first)]


def test_each_series_with_two_points_is_a_curve() -> None:
    """Loss and step time are there, what is never printed is not; validation is no training."""
    found = charts.curves([*steps([3.0, 2.5, 2.25]), Progress(99, 0, 0.0, 99, 9.0, stage=Stage.EVAL)])
    assert [(one.name, one.over, len(one.points)) for one in found] == [
        ("loss", "step", 3),
        ("seconds a step", "step", 3),
    ]


def test_a_series_without_steps_is_drawn_over_its_lines() -> None:
    """Some trainers print no step."""
    (loss,) = charts.curves(Progress(line, 0, 0.0, None, 2.0) for line in (7, 90, 300))
    assert (loss.over, [x for x, _ in loss.points]) == ("line", [7, 90, 300])


def test_the_drawing_is_xml_and_stays_inside() -> None:
    """Points lie inside the panel, also with NaN, infinity, zero and one value for all."""
    for losses in ([3.0, math.nan, 2.0, math.inf, -math.inf], [0.0, 0.0], [1e-9, 1e9], [math.nan, math.nan]):
        root = ElementTree.fromstring(charts.svg(charts.curves(steps(losses))))
        spots = [spot.split(",") for line in root.iter(f"{SVG}polyline") for spot in line.get("points", "").split()]
        height = float(root.get("height", "0"))
        assert all(0 <= float(x) <= charts.WIDTH and 0 <= float(y) <= height for x, y in spots)


def test_what_diverged_is_marked() -> None:
    """A NaN is no point of the curve and cannot be overlooked."""
    drawn = charts.svg(charts.curves(steps([3.0, math.nan, 2.0])))
    assert drawn.count("#d9480f") == 1


async def test_the_page_of_a_job_shows_the_plot_of_each_attempt(tmp_path: Path) -> None:
    """The image is an address of this server, and unknown attempts have none."""
    async with serving(tmp_path, context=StoredLogs(points=steps([3.0, 2.0]))) as web:
        job = "llm-70b-pretrain"
        await fill(web.store)
        await web.store.logs.append([Append(AttemptKey(job), to_bytes(Delta()), NOW, {}, False)])
        page = (await web.client.get(f"/jobs/{job}")).text
        answer = await web.client.get(f"/jobs/{job}/attempts/1/series.svg")
        missing = await web.client.get(f"/jobs/{job}/attempts/99/series.svg")
    assert f"/jobs/{job}/attempts/1/series.svg" in page
    assert answer.headers["content-type"].startswith("image/svg+xml")
    assert "<polyline" in answer.text
    assert missing.status_code == 404


def test_an_axis_with_bounds_does_not_follow_the_values() -> None:
    """A share in percent is drawn between 0 and 100, and one that never changes is no flat line at the bottom."""
    drawn = charts.svg([charts.Curve("right (%)", "replay", ((1, 90.0), (2, 90.0)), (0.0, 100.0))])
    assert ">100</text>" in drawn and ">0</text>" in drawn
    assert "25.2" in drawn.split("points=")[1]


def test_the_wait_for_checkpoints_is_a_curve() -> None:
    """By step, in seconds, from two checkpoints on whose wait is known."""
    events = [
        Event(
            EventKind.CHECKPOINT, float(step), step=step, path=f"/{step}", phase=CheckpointPhase.STAGED, blocked_ms=wait
        )
        for step, wait in ((20, 500.0), (10, 2_500.0), (30, None))
    ]
    curve = charts.blocked_curve(events)
    assert curve is not None and curve.points == ((10, 2.5), (20, 0.5))
    assert charts.blocked_curve(events[:1]) is None

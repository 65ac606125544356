"""The scale of the time axis: one order, every part wide enough to be read."""

from hypothesis import given
from hypothesis import strategies as st

from diagnoser.web.pages.time_scale import time_scale

DAY = 86_400.0
TIMES = st.floats(0, 4e9, allow_nan=False)


@given(times=st.lists(TIMES, min_size=4, max_size=4).map(sorted), asked=st.lists(TIMES, min_size=2, max_size=2))
def test_what_is_later_is_never_further_left(times: list[float], asked: list[float]) -> None:
    """Whatever the run lasted: positions keep the order of the times, and stay within the width."""
    scale = time_scale(times[0], (times[1], times[2]), times[3])
    low, high = sorted(asked)
    assert 0.0 <= scale.x(low) <= scale.x(high) <= 1.0
    assert scale.parts[0].left == 0.0 and abs(scale.parts[-1].right - 1.0) < 1e-9


@given(times=st.lists(TIMES, min_size=4, max_size=4).map(sorted), share=st.floats(0, 1))
def test_a_place_leads_back_to_its_time(times: list[float], share: float) -> None:
    """The bins of the heat strip are cut where the scale draws them."""
    scale = time_scale(times[0], (times[1], times[2]), times[3])
    assert abs(scale.x(scale.time(share)) - share) < 1e-6


def test_a_second_after_three_days_can_be_read() -> None:
    """The failure of a long run has a part of its own, and so has a repair that comes much later."""
    scale = time_scale(0.0, (3 * DAY, 3 * DAY + 1), 3 * DAY + 7_200)
    assert [part.name for part in scale.parts] == ["run", "failure", "after"]
    assert scale.x(3 * DAY + 1) - scale.x(3 * DAY) > 0.15
    assert scale.x(2 * DAY) < scale.x(3 * DAY) < scale.x(3 * DAY + 600)


def test_a_short_run_has_one_scale() -> None:
    """Where everything is within minutes, nothing is stretched; nor where nothing failed."""
    assert [part.name for part in time_scale(0.0, (60.0, 90.0), 100.0).parts] == ["failure"]
    assert [part.name for part in time_scale(0.0, None, DAY).parts] == ["run"]

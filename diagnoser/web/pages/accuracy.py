"""The page that shows how often diagnoses were right, by what people said about them, and how they do now."""

from collections.abc import Sequence
from itertools import accumulate

from fastapi import Response

from diagnoser.accuracy import feedback_accuracy
from diagnoser.model import CaseReplay
from diagnoser.model.weeks import WEEK, week_of
from diagnoser.web.http.dependencies import Core
from diagnoser.web.pages import charts
from diagnoser.web.pages.charts import Curve
from diagnoser.web.pages.rendering import Drawn, reading_pages

REPLAYS, WRONG = 200, 100
"""Replays that the chart shows, and wrong cases that are listed."""
WEEKS, JUDGEMENTS = 26, 10_000
"""Weeks that are shown, and most verdicts of them that are counted, those judged last."""
CORRECTED = 10
"""Confusions, and deciders, that are listed."""
_RECENT = 20
"""Verdicts over which the share that people called right is taken."""
_PERCENT = (0.0, 100.0)

router = reading_pages()


@router.get("/accuracy")
async def accuracy_page(core: Core, pages: Drawn) -> Response:
    replays = await core.store.cases.replays(REPLAYS)
    latest = next(iter(replays), None)
    now = core.clock()
    since = week_of(now) - (WEEKS - 1) * WEEK
    judgements = await core.store.cases.judgements(since, JUDGEMENTS)
    weeks = feedback_accuracy.by_week(judgements, now, WEEKS)
    wrong = []
    if latest:
        wrong = [outcome for outcome in reversed(latest.outcomes) if not outcome.is_right]
    return pages.draw(
        "accuracy.html",
        replays=replays,
        latest=latest,
        mark=await core.store.cases.mark(),
        wrong=wrong[:WRONG],
        spoiled=sum(outcome.was_right for outcome in wrong),
        drawable=bool(_curves(replays)),
        judgements=judgements,
        is_cut=len(judgements) == JUDGEMENTS,
        weeks=weeks,
        most_judged=max(week.judged for week in weeks),
        kinds=feedback_accuracy.by_kind(judgements),
        corrected=feedback_accuracy.most_corrected(judgements, CORRECTED),
        confusions=feedback_accuracy.confusions(judgements, CORRECTED),
    )


@router.get("/accuracy/series.svg")
async def series(core: Core) -> Response:
    """An SVG image; empty as long as there is too little to draw."""
    drawn = charts.svg(_curves(await core.store.cases.replays(REPLAYS)))
    return Response(drawn, media_type="image/svg+xml", headers={"Cache-Control": "no-cache"})


def _curves(replays: Sequence[CaseReplay]) -> list[Curve]:
    """replays: the newest first."""
    if not replays:
        return []
    then = [outcome.was_right for outcome in replays[0].outcomes]
    ordered = list(reversed(replays))
    types = [share(replay.right, len(replay.outcomes)) for replay in ordered]
    roots = [share(sum(replay.roots), len(replay.roots)) for replay in ordered if replay.roots]
    curves = [
        _curve(f"right when people judged them, of the last {_RECENT} (%)", "case", _rolling(then)),
        _curve("cause right in each replay of all cases (%)", "replay", types),
        _curve("root line right in each replay (%)", "replay", roots),
    ]
    return [curve for curve in curves if len(curve.points) > 1]


def _curve(name: str, over: str, values: Sequence[float]) -> Curve:
    return Curve(name, over, tuple(enumerate(values, 1)), _PERCENT)


def _rolling(outcomes: Sequence[bool]) -> list[float]:
    """The share of right ones among the last ``_RECENT``, after each case."""
    sums = [0, *accumulate(outcomes)]
    ends = range(1, len(sums))
    return [share(sums[end] - sums[max(0, end - _RECENT)], min(end, _RECENT)) for end in ends]


def share(right: int, of: int) -> float:
    """In percent; 0 of nothing."""
    if not of:
        return 0.0
    return 100 * right / of

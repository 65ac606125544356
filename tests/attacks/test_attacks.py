"""Walls tried from the side: nothing that a job controls moves a machine, or another job, and true faults still do."""

from pathlib import Path
from typing import get_args

import pytest
from fastapi.routing import iter_route_contexts

from tests.attacks import run
from tests.attacks.judge import Breach
from tests.attacks.lies import Surface, lies
from tests.attacks.site import CREDENTIALS, Lab, Setting, Site, running
from tests.attacks.ways import ways
from tests.thorough import THOROUGH

SEED = 30
COUNT = 900 if THOROUGH else 30
"""Attacks of each setting."""

TWINS = frozenset({"/_bulk", "/{index}/_bulk", "/elasticsearch/{index}/_bulk"})
"""Other names of a route that is attacked."""


@pytest.mark.timeout(900 + 10 * COUNT)
@pytest.mark.parametrize("setting", get_args(Setting))
async def test_what_a_job_controls_moves_nothing_and_true_faults_do(tmp_path: Path, setting: Setting) -> None:
    """Of all ways times lies none reaches a foreign node, a cordon or another tenant's job; every control acts."""
    async with running(tmp_path, setting) as site:
        controls = await run.controls(site)
        results = await run.carry_out(site, run.attacks(setting, COUNT, SEED), lambda done: None)
    assert [control for control in controls if not control.ok] == []
    won = [result for result in results if result.successes]
    assert not won, f"{len(won)} of {len(results)} attacks succeed:\n" + "\n".join(
        "\n".join((result.attack.command(setting), *map(str, result.successes), *result.done)) for result in won[:5]
    )


def test_there_are_enough() -> None:
    """At least 1,500 different attacks, over every way and everything that a job controls."""
    chosen = [attack for setting in get_args(Setting) for attack in run.attacks(setting, 900, SEED)]
    assert len(chosen) >= 1_500
    assert {attack.lie.surface for attack in chosen} == set(Surface)
    assert {attack.way.name for attack in chosen} == set(ways())


def test_each_lie_has_a_name_of_its_own() -> None:
    """An attack that succeeds can be run alone by the names of its way and its lie."""
    names = [(lie.surface, lie.name) for lie in lies()]
    assert len(set(names)) == len(names)


async def test_each_route_that_a_job_reaches_is_a_way(tmp_path: Path) -> None:
    """Whoever adds a route that the token of a job, or of monitoring, may write to has to say how it is attacked."""
    async with running(tmp_path, "tokens") as site:
        open_routes = {path for path in _written(site) if await _lets_pass(site, path)}
    attacked = {way.route for way in ways().values()}
    assert open_routes - TWINS <= attacked
    assert {"/api/v1/logs", "/api/v1/jobs/{id}/events"} <= open_routes, "the probe lets nobody pass"


def _written(site: Site) -> set[str]:
    routes = [route for route in iter_route_contexts(site.application.routes) if route.path]
    return {str(route.path) for route in routes if route.methods and not route.methods.isdisjoint({"POST", "PUT"})}


async def _lets_pass(site: Site, path: str) -> bool:
    """Whether a token of a job or of monitoring is not turned away, whatever the route says of an empty body."""
    lab = Lab(1)
    for name in ("id", "job", "node", "cluster", "request_id", "attempt", "index"):
        path = path.replace(f"{{{name}}}", "1")
    answers = [await site.call(lab, who, path) for who in CREDENTIALS if who in ("ingest", "red", "alerts")]
    return any(answer.status_code not in (401, 403, 404, 405) for answer in answers)


async def test_the_judge_sees_a_node_that_goes(tmp_path: Path) -> None:
    """A true fault, judged as if it were a lie, counts as a success of each kind that it is."""
    async with running(tmp_path, "tokens") as site:
        found = await run.judged_control(site)
    assert {success.breach for success in found} >= {Breach.CORDON, Breach.PROOF}

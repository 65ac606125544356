"""The pages of nodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from diagnoser.adapters.sql.plans import put_plan
from diagnoser.model import Diagnosis, Job, NodeActor, NodeCheck, NodeEvent, NodeEventKind, PairResult, TransitionResult
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery import node_check
from diagnoser.web.api.uncordon import OPEN_SECONDS
from diagnoser.web.pages.nodes import NODES_SHOWN, pair_matrix
from tests.serving import ECC, NOW, Web, save, serving, verdict
from tests.unit.test_web_plans import Clock, post

SECRET = "dgn_" + "x" * 43
BOUND = (Credential("of-west", Scope.OPERATE, cluster="west"), Credential("of-ida", Scope.OPERATE, tenant="ida"))
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


async def happens(
    web: Web, node: str, kind: NodeEventKind, at: float, reason: str = "", cluster: str = "default"
) -> None:
    await web.store.nodes.add_event(NodeEvent(cluster, node, kind, NodeActor.PERSON, at, reason))


async def test_nodes_that_are_out_of_service_come_first(tmp_path: Path) -> None:
    """With the reason, who, and since when; whatever happened to the others later."""
    async with serving(tmp_path) as web:
        await happens(web, "gpu-2", NodeEventKind.RESUMED, NOW - 60)
        await happens(web, "gpu-1", NodeEventKind.CORDONED, NOW - 3_600, "bad <b>fan</b>")
        page = (await web.client.get("/nodes")).text
    assert ">1 out of service</a>" in page
    assert page.index(">gpu-1</a>") < page.index(">gpu-2</a>")
    for shown in ("taken out of service", "bad &lt;b&gt;fan&lt;/b&gt;", "a person", "1\u00a0h ago", "up again"):
        assert shown in page
    assert 'href="/nodes" aria-current="page">Nodes</a>' in page


async def test_a_node_shows_its_state_history_incidents_and_failures(tmp_path: Path) -> None:
    """Each on one page, and the events as JSON."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "llm-7b", ECC)
        await happens(web, "hgx-04", NodeEventKind.CORDONED, NOW - 100, "Xid 94")
        await happens(web, "hgx-04", NodeEventKind.UNCORDONED, NOW - 10, "GPU replaced")
        page = (await web.client.get("/nodes/hgx-04")).text
        same = (await web.client.get("/nodes/hgx-04?cluster=default")).text
        events = (await web.client.get("/api/v1/nodes/hgx-04/events")).json()
    assert page == same
    assert page.index("GPU replaced") < page.index("Xid 94")
    assert "back in service" in page
    assert f'href="/diagnoses/{record.id}"' in page
    assert "ECC error</a></td>" in page
    assert [event["kind"] for event in events] == ["uncordoned", "cordoned"]


async def test_nodes_of_one_name_in_two_clusters_are_kept_apart(tmp_path: Path) -> None:
    """Each has its own state."""
    async with serving(tmp_path) as web:
        await happens(web, "n1", NodeEventKind.DOWN, NOW - 10, "fan", "east")
        await happens(web, "n1", NodeEventKind.RESUMED, NOW - 10, "fine", "west")
        both = (await web.client.get("/nodes/n1")).text
        east = (await web.client.get("/nodes/n1?cluster=east")).text
    assert "State in east" in both
    assert "State in west" in both
    assert "fan" in east
    assert "fine" not in east


async def test_a_node_that_nobody_knows_is_told_as_such(tmp_path: Path) -> None:
    """Before anything happened the list says what it will show."""
    async with serving(tmp_path) as web:
        assert (await web.client.get("/nodes/nowhere")).status_code == 404
        assert "No node is known yet" in (await web.client.get("/nodes")).text


async def press(web: Web, path: str, **fields: str) -> int:
    answer = await web.client.post(path, content=urlencode(fields).encode(), headers=FORM)
    return answer.status_code


async def out_by_plan(web: Web, node: str = "hgx-04", at: float = NOW - 500) -> None:
    event = NodeEvent("default", node, NodeEventKind.CORDONED, NodeActor.DIAGNOSER, at, "plan p1 by slurm-1")
    await web.store.nodes.add_event(event)


async def test_people_write_notes_about_a_node(tmp_path: Path) -> None:
    """With who and when, the newest first, and as text; an empty one is refused."""
    async with serving(tmp_path) as web:
        await happens(web, "hgx-04", NodeEventKind.DOWN, NOW - 100)
        assert await press(web, "/nodes/hgx-04/note", cluster="default", text="GPU 3 <b>reseated</b>") == 303
        assert await press(web, "/nodes/hgx-04/note", cluster="default", text="  ") == 400
        noted = await post(web, "/nodes/hgx-04/notes", {"text": "RMA 4711"})
        page = (await web.client.get("/nodes/hgx-04")).text
        listed = (await web.client.get("/api/v1/nodes/hgx-04/notes")).json()
    assert noted.status_code == 200
    assert page.index("RMA 4711") < page.index("GPU 3 &lt;b&gt;reseated&lt;/b&gt;")
    assert [(note["by"], note["time"]) for note in listed] == [("anonymous", NOW)] * 2


async def test_a_node_that_a_plan_took_out_is_asked_back(tmp_path: Path) -> None:
    """The page says how far that is; nobody asks twice, and the agent's answer stands."""
    async with serving(tmp_path) as web:
        await out_by_plan(web)
        assert "Give it back" in (await web.client.get("/nodes/hgx-04")).text
        assert await press(web, "/nodes/hgx-04/uncordon", cluster="default", comment="GPU replaced") == 303
        assert await press(web, "/nodes/hgx-04/uncordon", cluster="default") == 409
        waiting = (await web.client.get("/nodes/hgx-04")).text
        (claimed,) = (await post(web, "/uncordons/claim", {})).json()
        result = {"state": "refused", "result": "hgx-04 was not cordoned by diagnoser, but for 'fan'"}
        assert (await post(web, f"/uncordons/{claimed['id']}/result", result)).status_code == 204
        refused = (await web.client.get("/nodes/hgx-04")).text
        listed = (await web.client.get("/api/v1/nodes/hgx-04/uncordons")).json()
    assert "<b>waits for the agent</b>" in waiting and "Give it back" not in waiting and "GPU replaced" in waiting
    assert (claimed["node"], claimed["by"], claimed["comment"]) == ("hgx-04", "anonymous", "GPU replaced")
    assert "<b>refused</b>: hgx-04 was not cordoned by diagnoser" in refused and "Give it back" in refused
    assert [one["state"] for one in listed] == ["refused"]


async def taken_out(web: Web, times: Sequence[float], verdicts: Sequence[Diagnosis]) -> None:
    """By one plan each, of a failure of its own."""
    for number, (at, cause) in enumerate(zip(times, verdicts, strict=True)):
        record = await save(web.store, f"job-{number}", cause, created=at, plan=True)
        assert record.plan
        result = TransitionResult(replace(record.plan, diagnosis=record.id))
        await web.store.plans.change(record.plan.id, lambda plan, result=result: result)  # type: ignore[misc]
        why = f"plan plan-job-{number}-1 by slurm-1"
        await web.store.nodes.add_event(
            NodeEvent("default", "hgx-04", NodeEventKind.CORDONED, NodeActor.DIAGNOSER, at, why)
        )


DAY = 86_400.0
LOST = verdict(FailureType.GPU_LOST)


@pytest.mark.parametrize(
    ("days_ago", "verdicts", "back", "why"),
    [
        pytest.param((20, 1), (ECC, ECC), None, "taken out twice within 19 d for ecc error", id="one cause"),
        pytest.param((20, 1), (ECC, LOST), None, "", id="another cause"),
        pytest.param((35, 1), (ECC, ECC), None, "", id="long ago"),
        pytest.param((20, 1), (ECC, LOST), 1.5, "taken out again 12 h after it came back", id="on probation"),
        pytest.param((20, 1), (ECC, LOST), 2.5, "", id="after probation"),
    ],
)
async def test_a_repair_that_did_not_help_takes_a_person(
    tmp_path: Path, days_ago: tuple[float, ...], verdicts: tuple[Diagnosis, ...], back: float | None, why: str
) -> None:
    """On the node's page, who says what was repaired: a script does not, with a comment either."""
    async with serving(tmp_path) as web:
        await taken_out(web, [NOW - DAY * ago for ago in days_ago], verdicts)
        if back:
            came_back = NodeEvent(
                "default", "hgx-04", NodeEventKind.UNCORDONED, NodeActor.DIAGNOSER, NOW - DAY * back, "checked"
            )
            await web.store.nodes.add_event(came_back)
        asked = await post(web, "/nodes/hgx-04/uncordon", {"comment": "new GPU"})
        if not why:
            assert asked.status_code == 200, asked.text
            return
        assert asked.status_code == 409 and why in asked.json()["detail"], asked.text
        assert await press(web, "/nodes/hgx-04/uncordon", cluster="default", comment=" ") == 409
        assert (await post(web, "/uncordons/claim", {})).json() == []
        assert await press(web, "/nodes/hgx-04/uncordon", cluster="default", comment="new GPU") == 303
        (claimed,) = (await post(web, "/uncordons/claim", {})).json()
    assert (claimed["comment"], claimed["taken_out"]) == ("new GPU", NOW - DAY * days_ago[-1])


async def test_what_a_person_took_out_is_not_asked_back(tmp_path: Path) -> None:
    """Nor what is in service."""
    async with serving(tmp_path) as web:
        await happens(web, "n1", NodeEventKind.CORDONED, NOW - 10, "fan")
        assert "Give it back" not in (await web.client.get("/nodes/n1")).text
        told = await post(web, "/nodes/n1/uncordon", {})
        assert (told.status_code, told.json()["detail"]) == (409, "a person took n1 out of service, and gives it back")
        assert (await post(web, "/nodes/n2/uncordon", {})).status_code == 409


async def test_a_node_is_for_those_who_may_decide_about_it(tmp_path: Path) -> None:
    """A credential of another cluster, or of one tenant of it, neither asks it back nor notes anything."""
    async with serving(tmp_path) as web:
        await out_by_plan(web)
        for number, bound in enumerate(BOUND):
            await web.store.tokens.add(StoredToken(bound, hash_of(SECRET + str(number))))
        for number in range(len(BOUND)):
            web.client.headers["authorization"] = f"Bearer {SECRET}{number}"
            assert (await post(web, "/nodes/hgx-04/uncordon", {"cluster": "default"})).status_code == 403
            assert (await post(web, "/nodes/hgx-04/notes", {"cluster": "default", "text": "hm"})).status_code == 403


async def test_a_request_that_no_agent_takes_up_is_told(tmp_path: Path) -> None:
    """With what to do on the cluster, and the button again."""
    clock = Clock()
    async with serving(tmp_path, clock=clock) as web:
        await out_by_plan(web)
        await press(web, "/nodes/hgx-04/uncordon", cluster="default")
        clock.now += OPEN_SECONDS + 1
        page = (await web.client.get("/nodes/hgx-04")).text
        assert (await post(web, "/uncordons/claim", {})).json() == []
    assert "<b>no agent took it up</b>" in page and "slurm-resume hgx-04" in page and "Give it back" in page


async def test_jobs_that_run_and_ran_on_a_node(tmp_path: Path) -> None:
    """By the nodes that the scheduler gave them."""
    async with serving(tmp_path) as web:
        await web.store.jobs.register(Job("llm-7b", nodes=("hgx-04",), created=NOW - 9_000), 1)
        await save(web.store, "llm-7b", ECC)
        await web.store.jobs.register(Job("sft", nodes=("hgx-04", "hgx-05"), created=NOW - 60, tenant="ida"), 1)
        page = (await web.client.get("/nodes/hgx-04")).text
    now, before = page.index("Jobs there now"), page.index("Jobs there before")
    assert now < page.index('href="/jobs/sft"') < before < page.index('href="/jobs/llm-7b"', before)
    assert "on 2 nodes, ida," in page


def checked(bad: str, count: int = 4) -> NodeCheck:
    """A check of both rounds, in which every group with one node fails."""
    check = node_check.begin([f"n{number}" for number in range(1, count + 1)])
    while not check.verdict:
        results = [PairResult(group, bad not in group, 1.5, "NCCL timeout") for group in node_check.todo(check)]
        check = node_check.record(check, check.round, results)
    return check


def test_the_pairs_of_a_check_are_a_matrix() -> None:
    """Of both rounds, with the last test of two nodes; the node that is looked at comes first."""
    matrix = pair_matrix(checked("n2"), "n4")
    assert matrix is not None
    assert (matrix.nodes[0], matrix.left_out) == ("n4", 0)
    first, number = matrix.cells["n2", "n4"]
    assert (number, first.ok) == (1, False)
    second, number = matrix.cells["n2", "n1"]
    assert (number, second.ok, second.detail) == (2, False, "NCCL timeout")
    passed, _ = matrix.cells["n3", "n1"]
    assert passed.ok and passed.detail == ""
    assert ("n3", "n2") not in matrix.cells


def test_a_matrix_of_many_nodes_shows_those_that_matter() -> None:
    """Those that failed, and whom the node was tested with; one without pairs is none."""
    matrix = pair_matrix(checked("n7", 40), "n9")
    assert matrix is not None
    assert matrix.nodes[0] == "n9" and "n7" in matrix.nodes[:5]
    assert (len(matrix.nodes), matrix.left_out) == (NODES_SHOWN, 40 - NODES_SHOWN)
    assert pair_matrix(node_check.begin(["n1", "n2"]), "n1") is None


async def test_the_page_shows_the_matrix(tmp_path: Path) -> None:
    """Of the checks of plans for failures that name the node."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "llm-7b", ECC, plan=True)
        assert record.plan is not None
        kept = replace(record.plan, check=checked("n2"), cluster="default")
        async with web.store.db.writing() as connection:
            await put_plan(connection, kept)
        page = (await web.client.get("/nodes/hgx-04?cluster=default")).text
    assert '<td class="failed" title="n2 with n4, round 1: failed in 1.5 s: NCCL timeout">' in page
    assert "4 nodes tested in 2 rounds, 1 faulty" in page

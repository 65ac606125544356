"""The pages of nodes."""

from pathlib import Path

from diagnoser.model import NodeActor, NodeEvent, NodeEventKind
from tests.serving import ECC, NOW, Web, save, serving


async def happens(
    web: Web, node: str, kind: NodeEventKind, at: float, reason: str = "", cluster: str = "default"
) -> None:
    await web.store.note_node(NodeEvent(cluster, node, kind, NodeActor.PERSON, at, reason))


async def test_nodes_that_are_out_of_service_come_first(tmp_path: Path) -> None:
    """With the reason, who, and since when; whatever happened to the others later."""
    async with serving(tmp_path) as web:
        await happens(web, "gpu-2", NodeEventKind.RESUMED, NOW - 60)
        await happens(web, "gpu-1", NodeEventKind.CORDONED, NOW - 3_600, "bad <b>fan</b>")
        page = (await web.client.get("/nodes")).text
    assert "1 node is out of service" in page
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
        assert "Nothing happened to a node yet" in (await web.client.get("/nodes")).text

"""Lists that people sort: the links in their heads, the pages of a sorted list, and the same at the API."""

import re
from html import unescape
from pathlib import Path

import pytest

from diagnoser.model import NodeEventKind
from diagnoser.web.pages import fleet
from tests.serving import NOW, Web, fill, serving
from tests.unit.test_web_nodes import happens

FIRST = {
    "/diagnoses": ("time", "type", "category", "job", "confidence", "decided_by"),
    "/": ("last_seen", "category", "failures", "first_seen"),
    "/jobs": ("time", "job"),
    "/nodes": ("node", "cluster", "state", "time", "failures", "jobs", "checked"),
}


def heads(page: str) -> dict[str, str]:
    """Text of each column that has a link -> its first address."""
    table = page[page.index("<thead") : page.index("</thead>")]
    found = re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', table)
    return {label: unescape(url) for url, label in reversed(found)}


async def filled(web: Web) -> None:
    await fill(web.store)
    for number, kind in enumerate((NodeEventKind.DOWN, NodeEventKind.RESUMED, NodeEventKind.CORDONED)):
        await happens(web, f"n{number}", kind, NOW - 60 * number)


@pytest.mark.parametrize("path", FIRST)
async def test_the_head_of_a_list_sorts_it(tmp_path: Path, path: str) -> None:
    """Each link works, says which column orders the list and how, and turns round when it is pressed again."""
    async with serving(tmp_path) as web:
        await filled(web)
        links = heads((await web.client.get(path)).text)
        assert len(links) == len(FIRST[path])
        for label, url in links.items():
            page = (await web.client.get(url)).text
            assert page.count("aria-sort=") == 1
            direction = re.search(r'aria-sort="(\w+)"', page)
            again = (await web.client.get(heads(page)[label])).text
            turned = re.search(r'aria-sort="(\w+)"', again)
            assert direction and turned
            assert {direction.group(1), turned.group(1)} == {"ascending", "descending"}


@pytest.mark.parametrize(
    ("path", "sort"),
    [("diagnoses", "type"), ("diagnoses", "-job"), ("incidents", "-failures"), ("jobs", "job"), ("jobs", "time")],
)
async def test_the_pages_of_a_sorted_list_go_on_where_the_last_one_ended(tmp_path: Path, path: str, sort: str) -> None:
    """With the same order, until all are shown once."""
    async with serving(tmp_path) as web:
        await filled(web)
        whole = (await web.client.get(f"/api/v1/{path}", params={"sort": sort})).json()["items"]
        paged, cursor = [], ""
        while cursor is not None:
            page = (await web.client.get(f"/api/v1/{path}", params={"sort": sort, "limit": 2, "cursor": cursor})).json()
            paged += page["items"]
            cursor = page["next"]
    assert len(whole) > 2
    assert paged == whole


@pytest.mark.parametrize("path", ["diagnoses", "incidents", "jobs", "nodes"])
async def test_an_order_that_a_list_does_not_have_is_refused(tmp_path: Path, path: str) -> None:
    """As JSON and as page; so is another order than that of time for what is searched for by words."""
    async with serving(tmp_path) as web:
        page = "/" if path == "incidents" else f"/{path}"
        for sort in ("body", "--time", "time;drop", "-"):
            assert (await web.client.get(f"/api/v1/{path}", params={"sort": sort})).status_code == 400, sort
            assert (await web.client.get(page, params={"sort": sort})).status_code == 400, sort
        assert (await web.client.get("/api/v1/diagnoses?q=cuda&sort=type")).status_code == 400
        assert "aria-sort" not in (await web.client.get("/diagnoses?q=cuda&sort=type")).text


async def test_filters_views_and_downloads_keep_the_order(tmp_path: Path) -> None:
    """The form, the facets, the next page, what is saved and what is downloaded."""
    async with serving(tmp_path) as web:
        await filled(web)
        page = (await web.client.get("/diagnoses?outcome=failed&sort=-type")).text
        exported = (await web.client.get("/api/v1/exports/diagnoses.json?sort=type")).json()["items"]
    assert '<input type="hidden" name="sort" value="-type">' in page
    assert "/api/v1/exports/diagnoses.csv?outcome=failed&amp;sort=-type" in page
    assert 'name="query" value="outcome=failed&amp;sort=-type"' in page
    assert re.search(r'href="/diagnoses\?outcome=failed&amp;sort=-type&amp;category=', page)
    types = [item["type"] for item in exported]
    assert types == sorted(types)


@pytest.mark.parametrize(("path", "others"), [("/?node=n1&sort=-failures", 5), ("/jobs?sort=job", 5)])
async def test_the_tabs_of_a_list_keep_the_order(tmp_path: Path, path: str, others: int) -> None:
    """And the other filters; only the state is another."""
    async with serving(tmp_path) as web:
        page = (await web.client.get(path)).text
    tabs = page[page.index('<nav class="tabs"') : page.index("</nav>", page.index('<nav class="tabs"'))]
    links = [unescape(url) for url in re.findall(r'href="([^"]*)"', tabs)]
    assert len(links) == others
    asked = set(path.partition("?")[2].split("&"))
    for link in links:
        parts = link.partition("?")[2].split("&")
        assert asked == {part for part in parts if not part.startswith(("state=", "muted="))}


async def test_the_list_of_nodes_is_shown_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that is asked for, each node once."""
    monkeypatch.setattr(fleet, "SHOWN", 2)
    async with serving(tmp_path) as web:
        for number in range(5):
            await happens(web, f"n{number}", NodeEventKind.DOWN, NOW - number)
        url, seen = "/nodes?sort=-node", []
        while url:
            page = (await web.client.get(url)).text
            seen += re.findall(r'<a class="type" href="/nodes/(n\d)', page)
            following = re.search(r'<a href="([^"]*)" rel="next"', page)
            url = unescape(following.group(1)) if following else ""
        assert (await web.client.get("/nodes?cursor=[[[[")).status_code == 400
    assert seen == ["n4", "n3", "n2", "n1", "n0"]

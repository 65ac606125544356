"""Saved views of lists, several rows at once, and downloads."""

import csv
import io
import json
from pathlib import Path

import pytest

from diagnoser.model import RootCause
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import UNRESOLVED, IncidentFilter
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.views import ListName
from diagnoser.web.api import exports
from diagnoser.web.api.exports import csv_cell
from diagnoser.web.api.views import checked_query
from tests.serving import ECC, NOW, OOM, Web, fill, save, serving, verdict
from tests.unit.test_web_incidents import FORM, bearer, let_in


async def press(web: Web, path: str, body: str, **headers: str) -> tuple[int, str]:
    """Status, and where the browser is sent."""
    answer = await web.client.post(path, content=body, headers=FORM | headers)
    return answer.status_code, answer.headers.get("location", "")


async def test_a_view_is_saved_shown_and_deleted_on_its_page(tmp_path: Path) -> None:
    """The filters get a name, everybody sees it, and whoever opens it can delete it."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = (await web.client.get("/diagnoses?type=ecc_error&within=7d&cursor=")).text
        assert 'name="query" value="type=ecc_error&amp;within=7d"' in page
        saved = await press(web, "/views", "list=diagnoses&query=type%3Decc_error%26within%3D7d&name=ECC+this+week")
        assert saved == (303, "/diagnoses?type=ecc_error&within=7d")
        shown = (await web.client.get(saved[1])).text
        assert 'aria-current="true" title="saved by anonymous">ECC this week</a>' in shown
        assert "Delete this view" in shown and "Save this view" not in shown
        assert ">ECC this week</a>" in (await web.client.get("/diagnoses")).text
        gone = await press(web, "/views", "list=diagnoses&name=ECC+this+week&decision=delete")
        assert gone == (303, "/diagnoses")
        assert "ECC this week" not in (await web.client.get("/diagnoses")).text


async def test_a_program_saves_lists_and_deletes_views(tmp_path: Path) -> None:
    """The same over the API; a name that is not there is told."""
    async with serving(tmp_path) as web:
        body = {"list": "incidents", "name": "Ours", "query": "?assignee=ida&state=open&cursor=5:a"}
        made = (await web.client.post("/api/v1/views", json=body)).json()
        assert (made["query"], made["url"]) == ("assignee=ida&state=open", "/?assignee=ida&state=open")
        assert (await web.client.get("/api/v1/views?list=incidents")).json()["items"] == [made]
        assert (await web.client.get("/api/v1/views?list=jobs")).json()["items"] == []
        assert (await web.client.delete("/api/v1/views?list=incidents&name=Ours")).status_code == 204
        assert (await web.client.delete("/api/v1/views?list=incidents&name=Ours")).status_code == 404


@pytest.mark.parametrize(
    ("listed", "query"),
    [
        (ListName.DIAGNOSES, "type=no_such_type"),
        (ListName.DIAGNOSES, "within=forever"),
        (ListName.INCIDENTS, "within=7d"),
        (ListName.DIAGNOSES, "next=//evil.example"),
        (ListName.JOBS, "category=script"),
        (ListName.JOBS, ""),
        (ListName.JOBS, "cursor=5"),
        (ListName.JOBS, "&".join(["state=ended"] * 50)),
    ],
)
def test_what_is_no_filter_makes_no_view(listed: ListName, query: str) -> None:
    """Neither unknown names nor values, nor none at all."""
    with pytest.raises(BadInput, match="query"):
        checked_query(listed, query)


async def test_several_incidents_are_dealt_with_at_once(tmp_path: Path) -> None:
    """Those that are selected and no others, under the login of who pressed; then the list is shown as it was."""
    async with serving(tmp_path) as web:
        await let_in(web)
        await save(web.store, "a", ECC, created=NOW - 50)
        await save(web.store, "b", OOM, created=NOW - 40)
        await save(web.store, "c", verdict(FailureType.IMPORT_ERROR), created=NOW - 30)
        found = await web.store.incidents.page(UNRESOLVED, "", 9)
        body = "&".join(f"incident={incident.id}" for incident in found[:2])
        page = (await web.client.get("/", headers=bearer("ida"))).text
        assert page.count('form="bulk"') == 3
        assert 'form="bulk"' not in (await web.client.get("/", headers=bearer("eye"))).text
        done = await press(web, "/incidents/decide", f"{body}&decision=resolve&query=state%3Dopen", **bearer("ida"))
        assert done == (303, "/?state=open")
        left = await web.store.incidents.page(UNRESOLVED, "", 9)
        assert left == found[2:]
        (first, *_) = await web.store.incidents.page(IncidentFilter(), "", 1)
        assert first.history[-1].by == "ida"
        assert (await press(web, "/incidents/decide", f"{body}&decision=burn", **bearer("ida")))[0] == 400
        assert (await press(web, "/incidents/decide", f"{body}&decision=resolve", **bearer("eye")))[0] == 403


async def test_several_diagnoses_are_confirmed_at_once_or_none(tmp_path: Path) -> None:
    """Where one belongs to another cluster, nothing is confirmed."""
    async with serving(tmp_path) as web:
        await let_in(web)
        records = await fill(web.store)
        body = f"diagnosis={records['oom'].id}&diagnosis={records['script'].id}&query=within%3D7d"
        assert (await press(web, "/diagnoses/confirm", body, **bearer("west")))[0] == 404
        assert await web.store.feedback.confirmed(9) == []
        assert await press(web, "/diagnoses/confirm", body, **bearer("ida")) == (303, "/diagnoses?within=7d")
        assert set(await web.store.feedback.confirmed(9)) == {records["oom"].id, records["script"].id}


async def test_a_download_has_what_the_list_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in the same order, page after page, as CSV and as JSON."""
    monkeypatch.setattr(exports, "_PAGE", 2)
    async with serving(tmp_path) as web:
        await fill(web.store)
        for listed, total in (("diagnoses", 5), ("incidents", 4), ("jobs", 5)):
            items = (await web.client.get(f"/api/v1/{listed}")).json()["items"]
            answer = await web.client.get(f"/api/v1/exports/{listed}.json")
            assert answer.json() == {"items": items, "next": None}
            answer = await web.client.get(f"/api/v1/exports/{listed}.csv")
            assert answer.headers["content-disposition"] == f'attachment; filename="{listed}.csv"'
            rows = list(csv.DictReader(io.StringIO(answer.text)))
            assert [row["url"] for row in rows] == [item["url"] for item in items]
            assert len(rows) == total
        cut = json.loads((await web.client.get("/api/v1/exports/diagnoses.json?limit=3")).text)
        assert len(cut["items"]) == 3 and cut["next"] == cut["items"][-1]["id"]
        ecc = (await web.client.get("/api/v1/exports/diagnoses.csv?type=ecc_error")).text
        assert len(ecc.splitlines()) == 2 and "hgx-04" in ecc
        assert (await web.client.get("/api/v1/exports/jobs.json?state=silent")).json() == {"items": [], "next": None}
        for wrong in ("diagnoses.xls", "diagnoses.csv?limit=10001", "jobs.csv?cursor=x", "incidents.csv?cursor=x"):
            assert (await web.client.get(f"/api/v1/exports/{wrong}")).status_code == 400


async def test_the_page_offers_the_download_of_what_it_shows(tmp_path: Path) -> None:
    """With its filters, the age as a time."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = (await web.client.get("/diagnoses?type=ecc_error&within=24h")).text
        link = page[page.index("/api/v1/exports/diagnoses.csv") :].split('"')[0].replace("&amp;", "&")
        assert "type=ecc_error" in link and "since=" in link
        assert len((await web.client.get(link)).text.splitlines()) == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\r\n=1", "\uff1d1"])
def test_a_text_is_no_formula(text: str) -> None:
    """A job's name or a log line must not run in somebody's spreadsheet."""
    assert csv_cell(text) == f"'{text}"


async def test_a_hostile_line_is_one_cell(tmp_path: Path) -> None:
    """Quotes, separators and line breaks of a log do not make rows."""
    root = RootCause(1, '=cmd|" /C calc"!A0,"x"\n;y', rank=-1)
    async with serving(tmp_path) as web:
        await save(web.store, "evil", verdict(FailureType.VALUE_ERROR, root_cause=root))
        text = (await web.client.get("/api/v1/exports/diagnoses.csv")).text
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["line"] == "'" + root.text
    assert (csv_cell(None), csv_cell(-3), csv_cell(True)) == ("", -3, "True")

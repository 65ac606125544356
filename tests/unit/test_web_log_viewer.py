"""The page and the route of an attempt's log: windows, filters, links that stay, and lines that come meanwhile."""

import asyncio
import re
from html import unescape
from pathlib import Path

import pytest

from diagnoser.diagnosis import log_indexes
from diagnoser.logview.log_columns import line_id, stream_key
from diagnoser.model import AttemptKey, LineBlock, RootCause, Stream
from diagnoser.model.access import ANONYMOUS
from diagnoser.web.api import attempt_log, sse
from diagnoser.web.pages.log_viewer import CHIPS
from tests.serving import HOSTILE, NOW, Web, save, serving, store_log, verdict

KEY = AttemptKey("llm-7b", 1)
PAGE, API = "/jobs/llm-7b/attempts/1/log", "/api/v1/jobs/llm-7b/attempts/1/log"
STDOUT = Stream("stdout", "gpu-1", 3)


def block(*lines: str, stream: Stream = STDOUT) -> LineBlock:
    return LineBlock(stream, "".join(line + "\n" for line in lines).encode(), received=NOW - 100)


def steps(count: int, start: int = 0) -> list[str]:
    return [f"2026-09-21 14:00:{step % 60:02d} step {step} went well" for step in range(start, start + count)]


async def fill(web: Web) -> str:
    """Two ranks, one of which raises, and the diagnosis that says so; its id."""
    other = Stream("stderr", "gpu-2", 4)
    await store_log(web.store, KEY, block(*steps(300)), block(*steps(20), "ValueError: seam", HOSTILE, stream=other))
    cause = RootCause(21, "ValueError: seam", 4, "gpu-2", source="stderr")
    return (await save(web.store, KEY.job, verdict(root_cause=cause))).id


def row_ids(page: str) -> list[str]:
    return re.findall(r'<li id="L([^"]+)"', page)


def link(page: str, text: str) -> str:
    """Address of the link whose text begins so."""
    found = re.search(rf'href="([^"]+)"[^>]*>{re.escape(text)}', page)
    assert found, text
    return unescape(found.group(1))


async def test_the_page_leads_through_the_whole_log(tmp_path: Path) -> None:
    """From the first rows on with "later rows" to the last; each row once, with its number, rank, node and source."""
    async with serving(tmp_path) as web:
        await fill(web)
        page = (await web.client.get(PAGE)).text
        rows = row_ids(page)
        assert "Rows 1\u2013" in page and "Earlier rows" not in page
        while "Later rows" in page:
            page = (await web.client.get(link(page, "Later rows"))).text
            rows += row_ids(page)
        total = (await web.client.get(API, params={"limit": 1})).json()["total"]
    assert len(set(rows)) == len(rows) == total
    for shown in ("rank 3", 'title="gpu-1"', 'title="stdout"', ">14:00:59<"):
        assert shown in page


async def test_hostile_lines_stay_text(tmp_path: Path) -> None:
    """Markup, control characters and text direction of a line are shown, in a match as well."""
    async with serving(tmp_path) as web:
        await fill(web)
        for query in ("", "?q=script", "?at=end"):
            page = (await web.client.get(PAGE + query)).text
            assert "<script>fetch" not in page and "<img src=x" not in page
            assert "\u202e" not in page
        found = (await web.client.get(f"{PAGE}?q=<script>")).text
    assert "<mark>&lt;script&gt;</mark>fetch" in found
    assert 'value="&lt;script&gt;"' in found


async def test_the_root_is_marked_and_one_click_away(tmp_path: Path) -> None:
    """The cited line of the verdict has its role, and the page has a link to it wherever one is."""
    async with serving(tmp_path) as web:
        record = await fill(web)
        address = link((await web.client.get(PAGE)).text, "Root cause")
        page = (await web.client.get(address)).text
    root = line_id(Stream("stderr", "gpu-2", 4), 21)
    assert address.endswith(f"#L{root}")
    assert f'<li id="L{root}" class="error root" data-line="21" data-node="gpu-2" aria-current="true">' in page
    said = f"root_line=21&amp;stream={stream_key(Stream('stderr', 'gpu-2', 4))}&amp;node=gpu-2"
    assert f'href="/diagnoses/{record}?{said}#feedback">This is the root cause<' in page
    assert page.count("This is the root cause") == 1


async def test_a_link_to_a_line_outlives_new_lines(tmp_path: Path) -> None:
    """The address of a row shows the same row when the log has grown; where it is only counted by now, that is said."""
    root, last = line_id(Stream("stderr", "gpu-2", 4), 21), line_id(STDOUT, 300)
    async with serving(tmp_path) as web:
        await fill(web)
        before = {line: (await web.client.get(f"{PAGE}?at={line}")).text for line in (root, last)}
        await store_log(web.store, KEY, block(*steps(1000, 300)))
        after = {line: (await web.client.get(f"{PAGE}?at={line}")).text for line in (root, last)}
        elsewhere = (await web.client.get(f"{PAGE}?at={line_id(Stream('dmesg'), 7)}")).text
    for page in (before[root], before[last], after[root]):
        assert "nearest row" not in page and page.count('aria-current="true"') == 1
    assert f'id="L{last}"' in before[last]
    assert "nearest row before it" in after[last] and f'id="L{last}"' not in after[last]
    assert "not in this log" in elsewhere


async def test_chips_narrow_the_log_and_lead_back(tmp_path: Path) -> None:
    """Each chip adds its value to the filter; a chosen one drops it; the search form keeps what is chosen."""
    async with serving(tmp_path) as web:
        await fill(web)
        page = (await web.client.get(PAGE)).text
        errors = (await web.client.get(link(page, "error <"))).text
        of_rank = (await web.client.get(f"{PAGE}?ranks=4&level=error")).text
        none = (await web.client.get(f"{PAGE}?ranks=9")).text
        back = (await web.client.get(link(errors, "error <"))).text
    assert len(row_ids(errors)) < 5 < len(row_ids(page))
    assert '<input type="hidden" name="level" value="error">' in errors
    assert "seam" in of_rank and row_ids(of_rank) == [line_id(Stream("stderr", "gpu-2", 4), 21)]
    assert 'name="ranks" value="4"' in of_rank
    assert row_ids(none) == [] and "No row that is kept fits" in none
    assert row_ids(back) == row_ids(page)


async def test_many_ranks_do_not_fill_the_page(tmp_path: Path) -> None:
    """The most frequent ranks and the chosen one have chips, the others are counted; a range can be typed."""
    async with serving(tmp_path) as web:
        ranks = [block("begin", stream=Stream("stdout", "n", rank)) for rank in range(40)]
        await store_log(web.store, KEY, *ranks)
        await save(web.store, KEY.job, verdict())
        page = (await web.client.get(PAGE)).text
        some = (await web.client.get(f"{PAGE}?ranks=30-39")).text
    assert page.count('class="pick "') == CHIPS and "and 28 more" in page
    assert len(row_ids(some)) == 10 and some.count('aria-current="true"') == 10
    assert 'ranks=30-38"' in some


@pytest.mark.parametrize(
    ("query", "told"),
    [("q=(open&regex=1", "not an RE2 expression"), ("ranks=all", "no rank or range"), ("at=there", "names no line")],
)
async def test_what_cannot_be_searched_for_is_told_beside_the_log(tmp_path: Path, query: str, told: str) -> None:
    """The page says what is wrong, keeps what was typed, and still shows the log; the API answers with a problem."""
    async with serving(tmp_path) as web:
        await fill(web)
        page = await web.client.get(f"{PAGE}?{query}")
        answer = await web.client.get(f"{API}?{query}")
    assert (page.status_code, answer.status_code) == (400, 400)
    assert told in unescape(page.text) and told in answer.json()["detail"]
    assert row_ids(page.text)
    if query.startswith("q="):
        assert 'value="(open"' in page.text


async def test_the_route_answers_with_rows_and_cursors(tmp_path: Path) -> None:
    """A program reads the whole log with ``next``; rows say where they are from and which templates they begin."""
    async with serving(tmp_path) as web:
        await fill(web)
        rows, after = [], ""
        while True:
            page = (await web.client.get(API, params={"limit": 50, "after": after})).json()
            rows += page["rows"]
            after = page["next"]
            if not after:
                break
        filtered = (await web.client.get(API, params={"node": "gpu-2", "level": ["error"], "q": "seam"})).json()
        both = await web.client.get(API, params={"at": "end", "after": rows[0]["id"]})
        unknown = await web.client.get("/api/v1/jobs/llm-7b/attempts/7/log")
    assert page["lines"] == 322
    assert len({row["id"] for row in rows}) == len(rows) == page["total"]
    assert {(row["source"], row["node"], row["rank"]) for row in rows} == {
        ("stdout", "gpu-1", 3),
        ("stderr", "gpu-2", 4),
    }
    assert max(row["template"]["count"] for row in rows if row["template"]) == 320
    assert [row["text"] for row in filtered["rows"]] == ["ValueError: seam"]
    assert filtered["rows"][0]["hits"] == [[12, 16]]
    assert (both.status_code, unknown.status_code) == (400, 404)


async def test_an_attempt_without_a_line_has_a_page(tmp_path: Path) -> None:
    """A job that was only registered, or ended without a word, is no error."""
    async with serving(tmp_path) as web:
        await save(web.store, "mute", verdict())
        page = await web.client.get("/jobs/mute/attempts/1/log")
        missing = await web.client.get("/jobs/nobody/attempts/1/log")
        unfollowed = await web.client.get("/api/v1/jobs/nobody/attempts/1/log/live")
    assert page.status_code == 200 and "No line of this attempt has come" in page.text
    assert (missing.status_code, unfollowed.status_code) == (404, 404)


async def test_readers_that_follow_are_told_of_new_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event for what has come, with the revision; none before; the rows behind the last one are the new lines."""
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(log_indexes, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(log_indexes, "STALE_FACTOR", 0.0)
    async with serving(tmp_path) as web:
        await fill(web)
        last = (await web.client.get(API, params={"at": "end"})).json()["rows"][-1]["id"]
        scope = web.services.scopes.whole
        stream = attempt_log.live(KEY, scope.core, scope.logs, web.services.people, ANONYMOUS)
        assert (await anext(stream)).comment == "listening"
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await store_log(web.store, KEY, block("2026-09-21 14:09:00 a new line"))
        event = await waiting
        fresh = (await web.client.get(API, params={"after": last})).json()
        web.services.core.stopping.set()
        rest = [one async for one in stream]
    assert (event.event, event.data.revision, rest) == ("log", fresh["revision"], [])
    assert [row["text"] for row in fresh["rows"]] == ["2026-09-21 14:09:00 a new line"]

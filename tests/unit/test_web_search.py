"""The search over everything: its route and its page."""

from pathlib import Path

from diagnoser.model import Job
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.web.api.search import excerpt
from tests import accuracy_bars
from tests.serving import HOSTILE, fill, serving

SECRET = "dgn_" + "x" * 43


async def groups(web_client: object, q: str) -> dict[str, list[dict[str, str]]]:
    answer = await web_client.get("/api/v1/search", params={"q": q})  # type: ignore[attr-defined]
    assert answer.status_code == 200, answer.text
    return {group["kind"]: group["hits"] for group in answer.json()["groups"]}


async def test_each_kind_is_found_and_leads_to_its_page(tmp_path: Path) -> None:
    """A node, its incident and the lines that name its fault; a job by a part of its id; a shipped rule by its
    title."""
    rules = accuracy_bars.load().knowledge.engine.ruleset.rules
    async with serving(tmp_path, shipped_rules=lambda: rules) as web:
        records = await fill(web.store)
        found = await groups(web.client, "hgx-04")
        assert [hit["title"] for hit in found["node"]] == ["hgx-04"]
        assert [hit["title"] for hit in found["incident"]] == ["hgx-04: ECC error"]
        found = await groups(web.client, "Xid contained")
        (line,) = found["line"]
        assert line["url"] == f"/diagnoses/{records['ecc'].id}"
        assert "Contained ECC error" in line["detail"]
        assert [hit["title"] for hit in (await groups(web.client, "70b"))["job"]] == ["llm-70b-pretrain"]
        by_title = (await groups(web.client, rules[0].title))["rule"]
        assert rules[0].id in [hit["title"] for hit in by_title]
        assert {hit["url"] for hit in by_title if hit["title"] == rules[0].id} == {
            f"/rules/workbench?rule={rules[0].id}"
        }
        for hits in (*found.values(), by_title):
            for hit in hits:
                assert (await web.client.get(hit["url"])).status_code == 200


async def test_a_rule_leads_to_a_page_that_its_reader_may_open(tmp_path: Path) -> None:
    """The workbench is for those who see all; for a token of one cluster a shipped rule leads to what it decided."""
    rules = accuracy_bars.load().knowledge.engine.ruleset.rules
    bound = Credential("of-west", Scope.READ, cluster="west")
    async with serving(tmp_path, shipped_rules=lambda: rules) as web:
        await web.store.tokens.add(StoredToken(bound, hash_of(SECRET)))
        web.client.headers["authorization"] = f"Bearer {SECRET}"
        found = (await groups(web.client, rules[0].id))["rule"]
        assert f"/diagnoses?decided_by=rule%3A{rules[0].id}" in [hit["url"] for hit in found]
        for hit in found:
            assert (await web.client.get(hit["url"])).status_code == 200


async def test_a_search_is_bounded_and_says_where_the_rest_is(tmp_path: Path) -> None:
    """So many of each kind; the list of diagnoses has all lines."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        await web.store.jobs.register(Job("wide", nodes=tuple(f"hgx-{number:03d}" for number in range(200))))
        found = (await web.client.get("/api/v1/search?q=hgx&limit=2")).json()["groups"]
        assert [(group["kind"], len(group["hits"])) for group in found] == [("node", 2), ("incident", 1)]
        lines = (await web.client.get("/api/v1/search?q=error&limit=1")).json()["groups"]
        (line,) = (group for group in lines if group["kind"] == "line")
        assert line["more"] == "/diagnoses?q=error"
        assert (await web.client.get("/api/v1/search?q=x&limit=21")).status_code == 400


async def test_a_search_of_anything_is_answered(tmp_path: Path) -> None:
    """Blanks, signs, wildcards and quotes find nothing or something, and break nothing."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        for q in ("", "  ", "%", "_", "'", '"', "*", "\\", "--", "a", "\U0001f525", "x" * 200, "(", "NOT", "hgx-*"):
            answer = await web.client.get("/api/v1/search", params={"q": q})
            assert answer.status_code == 200, q
            assert (await web.client.get("/search", params={"q": q})).status_code == 200


async def test_the_page_needs_no_script_and_shows_hostile_text_as_text(tmp_path: Path) -> None:
    """The form is a plain one; lines and what was asked for are escaped, and control characters written out."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = (await web.client.get("/search", params={"q": "evil example <b>"})).text
        assert "<b>" not in page.replace("<b></b>", "")
        page = (await web.client.get("/search", params={"q": "evil example"})).text
        assert 'action="/search"' in page
        assert "<script>fetch" not in page and "\x1b" not in page
        assert "&lt;script&gt;fetch" in page
        assert (await groups(web.client, "evil"))["line"][0]["detail"] != HOSTILE
        assert "Nothing found" in (await web.client.get("/search?q=zzyzx")).text


def test_an_excerpt_shows_the_first_match() -> None:
    """A short line is whole; of a long one the part around the match is shown."""
    assert excerpt("a short line", ["line"]) == "a short line"
    long = excerpt("x" * 1000 + " needle " + "y" * 1000, ["needle"])
    assert long.startswith("\u2026") and "needle" in long and len(long) < 210

"""The pages of those who run the service: alerts, people, tokens, settings."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from diagnoser.adapters.sql.outbox import OutboxRepository
from diagnoser.config.settings import Settings
from diagnoser.config.shown_settings import HIDDEN, shown_settings
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.people import Role, User
from diagnoser.model.shown_settings import Origin
from tests.serving import NOW, Web, fill, serving

FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


async def press(web: Web, path: str, body: str) -> httpx.Response:
    return await web.client.post(path, content=body, headers=FORM)


async def test_a_new_tokens_secret_is_shown_once(tmp_path: Path) -> None:
    """On the answer to the press; the list has its name, scope and last use, and never the secret or its hash."""
    async with serving(tmp_path) as web:
        made = await press(web, "/tokens", "name=shipper-1&scope=ingest&cluster=east&expires=90d")
        secret = made.text.split('<pre id="secret">')[1].split("</pre>")[0]
        (stored,) = await web.store.tokens.list_all()
        listed = (await web.client.get("/tokens")).text
    assert (stored.hash, stored.credential.cluster) == (hash_of(secret), "east")
    assert "shipper-1" in listed and "cluster east" in listed
    assert secret not in listed and stored.hash not in listed


@pytest.mark.parametrize(
    "body",
    ["name=a+b&scope=read", "name=ok&scope=", "name=ok&scope=agent&tenant=maria", "name=ok&scope=read&expires=1y"],
)
async def test_a_token_that_cannot_be_is_not_made(tmp_path: Path, body: str) -> None:
    """By the rules of `diagnoser token create`."""
    async with serving(tmp_path) as web:
        assert (await press(web, "/tokens", body)).status_code == 400
        assert await web.store.tokens.list_all() == []


async def test_who_changed_a_person_or_a_token_stands_in_the_audit_log(tmp_path: Path) -> None:
    """And nobody locks themselves out."""
    async with serving(tmp_path) as web:
        await web.store.users.add(User("kai", Role.OPERATOR, NOW), "hash")
        await web.store.tokens.add(StoredToken(Credential("root", Scope.ADMIN, created=NOW), hash_of("root")))
        web.client.headers["authorization"] = "Bearer root"
        assert (await press(web, "/people", "name=kai&decision=viewer")).status_code == 303
        assert (await press(web, "/people", "name=root&decision=viewer")).status_code == 409
        assert (await press(web, "/tokens/revoke", "name=root")).status_code == 409
        page, audit = (await web.client.get("/people")).text, (await web.client.get("/audit")).text
        (user,) = await web.store.users.list_all()
    assert user.role is Role.VIEWER
    assert "Make kai operator" in page
    assert "kai" in audit and "root" in audit


async def test_the_routing_of_alerts_is_shown_in_words(tmp_path: Path) -> None:
    """With what would be sent about a diagnosis, the row that decides, and why the others do not."""
    async with serving(tmp_path) as web:
        record = (await fill(web.store))["ecc"]
        page = (await web.client.get(f"/alert-routing?diagnosis=http://d/diagnoses/{record.id}")).text
        missing = await web.client.get("/alert-routing?diagnosis=none")
    for shown in (
        "the category is infrastructure",
        "every receiver",
        "Goes to: slack (critical)",
        "<b>applies</b>",
        "alerts.yaml",
    ):
        assert shown in page
    assert missing.status_code == 404


async def test_a_test_goes_the_way_of_every_alert(tmp_path: Path) -> None:
    """Through the outbox, to a receiver that is configured; the page shows what became of it."""
    async with serving(tmp_path) as web:
        pressed = await press(web, "/alert-routing/test", "receiver=slack")
        page = (await web.client.get(pressed.headers["location"])).text
        unknown = await press(web, "/alert-routing/test", "receiver=nobody")
        (message,) = await OutboxRepository.messages(web.store.outbox)
    assert message.message.target == "slack"
    assert "Test to slack: <b>on its way</b>" in page
    assert unknown.status_code == 400


def test_settings_are_shown_without_their_secrets() -> None:
    """Also the password within the URL of a database; what is given is told from what is not."""
    settings = Settings(database_url="postgresql://dg:hunter2@db/x", llm_api_key=SecretStr("sk-live"), port=9)
    shown = {setting.name: setting for setting in shown_settings(settings)}
    assert shown["DIAGNOSER_DATABASE_URL"].value == "postgresql://<url password>db/x"
    assert (shown["DIAGNOSER_LLM_API_KEY"].value, shown["DIAGNOSER_TOKENS"].value) == (HIDDEN, "")
    assert (shown["DIAGNOSER_PORT"].origin, shown["DIAGNOSER_HOST"].origin) == (Origin.GIVEN, Origin.DEFAULT)
    assert shown["alerts.yaml"].origin is Origin.SHIPPED_FILE
    assert "hunter2" not in str(shown) and "sk-live" not in str(shown)


async def test_the_settings_page_says_where_each_is_from(tmp_path: Path) -> None:
    """Files, the environment, defaults."""
    shown = shown_settings(Settings(port=9))
    async with serving(tmp_path) as web:
        config = replace(web.services.core.config, settings=shown)
    async with serving(tmp_path, config=config, store=None) as web:
        page = (await web.client.get("/settings")).text
    given = page[page.index("From the environment") : page.index("Defaults")]
    assert "DIAGNOSER_PORT" in given and "DIAGNOSER_HOST" not in given
    assert "policy.yaml" in page

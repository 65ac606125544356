"""Signing in at a real provider of OpenID Connect, over HTTP on loopback: there and back, and who may come in."""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import SecretStr

from diagnoser.config.identity import open_provider
from diagnoser.config.settings import Settings
from diagnoser.model.people import Role, User, UserChange
from diagnoser.model.queries import AuditFilter
from tests.environments import OIDC
from tests.ports import free_port
from tests.serving import NOW, Web, serving

pytestmark = pytest.mark.skipif(bool(OIDC.missing), reason=OIDC.missing)

START_SECONDS = 180
EVERYTHING = AuditFilter()
PEOPLE = (
    {"sub": "u1", "preferred_username": "maria", "groups": ["oncall", "everybody"]},
    {"sub": "u2", "preferred_username": "ida", "groups": ["ml-platform"]},
    {"sub": "u3", "preferred_username": "guest", "groups": ["everybody"]},
    {"sub": "u4", "preferred_username": "root", "groups": ["oncall"]},
)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("oidc") / "provider.log"
    people = [part for person in PEOPLE for part in ("--user-claims", json.dumps(person))]
    command = [str(OIDC.python), "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true", *people]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as opened:
        process = subprocess.Popen(command, stdout=opened, stderr=opened, env=environment)
    try:
        until = time.monotonic() + START_SECONDS
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def configured(issuer: str, **other: str) -> Settings:
    given = {
        "oidc_issuer": issuer,
        "oidc_client_id": "diagnoser",
        "oidc_roles": "ml-platform=admin, oncall=operator",
        "base_url": "http://diagnoser.test",
    }
    return Settings(**(given | other), oidc_client_secret=SecretStr("a secret"))


@pytest.fixture
async def web(tmp_path: Path, issuer: str) -> AsyncIterator[Web]:
    async with serving(tmp_path, provider=open_provider(configured(issuer))) as made:
        yield made


async def at_provider(url: str, subject: str) -> str:
    """Signs in there as a browser does; where the provider sends it back to."""
    async with httpx.AsyncClient() as browser:
        form = (await browser.get(url)).text
        assert re.search(r"<form", form)
        answer = await browser.post(url, data={"sub": subject})
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


async def sign_in(web: Web, subject: str, page: str = "/") -> httpx.Response:
    begun = await web.client.get("/login/oidc", params={"next": page})
    assert begun.status_code == 303, begun.text
    return await web.client.get(await at_provider(begun.headers["location"], subject))


async def test_there_and_back(web: Web) -> None:
    """A page leads to the login page, that to the provider, and the answer to the page that was asked for."""
    asked = await web.client.get("/nodes?x=1")
    form = await web.client.get(asked.headers["location"])
    link = re.search(r'href="(/login/oidc\?[^"]+)"', form.text)
    assert link and "Sign in with 127.0.0.1" in form.text
    begun = await web.client.get(link[1].replace("&amp;", "&"))
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"] and len(query["state"][0]) > 30
    answer = await web.client.get(await at_provider(begun.headers["location"], "u1"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/nodes?x=1")
    page = await web.client.get("/nodes")
    assert ">maria</a> <button>Sign out</button>" in page.text
    (user,) = await web.store.users.list_all()
    assert (user.name, user.role, user.subject, user.is_local) == ("maria", Role.OPERATOR, "u1", False)
    written = [
        (entry.action, entry.actor.name, entry.object_kind) for entry in await web.store.audit.page(EVERYTHING, 0, 9)
    ]
    assert written == [("GET /login/oidc/callback", "maria", kind) for kind in ("session", "user")]


@pytest.mark.parametrize(("subject", "status"), [("u1", 200), ("u2", 200)])
async def test_the_role_is_that_of_the_claim(web: Web, subject: str, status: int) -> None:
    """It is set with each sign-in, so that who loses a group loses the role."""
    await sign_in(web, subject)
    assert (await web.client.get("/audit")).status_code == status
    name = "maria" if subject == "u1" else "ida"
    await web.store.users.change(name, UserChange(role=Role.VIEWER), NOW)
    assert (await web.client.get("/api/v1/diagnoses")).status_code == 401
    await sign_in(web, subject)
    user = next(user for user in await web.store.users.list_all() if user.name == name)
    assert user.role is (Role.OPERATOR if subject == "u1" else Role.ADMIN)


async def test_who_has_no_role_does_not_come_in(web: Web) -> None:
    """The page says which claim is missing what; nothing is stored."""
    refused = await sign_in(web, "u3")
    assert refused.status_code == 400 and "has no role here" in refused.text
    assert await web.store.users.list_all() == []
    assert (await web.client.get("/api/v1/diagnoses")).status_code == 401


async def test_nobody_takes_over_a_local_account(web: Web) -> None:
    """A person whom the provider calls as a local user is called is somebody else."""
    await web.store.users.add(User("root", Role.ADMIN, NOW), "hash")
    refused = await sign_in(web, "u4")
    assert refused.status_code == 400 and "another account is called" in refused.text
    assert (await web.client.get("/api/v1/diagnoses")).status_code == 401


async def test_a_disabled_account_does_not_come_back(web: Web) -> None:
    """The provider goes on to know the person; the service does not."""
    await sign_in(web, "u1")
    await web.store.users.change("maria", UserChange(disabled=True), NOW)
    refused = await sign_in(web, "u1")
    assert refused.status_code == 400 and "is disabled" in refused.text


async def test_an_answer_is_taken_in_the_browser_that_asked_and_once(web: Web) -> None:
    """Not in another one (somebody could sign a person in as somebody else), nor with another state, nor again."""
    begun = await web.client.get("/login/oidc")
    back = await at_provider(begun.headers["location"], "u1")
    cookie = web.client.cookies["diagnoser_sign_in"]
    web.client.cookies.clear()
    assert (await web.client.get(back)).status_code == 400
    state = parse_qs(urlsplit(back).query)["state"][0]
    headers = {"cookie": f"diagnoser_sign_in={cookie}"}
    assert (await web.client.get(back.replace(state, "x" * len(state)), headers=headers)).status_code == 400
    assert (await web.client.get(back, headers=headers)).status_code == 303
    web.client.cookies.clear()
    again = await web.client.get(back, headers=headers)
    assert again.status_code == 400 and "set-cookie" in again.headers
    assert (await web.client.get("/api/v1/diagnoses")).status_code == 401


async def test_no_sign_in_leads_to_another_site(web: Web) -> None:
    """Whatever the page was that was asked for."""
    answer = await sign_in(web, "u1", "//evil.example/")
    assert answer.headers["location"] == "/"


async def test_what_the_person_refuses_is_told(web: Web) -> None:
    """The provider's own word, on the login page."""
    begun = await web.client.get("/login/oidc")
    state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
    refused = await web.client.get("/login/oidc/callback", params={"state": state, "error": "access_denied"})
    assert refused.status_code == 400 and "access_denied" in refused.text

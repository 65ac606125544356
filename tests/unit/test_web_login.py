"""People sign in: who gets a session, for how long, what it is good for, and what a guesser hears."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from diagnoser.model.access import Scope, Token
from diagnoser.model.people import SESSION_IDLE, SESSION_LIFE, Role, User, UserChange
from diagnoser.web.http.sign_in import safe_page
from diagnoser.web.server import create
from tests.serving import NOW, WEAK_PASSWORDS, Web, fill, serving

PASSWORD = "correct horse battery"
SAME_SITE = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
COOKIE = "diagnoser_session"


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def web(tmp_path: Path, clock: Clock) -> AsyncIterator[Web]:
    """With a user of each role, and a token."""
    tokens = (Token("a-token", "a-secret-for-reading", Scope.READ),)
    async with serving(tmp_path, tokens=tokens, clock=clock) as made:
        for role in Role:
            await made.store.users.add(User(f"a-{role}", role, NOW), await WEAK_PASSWORDS.hash(PASSWORD))
        yield made


async def sign_in(web: Web, name: str = "a-operator", password: str = PASSWORD, **fields: str) -> httpx.Response:
    form = {"name": name, "password": password} | fields
    return await web.client.post("/login", data=form, headers={"sec-fetch-site": "same-origin"})


async def status(web: Web, path: str = "/api/v1/diagnoses", **headers: str) -> int:
    return (await web.client.get(path, headers=headers)).status_code


async def test_a_person_signs_in_and_comes_back_to_the_page_that_was_asked_for(web: Web) -> None:
    """A page leads to the form, the form back to the page; the head says who it is, with a way out."""
    asked = await web.client.get("/jobs?state=running")
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Fjobs%3Fstate%3Drunning")
    form = await web.client.get(asked.headers["location"])
    assert '<input type="hidden" name="next" value="/jobs?state=running">' in form.text
    answer = await sign_in(web, next="/jobs?state=running")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=running")
    page = (await web.client.get("/jobs?state=running")).text
    assert ">a-operator</a> <button>Sign out</button>" in page


@pytest.mark.parametrize("page", ["/", "/people", "/tokens", "/settings", "/alert-routing", "/impact", "/search?q=a"])
async def test_every_page_leads_to_the_form(web: Web, page: str) -> None:
    """A list of pages would miss those that come later."""
    answer = await web.client.get(page)
    assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")


async def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites(web: Web) -> None:
    """Over https it is also kept to https, and has a name that no other host and no http page can set."""
    flags = (await sign_in(web)).headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=lax" in flags and "path=/" in flags and "secure" not in flags
    transport = httpx.ASGITransport(app=create(web.services))
    async with httpx.AsyncClient(transport=transport, base_url="https://diagnoser.test") as client:
        form = {"name": "a-viewer", "password": PASSWORD}
        answer = await client.post("/login", data=form, headers={"sec-fetch-site": "same-origin"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-diagnoser_session=") and "secure" in cookie.lower()
        assert (await client.get("/api/v1/diagnoses")).status_code == 200


async def test_the_database_holds_no_cookie(web: Web) -> None:
    """Only its hash: who reads the database, or a backup, signs in as nobody."""
    await sign_in(web)
    (session,) = await web.store.users.sessions("a-operator")
    assert web.client.cookies[COOKIE] not in repr(session) and len(session.hash) == 64


async def test_whatever_is_wrong_is_told_in_the_same_words(web: Web) -> None:
    """A name that nobody has, a wrong password and a disabled account cannot be told apart."""
    await web.store.users.change("a-admin", UserChange(disabled=True), NOW)
    told = set()
    for name, password in (("nobody", PASSWORD), ("a-viewer", "wrong password"), ("a-admin", PASSWORD)):
        answer = await sign_in(web, name, password)
        told.add((answer.status_code, answer.text.replace(name, "NAME")))
        assert "set-cookie" not in answer.headers
    assert len(told) == 1 and "The name or the password is wrong." in told.pop()[1]


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil.example", "/\t/evil.example", "/a\\b", "",
     "/login?next=/", "javascript:alert(1)", "/%0d", "/é", "/\x00"],
)  # fmt: skip
async def test_no_sign_in_leads_to_another_site(web: Web, page: str) -> None:
    """Anything but a page of this service leads to its first page."""
    answer = await sign_in(web, next=page)
    assert answer.headers["location"] == ("/" if page != "/%0d" else "/%0d")
    assert safe_page("/diagnoses/1?q=a%20b") == "/diagnoses/1?q=a%20b"


@pytest.mark.parametrize(
    ("role", "may"), [(Role.VIEWER, (200, 403, 403)), (Role.OPERATOR, (200, 200, 404)), (Role.ADMIN, (200, 200, 404))]
)
async def test_a_role_is_a_scope(web: Web, role: Role, may: tuple[int, int, int]) -> None:
    """Who looks, who sees the audit log and who presses buttons."""
    await sign_in(web, f"a-{role}")
    pressed = await web.client.post("/plans/1/decide", content=b"decision=approve", headers=SAME_SITE)
    assert (await status(web), await status(web, "/audit"), pressed.status_code) == may


@pytest.mark.parametrize("site", ["cross-site", "same-site", None])
async def test_a_page_of_another_site_presses_nothing(web: Web, site: str | None) -> None:
    """Neither a button, nor the way in or out; and nothing where the browser does not say where it comes from."""
    await sign_in(web)
    headers = {"content-type": SAME_SITE["content-type"]} | ({"sec-fetch-site": site} if site else {})
    for path in ("/plans/1/decide", "/login", "/logout", "/logout/everywhere", "/recovery/breakers/main/reset"):
        answer = await web.client.post(path, content=b"decision=approve", headers=headers)
        assert answer.status_code == 403, path
    assert await status(web) == 200


async def test_a_session_changes_nothing_over_the_api(web: Web) -> None:
    """Browsers send its cookie unasked: API calls that change something need a bearer token, as with a password."""
    await sign_in(web, "a-admin")
    answer = await web.client.post("/api/v1/plans/1/approve", json={}, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 403 and "bearer token" in answer.json()["detail"]


async def test_a_session_ends_when_it_is_not_used(web: Web, clock: Clock) -> None:
    """What the page asks for by itself does not count as use; what a person opens does."""
    await sign_in(web)
    clock.now += SESSION_IDLE - 100
    assert await status(web, "/", **{"sec-fetch-dest": "document"}) == 200
    clock.now += SESSION_IDLE - 100
    assert await status(web, "/", **{"sec-fetch-dest": "empty"}) == 200
    clock.now += 200
    assert (await status(web), await status(web, "/")) == (401, 303)


async def test_a_session_ends_however_much_it_is_used(web: Web, clock: Clock) -> None:
    """After its life a person signs in again."""
    await sign_in(web)
    end = clock.now + SESSION_LIFE
    while clock.now < end:
        assert await status(web) == 200
        clock.now += SESSION_IDLE / 2
    assert await status(web) == 401


async def test_signing_out_ends_the_session_itself(web: Web) -> None:
    """Somebody who has copied the cookie is out as well; another browser is not."""
    await sign_in(web)
    first = web.client.cookies[COOKIE]
    web.client.cookies.clear()
    await sign_in(web)
    second = web.client.cookies[COOKIE]
    await web.client.post("/logout", headers=SAME_SITE)
    assert COOKIE not in web.client.cookies
    assert await status(web, cookie=f"{COOKIE}={second}") == 401
    assert await status(web, cookie=f"{COOKIE}={first}") == 200


async def test_signing_out_everywhere_ends_all_sessions(web: Web) -> None:
    """Of this person: the account page lists them, and has the button."""
    await sign_in(web)
    first = web.client.cookies[COOKIE]
    web.client.cookies.clear()
    await sign_in(web)
    page = (await web.client.get("/account")).text
    assert page.count("<tr>") == 3 and page.count("this one") == 1
    await web.client.post("/logout/everywhere", headers=SAME_SITE)
    assert await status(web, cookie=f"{COOKIE}={first}") == 401
    assert await status(web) == 401


async def test_a_session_is_new_with_every_sign_in(web: Web) -> None:
    """A cookie that somebody else has set in the browser, or that was there before, is worth nothing afterwards."""
    web.client.cookies.set(COOKIE, "chosen-by-somebody-else", domain="diagnoser.test")
    await sign_in(web)
    first = web.client.cookies.get(COOKIE, domain="diagnoser.test")
    assert first and first != "chosen-by-somebody-else"
    await sign_in(web)
    web.client.cookies.clear()
    assert await status(web, cookie=f"{COOKIE}={first}") == 401


@pytest.mark.parametrize("change", [UserChange(disabled=True), UserChange(password="x"), UserChange(role=Role.VIEWER)])
async def test_who_loses_rights_is_signed_out_at_once(web: Web, change: UserChange) -> None:
    """Disabled, with a new password, or with a lower role."""
    await sign_in(web, "a-admin")
    assert await status(web) == 200
    await web.store.users.change("a-admin", change, NOW)
    assert await status(web) == 401


async def test_a_bearer_token_goes_before_a_session_and_that_before_a_password(web: Web) -> None:
    """A program says whose it is; a browser that once was given a token is whoever signed in since."""
    await sign_in(web)
    assert await status(web, "/api/v1/audit", authorization="Bearer a-secret-for-reading") == 403
    assert await status(web, "/api/v1/audit", authorization="Basic YTphLXNlY3JldC1mb3ItcmVhZGluZw==") == 200
    web.client.cookies.clear()
    assert await status(web, "/api/v1/diagnoses", authorization="Basic YTphLXNlY3JldC1mb3ItcmVhZGluZw==") == 200


async def test_a_browser_can_still_be_asked_for_a_token(web: Web) -> None:
    """By the link on the login page, which comes back to where the person was going."""
    asked = await web.client.get("/login/token?next=/nodes")
    assert asked.status_code == 401 and asked.headers["www-authenticate"].startswith("Basic")
    given = {"authorization": "Basic YTphLXNlY3JldC1mb3ItcmVhZGluZw=="}
    answer = await web.client.get("/login/token?next=/nodes", headers=given)
    assert (answer.status_code, answer.headers["location"]) == (303, "/nodes")


async def test_the_first_user_closes_the_door(tmp_path: Path, clock: Clock) -> None:
    """Without users and tokens everybody may do everything; from the first user on, nobody without signing in."""
    async with serving(tmp_path, clock=clock) as web:
        await fill(web.store)
        assert await status(web) == 200
        assert "Nobody has to sign in here" in (await web.client.get("/login")).text
        await web.store.users.add(User("maria", Role.ADMIN, NOW), await WEAK_PASSWORDS.hash(PASSWORD))
        clock.now += 5.0
        assert (await status(web), await status(web, "/")) == (401, 303)
        await sign_in(web, "maria")
        assert await status(web) == 200


async def test_without_users_the_login_page_says_how_to_make_one(tmp_path: Path) -> None:
    """It names the command, and offers the token that there is."""
    async with serving(tmp_path, tokens=(Token("t", "a-secret-for-reading", Scope.READ),)) as web:
        page = (await web.client.get("/login")).text
        assert "diagnoser users add NAME --role admin" in page and "/login/token" in page
        assert "www-authenticate" in (await web.client.get("/")).headers


async def test_too_many_wrong_passwords_are_told_to_wait(web: Web, clock: Clock) -> None:
    """With how long, on the page and as Retry-After; after that the right one opens."""
    for _ in range(10):
        assert (await sign_in(web, password="wrong password")).status_code == 400
    refused = await sign_in(web)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "600")
    assert "Try again in 10 min" in refused.text.replace("\N{NO-BREAK SPACE}", " ")
    clock.now += 600
    assert (await sign_in(web)).status_code == 303


async def test_a_password_with_spaces_or_composed_characters_is_the_same(web: Web) -> None:
    """Nothing is cut off it, and it does not matter how a keyboard composes its characters."""
    await web.store.users.add(User("zoe", Role.VIEWER, NOW), await WEAK_PASSWORDS.hash(" caf\u00e9 au lait noir "))
    assert (await sign_in(web, "zoe", " cafe\u0301 au lait noir ")).status_code == 303
    assert (await sign_in(web, "zoe", "caf\u00e9 au lait noir")).status_code == 400

"""What an identity provider says is believed only with all its proofs."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from pydantic import SecretStr

from diagnoser.adapters.oidc import OidcConfig, OidcProvider
from diagnoser.config.identity import open_provider
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput, Denied, Unavailable
from diagnoser.model.people import Identity, Role, RoleMapping

ISSUER = "https://login.example"
ROLES = RoleMapping("groups", {"ml-platform": Role.ADMIN, "oncall": Role.OPERATOR})
CONFIG = OidcConfig(
    ISSUER, "diagnoser", "a secret", "openid profile", "preferred_username", ROLES, "https://diagnoser.example/back"
)
KEY = RSAKey.generate_key(2048, {"kid": "k1"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "k2"})


def claims(**other: Any) -> dict[str, Any]:
    now = int(time.time())
    base = {"iss": ISSUER, "sub": "u1", "aud": "diagnoser", "iat": now, "exp": now + 60, "nonce": "the-nonce"}
    return base | {"preferred_username": "maria", "groups": ["oncall"]} | other


def signed(key: Any = KEY, algorithm: str = "RS256", **other: Any) -> str:
    given = {name: value for name, value in claims(**other).items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid}, given, key, algorithms=[algorithm])


@dataclass
class FakeProvider:
    """Answers as a provider does. answers: token responses, each as the ID token or the whole answer."""

    id_token: Callable[[], Any] = signed
    metadata: dict[str, Any] = field(default_factory=dict)
    keys: list[Any] = field(default_factory=lambda: [KEY])
    asked: list[httpx2.Request] = field(default_factory=list)
    is_away: bool = False
    status: int = 200

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        if self.is_away:
            raise httpx2.ConnectError("nobody there")
        if request.url.path == "/.well-known/openid-configuration":
            named = {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            return httpx2.Response(200, json={"issuer": ISSUER, **named, **self.metadata})
        if request.url.path == "/jwks_uri":
            return httpx2.Response(200, json=KeySet(self.keys).as_dict(private=False))
        if self.status != 200:
            return httpx2.Response(self.status, json={"error": "invalid_grant", "error_description": "used before"})
        token = self.id_token()
        answer = token if isinstance(token, dict) else {"id_token": token}
        return httpx2.Response(200, json={"access_token": "at", "token_type": "Bearer", "expires_in": 60, **answer})


def provider(fake: FakeProvider, config: OidcConfig = CONFIG) -> OidcProvider:
    return OidcProvider(config, httpx2.MockTransport(fake))


async def identity(fake: FakeProvider, issuer: str = "") -> Identity:
    return await provider(fake).identity("the-code", "the-nonce", "the-verifier", issuer)


async def test_a_person_is_who_the_provider_says_with_the_role_of_the_site() -> None:
    """By issuer and subject, whatever the name is; the code goes there with the verifier that only we know."""
    fake = FakeProvider()
    assert await identity(fake) == Identity(ISSUER, "u1", "maria", Role.OPERATOR)
    (exchange,) = [request for request in fake.asked if request.url.path == "/token_endpoint"]
    sent = parse_qs(exchange.content.decode())
    assert (sent["code"], sent["code_verifier"]) == (["the-code"], ["the-verifier"])
    assert sent["redirect_uri"] == ["https://diagnoser.example/back"]
    assert exchange.headers["authorization"].startswith("Basic ")


async def test_the_browser_is_sent_with_state_nonce_and_the_hash_of_the_verifier() -> None:
    """PKCE with S256: the verifier itself stays here."""
    url = await provider(FakeProvider()).authorization_url("the-state", "the-nonce", "the-verifier")
    query = parse_qs(urlsplit(url).query)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(b"the-verifier").digest()).decode().rstrip("=")
    expected = {"state": "the-state", "nonce": "the-nonce", "code_challenge": challenge, "response_type": "code"}
    assert {name: query[name][0] for name in expected} == expected
    assert (query["code_challenge_method"], query["client_id"]) == (["S256"], ["diagnoser"])
    assert "the-verifier" not in url


def unsigned() -> str:
    head, body = ('{"alg":"none"}', '{"iss":"' + ISSUER + '","sub":"u1"}')
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (head, body)) + "."


def signed_with_the_public_key() -> str:
    """By hand: no library lets its own user do that."""
    head = {"alg": "HS256", "kid": "k1"}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (head, claims())]
    mac = hmac.digest(KEY.as_pem(private=False), ".".join(parts).encode(), "sha256")
    return ".".join([*parts, base64.urlsafe_b64encode(mac).decode().rstrip("=")])


@pytest.mark.parametrize(
    "id_token",
    [
        lambda: signed(OTHER_KEY),
        unsigned,
        signed_with_the_public_key,
        lambda: signed(nonce="another"),
        lambda: signed(nonce=None),
        lambda: signed(aud="somebody-else"),
        lambda: signed(aud=["diagnoser", "somebody-else"], azp="somebody-else"),
        lambda: signed(iss="https://evil.example"),
        lambda: signed(exp=int(time.time()) - 300),
        lambda: signed(exp=None),
        lambda: signed(sub=None),
        lambda: signed(sub=""),
        lambda: signed(at_hash="another"),
        lambda: signed()[:-6] + "AAAAAA",
        lambda: "not.a.token",
        lambda: "",
        lambda: {"id_token": None},
        lambda: {"id_token": 7},
    ],
)
async def test_a_token_that_lacks_a_proof_is_refused(id_token: Callable[[], Any]) -> None:
    """Another key, no signature, our own public key as a secret, another nonce, audience, issuer or time."""
    with pytest.raises(Denied):
        await identity(FakeProvider(id_token))


async def test_an_answer_of_another_provider_is_refused() -> None:
    """As RFC 9207 tells them apart; nothing is sent there."""
    fake = FakeProvider()
    with pytest.raises(Denied):
        await identity(fake, "https://evil.example")
    assert fake.asked == []
    assert (await identity(fake, ISSUER)).name == "maria"


@pytest.mark.parametrize(
    "name", [None, "", "anonymous", "slack:ann", "a b", "x" * 101, "a\nb", "<b>", 7, "recovery", "\u202eroot"]
)
async def test_nobody_gets_a_name_that_means_somebody_else(name: object) -> None:
    """History is read by name."""
    with pytest.raises(Denied, match="name"):
        await identity(FakeProvider(lambda: signed(preferred_username=name)))


@pytest.mark.parametrize("groups", [None, [], ["somebody"], "somebody", 7, {"oncall": True}, ["OnCall"]])
async def test_without_a_role_nobody_comes_in(groups: object) -> None:
    """The refusal names the claim and the setting."""
    with pytest.raises(Denied, match="DIAGNOSER_OIDC_ROLES"):
        await identity(FakeProvider(lambda: signed(groups=groups)))


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ({"groups": ["oncall", "ml-platform", "x"]}, Role.ADMIN),
        ({"groups": "oncall"}, Role.OPERATOR),
        ({"groups": []}, Role.VIEWER),
        ({}, Role.VIEWER),
    ],
)
def test_the_highest_role_counts_and_the_default_is_the_lowest(given: dict[str, object], role: Role) -> None:
    """A claim may be one value or a list."""
    assert RoleMapping("groups", ROLES.roles, Role.VIEWER).role(given) is role


@pytest.mark.parametrize("claim", ["realm_access.roles", "https://example.com/roles"])
def test_a_claim_may_stand_in_an_object_or_have_dots_in_its_name(claim: str) -> None:
    """As Keycloak and Auth0 have it."""
    given = {"realm_access": {"roles": ["oncall"]}, "https://example.com/roles": ["oncall"]}
    assert RoleMapping(claim, ROLES.roles).role(given) is Role.OPERATOR


async def test_new_keys_of_the_provider_are_read() -> None:
    """When a token names one that is not known."""
    fake = FakeProvider()
    door = provider(fake)
    await door.identity("c", "the-nonce", "v", "")
    fake.keys, fake.id_token = [KEY, OTHER_KEY], lambda: signed(OTHER_KEY)
    assert (await door.identity("c", "the-nonce", "v", "")).name == "maria"
    assert sum(request.url.path == "/jwks_uri" for request in fake.asked) == 2


async def test_what_the_provider_refuses_is_told() -> None:
    """In its own words."""
    with pytest.raises(Denied, match="used before"):
        await identity(FakeProvider(status=400))


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": None},
        {"jwks_uri": "http://login.example/keys"},
        {"authorization_endpoint": "http://login.example/auth"},
    ],
)
async def test_a_description_that_does_not_fit_is_no_provider(metadata: dict[str, Any]) -> None:
    """Of somebody else, incomplete, or leading away from https."""
    with pytest.raises(Unavailable):
        await identity(FakeProvider(metadata=metadata))


async def test_a_provider_that_is_away_is_tried_again_later() -> None:
    """503, and not a refusal of the person."""
    with pytest.raises(Unavailable):
        await identity(FakeProvider(is_away=True))


async def test_without_a_secret_the_client_is_a_public_one() -> None:
    """PKCE protects the code then, and the id goes in the body."""
    fake = FakeProvider()
    config = OidcConfig(ISSUER, "diagnoser", "", "openid", "preferred_username", ROLES, CONFIG.redirect)
    await provider(fake, config).identity("c", "the-nonce", "v", "")
    exchange = next(request for request in fake.asked if request.url.path == "/token_endpoint")
    assert "authorization" not in exchange.headers and b"client_id=diagnoser" in exchange.content
    assert "a secret" not in repr(CONFIG)


def settings(**other: Any) -> Settings:
    given: dict[str, Any] = {
        "oidc_issuer": ISSUER,
        "oidc_client_id": "diagnoser",
        "oidc_client_secret": SecretStr("s"),
        "oidc_roles": "ml-platform=admin, oncall=operator",
        "base_url": "https://diagnoser.example/",
    }
    return Settings(**(given | other))


def test_the_provider_of_the_settings_is_opened() -> None:
    """Values of the role claim may hold '='; without an issuer there is none."""
    assert open_provider(Settings()) is None
    opened = open_provider(settings(oidc_roles="cn=ml=admin, oncall=operator"))
    assert opened is not None and opened.name == "login.example"
    assert opened._config.roles.roles == {"cn=ml": Role.ADMIN, "oncall": Role.OPERATOR}
    assert opened._config.redirect == "https://diagnoser.example/login/oidc/callback"


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"oidc_issuer": "http://login.example"}, "https"),
        ({"oidc_client_id": ""}, "CLIENT_ID"),
        ({"base_url": ""}, "BASE_URL"),
        ({"oidc_scopes": "profile"}, "openid"),
        ({"oidc_roles": "oncall=root"}, "ROLES"),
        ({"oidc_roles": "oncall"}, "ROLES"),
        ({"oidc_roles": ""}, "nobody could come in"),
    ],
)
def test_faulty_settings_stop_the_start(other: dict[str, Any], fault: str) -> None:
    """With the name of the setting."""
    with pytest.raises(BadInput, match=fault):
        open_provider(settings(**other))

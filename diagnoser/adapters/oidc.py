"""Signing in at a provider of OpenID Connect: authorization code with PKCE, state and nonce.

Authlib makes the requests, joserfc checks the signature of the ID token. What the provider says of itself is read again
every hour, its keys also when a token names one that is not known.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from diagnoser.model.errors import Denied, Unavailable
from diagnoser.model.people import NAME_MOST, RESERVED_NAMES, Identity, RoleMapping

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from httpx2 import AsyncBaseTransport

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures with a private key. Never ``none``, and no HMAC: what the provider publishes would be its key."""
METADATA_SECONDS = 3600.0
TIMEOUT_SECONDS = 10.0
LEEWAY_SECONDS = 60
"""By which the provider's clock may be off."""


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """name_claim: of the claim that names the person here. redirect: our callback, as it is registered there."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: str
    name_claim: str
    roles: RoleMapping
    redirect: str


class OidcProvider:
    """Raises Unavailable where the provider does not answer, Denied for what it says no to."""

    def __init__(self, config: OidcConfig, transport: "AsyncBaseTransport | None" = None) -> None:
        """transport: what carries the requests, in place of the network."""
        self._config = config
        self._transport = transport
        self._metadata: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._read_at = 0.0
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs URLs, and ours hold codes

    @property
    def name(self) -> str:
        return urlsplit(self._config.issuer).hostname or self._config.issuer

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to sign in. verifier: of PKCE, which stays here."""
        async with self._client() as client:
            endpoint = (await self._describe(client))["authorization_endpoint"]
            url, _ = client.create_authorization_url(endpoint, state=state, nonce=nonce, code_verifier=verifier)
            return str(url)

    async def identity(self, code: str, nonce: str, verifier: str, issuer: str) -> Identity:
        """Exchange the code for who signed in. issuer: what the answer named as its origin, "" where it named none.
        Raises Denied also for a person to whom the site gives no role."""
        from authlib.common.errors import AuthlibBaseError
        from httpx2 import HTTPError

        if issuer not in ("", self._config.issuer):  # RFC 9207: the answer of another provider
            raise Denied("The answer is not from the identity provider that was asked.")
        try:
            async with self._client() as client:
                endpoint = (await self._describe(client))["token_endpoint"]
                token = await client.fetch_token(endpoint, code=code, code_verifier=verifier)
                claims = await self._claims(client, token, nonce)
        except AuthlibBaseError as error:
            raise Denied(f"{self.name} refused the sign-in: {error.description or error.error}") from error
        except HTTPError as error:
            raise Unavailable(f"{self.name} does not answer: {type(error).__name__}") from error
        return self._identity(claims)

    def _client(self) -> "AsyncOAuth2Client":
        """One of its own for each sign-in: it holds that person's tokens, which end with it."""
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        config = self._config
        return AsyncOAuth2Client(
            client_id=config.client_id,
            client_secret=config.client_secret or None,
            token_endpoint_auth_method="client_secret_basic" if config.client_secret else "none",
            scope=config.scopes,
            redirect_uri=config.redirect,
            code_challenge_method="S256",
            timeout=TIMEOUT_SECONDS,
            follow_redirects=False,
            transport=self._transport,
        )

    async def _describe(self, client: "AsyncOAuth2Client") -> dict[str, Any]:
        """Read the provider's description of itself. Raises Unavailable, also for a description of another provider."""
        if self._metadata and time.monotonic() - self._read_at < METADATA_SECONDS:
            return self._metadata
        address = self._config.issuer.rstrip("/") + "/.well-known/openid-configuration"
        found = await self._get(client, address)
        needed = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        if missing := [name for name in needed if not isinstance(found.get(name), str)]:
            raise Unavailable(f"{address} does not name {', '.join(missing)}")
        if found["issuer"] != self._config.issuer:
            raise Unavailable(f"{address} is of {found['issuer']!r}, not of {self._config.issuer!r}")
        for name in needed[1:]:
            url = found[name]  # a provider that is reached by https must not send us elsewhere
            if urlsplit(self._config.issuer).scheme == "https" and urlsplit(url).scheme != "https":
                raise Unavailable(f"the identity provider names an address without https: {url[:200]}")
        self._metadata, self._keys, self._read_at = found, {}, time.monotonic()
        return found

    async def _claims(self, client: "AsyncOAuth2Client", token: dict[str, Any], nonce: str) -> dict[str, Any]:
        """Read the ID token's claims; its signature, issuer, audience, times and nonce are right. Raises Denied."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet
        from joserfc.jws import JWSRegistry

        text = token.get("id_token")
        if not isinstance(text, str):
            raise Denied(f"{self.name} sent no ID token.")
        load = KeySet.import_key_set
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            try:
                decoded = jwt.decode(text, load(await self._key_set(client)), registry=registry)
            except InvalidKeyIdError:  # the provider has changed its keys
                decoded = jwt.decode(text, load(await self._key_set(client, anew=True)), registry=registry)
            expected = {
                "iss": {"essential": True, "value": self._config.issuer},
                "aud": {"essential": True, "value": self._config.client_id},
            }
            params = {
                "nonce": nonce,
                "client_id": self._config.client_id,
                "access_token": token.get("access_token"),
            }
            claims = CodeIDToken(decoded.claims, decoded.header, expected, params)
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError) as error:
            raise Denied(f"The ID token of {self.name} does not hold: {error}") from error
        return dict(claims)

    async def _key_set(self, client: "AsyncOAuth2Client", *, anew: bool = False) -> Any:
        if anew or not self._keys:
            self._keys = await self._get(client, self._metadata["jwks_uri"])
        return self._keys

    async def _get(self, client: "AsyncOAuth2Client", url: str) -> dict[str, Any]:
        from httpx2 import HTTPError

        try:
            answer = await client.request("GET", url, withhold_token=True)
            answer.raise_for_status()
            found = answer.json()
        except (HTTPError, ValueError) as error:
            raise Unavailable(f"{self.name} does not answer: {type(error).__name__}") from error
        if not isinstance(found, dict):
            raise Unavailable(f"{self.name} answers with no JSON object")
        return found

    def _identity(self, claims: dict[str, Any]) -> Identity:
        """Raises Denied for a person without a role or a name."""
        name, subject = claims.get(self._config.name_claim), claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Denied(f"{self.name} does not say who signed in.")
        if not isinstance(name, str) or not is_name(name):
            raise Denied(f"The claim {self._config.name_claim!r} of {self.name} is no name that can be used here.")
        role = self._config.roles.role(claims)
        if role is None:
            raise Denied(
                f"{name} has no role here: nothing in the claim {self._config.roles.claim!r} gives one. Whoever runs "
                "diagnoser can add a group to DIAGNOSER_OIDC_ROLES."
            )
        return Identity(self._config.issuer, subject, name, role)


def is_name(name: str) -> bool:
    """What history can show without being mistaken for another: no colon, which marks Slack's users, and no space."""
    if not 0 < len(name) <= NAME_MOST:
        return False
    if not name.isprintable():
        return False
    if name in RESERVED_NAMES:
        return False
    return set(name).isdisjoint(":/\\ <>")

"""POSTs to a configured receiver: what counts as delivered, what is retried, which addresses are allowed.

Error messages never hold the URL: it can be a secret. Each attempt uses a connection of its own to the address that
was checked, so a name cannot point elsewhere between the check and the connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx

from diagnoser.model.errors import BadInput, DeliveryError, TooLarge
from diagnoser.ports import Clock

_TEMPORARY = frozenset({408, 425, 429, *range(500, 1000)})
"""Client errors after which the same request can succeed; every 5xx as well."""

_NAT64 = 0x0064_FF9B << 96
"""64:ff9b::/96 (RFC 6052): an IPv6 address that a gateway turns into the IPv4 address in its last 32 bits."""


@dataclass(frozen=True, slots=True)
class Poster:
    """Posts to one URL. timeout: seconds for each step of one connection."""

    url: httpx.URL
    client: httpx.AsyncClient
    clock: Clock
    timeout: float
    allow_private: bool

    async def resolve(self) -> list[str]:
        """The host's addresses, or its name where any may be used. Raises DeliveryError."""
        return [self.url.host] if self.allow_private else await _public_addresses(self.url)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Raises DeliveryError. Redirects are not followed: they could lead to an address that was not checked."""
        self._judge(await self._first_answer(await self.resolve(), body, headers))

    async def _first_answer(self, hosts: list[str], body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        try:
            for host in hosts[:-1]:
                with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                    return await self._send(host, body, headers)
            return await self._send(hosts[-1], body, headers)
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise DeliveryError(f"network: {type(error).__name__}", permanent=False) from error

    async def _send(self, host: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Reads status and headers only, so a receiver cannot fill the memory with a large answer."""
        defaults = {"content-type": "application/json", "connection": "close", "host": self.url.netloc.decode()}
        request = self.client.build_request(
            "POST",
            self.url.copy_with(host=host),
            content=body,
            headers={**defaults, **headers},
            timeout=self.timeout,
            extensions={"sni_hostname": self.url.host},  # the certificate must be that of the name
        )
        response = await self.client.send(request, stream=True, follow_redirects=False)
        await response.aclose()
        return response

    def _judge(self, response: httpx.Response) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        retry = status in _TEMPORARY
        retry_after = _seconds(response.headers.get("retry-after", ""), self.clock()) if retry else None
        raise DeliveryError(f"HTTP {status}", permanent=not retry, retry_after=retry_after)


def poster(url: str, client: httpx.AsyncClient, clock: Clock, timeout: float, allow_private: bool) -> Poster:
    """allow_private: also post to loopback, private and link-local addresses. Raises BadInput for an unusable URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput("a webhook URL cannot be read") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput("a webhook URL must start with http:// or https:// and name a host")
    return Poster(parsed, client, clock, timeout, allow_private)


def create_client() -> httpx.AsyncClient:
    """The client of all posters. It ignores proxies of the environment: they would resolve names past the check.

    httpx logs every URL at INFO, and an incoming-webhook URL is a secret.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False)


async def bounded(response: httpx.Response, most: int) -> bytes:
    """Read the body of an answer. Raises TooLarge when it has more than so many bytes."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most:
            raise TooLarge(f"the answer has more than {most >> 20} MB")
    return bytes(body)


async def _public_addresses(url: httpx.URL) -> list[str]:
    """The addresses of the host, in the resolver's order. Refused if any of them is not public."""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeliveryError(f"the host has no address: {type(error).__name__}", permanent=False) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    if not all(map(is_public, addresses)):
        raise DeliveryError(
            "the host has a private address: DIAGNOSER_ALLOW_PRIVATE_TARGETS=true allows it", permanent=True
        )
    return addresses


def is_public(address: str) -> bool:
    """Whether ``address`` is on the public Internet. IPv4 addresses inside IPv6 forms are checked as well."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        inner = _inner(parsed)
        if inner is not None:
            return is_public(str(inner))
    return parsed.is_global and not parsed.is_multicast


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a form of an IPv6 address holds."""
    if int(address) >> 32 == _NAT64 >> 32:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def _seconds(header: str, now: float) -> float | None:
    """``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3)."""
    if header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if not date.tzinfo:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)

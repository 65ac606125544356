"""GET requests to a log store: bounded answers, and which faults are for a person to mend."""

from collections.abc import Awaitable, Callable

import httpx

from diagnoser.adapters.http import bounded
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import SourceLine

ANSWER_BYTES = 32 << 20
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
_REFUSED = frozenset({400, 401, 403, 404})
"""The same request will not succeed later: a query, a password or an address is wrong."""
_REASON_LENGTH = 300


class StoreClient:
    """url: of the store, with no path of its API. headers: who we are. They go to that host only: a redirect is a
    fault, and proxies of the environment are not used. Certificates of ``SSL_CERT_FILE`` count."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            verify=httpx.create_ssl_context(),
        )

    async def get(self, path: str, parameters: dict[str, str | int]) -> bytes:
        """Raises BadInput, TooLarge, or Unavailable."""
        try:
            async with self._client.stream("GET", self._url + path, params=parameters) as response:
                body = await bounded(response, ANSWER_BYTES)
        except httpx.InvalidURL as error:
            raise BadInput(f"{self._url} is no URL: {error}") from None
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._url}: {type(error).__name__}") from None
        if response.status_code == httpx.codes.OK:
            return body
        reason = " ".join(body[:_REASON_LENGTH].decode("utf-8", "replace").split())
        fault = f"{self._url} answers {response.status_code}: {reason}"
        if response.status_code in _REFUSED:
            raise BadInput(fault)
        raise Unavailable(fault)

    async def close(self) -> None:
        await self._client.aclose()


ReadLines = Callable[[StoreClient, str, int, int, int], Awaitable[list[SourceLine]]]
"""(client, query in the store's language, start, end, limit) -> lines from ``start`` on and before ``end``, nanoseconds
since the epoch; of one time, in their order. If there are more than ``limit``, any ``limit`` of them. Lines outside of
that time are no fault. Raises TooLarge when the answer would be, BadInput when the store refuses us for good."""

"""Shared by all OpenAI-compatible servers: a client with bounded replies, and errors mapped to reasons."""

from collections.abc import AsyncIterator
from typing import cast

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from diagnoser.model.errors import ModelFailed, ModelFailure

REPLY_BYTES = 2 << 20
"""Longest reply that is read. An answer has a few kilobytes, a vector of 8,192 numbers 200, a gateway's list of all its
models up to a megabyte.
"""


class ReplyTooLong(openai.OpenAIError):
    """A reply over ``REPLY_BYTES``, or one that could become so when it is unpacked.

    Derives from the client's own error class, because the client passes those through unchanged.
    """


# What the client raises -> why there is no answer. The first matching row decides.
_REASONS: tuple[tuple[type[Exception], ModelFailure], ...] = (
    (openai.APITimeoutError, ModelFailure.TIMEOUT),
    (openai.APIConnectionError, ModelFailure.UNAVAILABLE),
    (openai.APIResponseValidationError, ModelFailure.MALFORMED),
    (ReplyTooLong, ModelFailure.MALFORMED),
    (openai.AuthenticationError, ModelFailure.DENIED),
    (openai.PermissionDeniedError, ModelFailure.DENIED),
    (openai.NotFoundError, ModelFailure.NOT_FOUND),
    (openai.RateLimitError, ModelFailure.RATE_LIMITED),
    (openai.OpenAIError, ModelFailure.UNAVAILABLE),
)


def client(base_url: str, api_key: str, timeout: float) -> AsyncOpenAI:
    """timeout: seconds, for one question. Nothing is tried again here: the callers have deadlines.

    A server that needs no key still wants the header. Replies are uncompressed, so that the size limit holds.

    Requests carry log text and the key, so they go to the configured host and nowhere else: a redirect is an error,
    because the server, or whoever answers in its place, would choose where the next request goes, such as to a private
    address behind the firewall; and proxies of the environment are ignored, as for webhooks. The address of the
    configured host itself is not judged: a model usually runs on loopback or in a private network, often under a
    cluster's service name, and who sets the URL may set any. Certificates of ``SSL_CERT_FILE`` still count.
    """
    return AsyncOpenAI(
        base_url=base_url,
        api_key=api_key or "not-needed",
        timeout=timeout,
        max_retries=0,
        default_headers={"Accept-Encoding": "identity"},
        http_client=DefaultAsyncHttpxClient(
            event_hooks={"response": [_bound]},
            follow_redirects=False,
            trust_env=False,
            verify=httpx2.create_ssl_context(),
        ),
    )


def failure(error: openai.OpenAIError) -> ModelFailed:
    """The error as a ModelFailed, without the body: a server may echo the prompt, and with it the log."""
    reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
    return ModelFailed(reason, describe_error(error), _retry_after(error))


def describe_error(error: openai.OpenAIError) -> str:
    """The kind of an error, without its body."""
    if isinstance(error, ReplyTooLong):
        return str(error)
    status = getattr(error, "status_code", None)
    if not status:
        return type(error).__name__
    return f"{type(error).__name__}, HTTP {status}"


async def _bound(response: httpx2.Response) -> None:
    """Called after the headers and before the body."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ReplyTooLong("the server's reply is packed, and nobody asked for that")
    response.stream = _Counted(cast(httpx2.AsyncByteStream, response.stream))


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > REPLY_BYTES:
                raise ReplyTooLong(f"the server's reply has more than {REPLY_BYTES >> 20} MB")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _retry_after(error: openai.OpenAIError) -> float | None:
    """Seconds. Dates are ignored."""
    response = getattr(error, "response", None)
    if response is None:
        return None
    header = response.headers.get("retry-after", "")
    return float(header) if header.isdecimal() else None

"""One TLS context for all clients of a process that ask for the default: to read the certificates of all the world
costs 20 milliseconds of CPU for each, and a client behind a proxy has four."""

import os
import ssl
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
import httpx2

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def share_contexts() -> None:
    """From now on, in this process and in those that are forked from it."""
    for library in (httpx, httpx2):
        transports: Any = library._transports.default
        shared = _sharing(library.create_ssl_context)
        transports.create_ssl_context = library.create_ssl_context = shared  # type: ignore[attr-defined]


def _sharing(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    @cache
    def default(trust_env: bool, *environment: str | None) -> ssl.SSLContext:
        return create(trust_env=trust_env)

    def shared(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return default(trust_env, *map(os.environ.get, _VARIABLES))

    return shared

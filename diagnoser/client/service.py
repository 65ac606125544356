"""HTTP to the service: one kept connection, and a token that goes nowhere else."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from dataclasses import dataclass
from typing import Any, Mapping
from urllib.parse import urlencode, urlsplit

from diagnoser.client.origin import VERSION

API = "/api/v1"
TIMEOUT_SECONDS = 30.0
ANSWER_BYTES = 4 << 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class UsageError(Exception):
    """An option or a setting that cannot be used; the message says what to do."""


class Unreachable(Exception):
    """No answer came from the service."""


@dataclass(frozen=True)
class Answer:
    """retry_after: seconds that the service asks to wait, 0 when it does not say."""

    status: int
    body: bytes
    retry_after: float = 0.0

    @property
    def passing(self) -> bool:
        """Whether the same request may be accepted later."""
        if self.status >= 500:
            return True
        return self.status in (408, 425, 429)

    @property
    def refuses_token(self) -> bool:
        return self.status in (401, 403)

    def json(self) -> Any:
        """Parse the body; None when it is no JSON."""
        try:
            return json.loads(self.body.decode("utf-8"))
        except ValueError:
            return None

    def fields(self) -> dict[str, Any]:
        """Parse the body of an answer that is an object; empty for any other."""
        body = self.json()
        if isinstance(body, dict):
            return body
        return {}

    @property
    def detail(self) -> str:
        return str(self.fields().get("detail") or "")

    @property
    def why(self) -> str:
        """Say why the service refuses: in its own words, else by the status."""
        return self.detail or str(self.status)


class TokenSource:
    """A token, or a file that holds one and is read again whenever it is asked for: it may be rotated."""

    def __init__(self, token: str = "", file: str = "") -> None:
        self._token, self._file = token.strip(), file

    @classmethod
    def of(cls, environment: Mapping[str, str], file: str = "") -> TokenSource:
        """Find the token: a file that an option names, else the environment's token, else the environment's file."""
        if file:
            return cls(file=file)
        token = environment.get("DIAGNOSER_TOKEN", "")
        if token:
            return cls(token)
        return cls(file=environment.get("DIAGNOSER_TOKEN_FILE", ""))

    def __bool__(self) -> bool:
        return bool(self._token or self._file)

    def read(self) -> str:
        """Raises UsageError for a file that cannot be read or that others may write."""
        if not self._file:
            return self._token
        try:
            with open(self._file, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError("the token file {} cannot be read: {}".format(self._file, error)) from None
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UsageError("others may write the token file {0}: chmod 600 {0}".format(self._file))
        return token

    def caution(self) -> str:
        """What a person should know about the file; "" for nothing."""
        if not self._file:
            return ""
        try:
            mode = os.stat(self._file).st_mode
        except OSError:
            return ""
        if mode & stat.S_IROTH:
            return "others may read the token file {0}: chmod 600 {0}".format(self._file)
        return ""


class Service:
    """One service at ``url``. Not for several threads at once. Raises UsageError for an unusable address."""

    def __init__(self, url: str, token: TokenSource, timeout: float = TIMEOUT_SECONDS) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError("the server's address {!r} cannot be used: {}".format(url, error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise UsageError(
                "the server's address {!r} must be like http://diagnoser:8321 or https://diagnoser.example".format(url)
            )
        self.url = "{}://{}{}".format(parts.scheme, parts.netloc, parts.path.rstrip("/"))
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._is_tls = parts.scheme == "https"
        self._token = token
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None

    def cautions(self) -> list[str]:
        """What a person should know before the token is sent."""
        cautions = [self._token.caution()]
        if self._token and self._is_exposed:
            cautions.append(
                "the token is sent to {} unencrypted: use https where others share the network".format(self.url)
            )
        return list(filter(None, cautions))

    @property
    def _is_exposed(self) -> bool:
        if self._is_tls:
            return False
        return self._host not in LOOPBACK

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Answer:
        return self.request("GET", path, query)

    def post(self, path: str, body: Mapping[str, object]) -> Answer:
        return self.request("POST", path, None, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def post_lines(self, query: Mapping[str, object], body: bytes, *, packed: bool = False) -> Answer:
        """packed: the body is gzip."""
        headers = {"Content-Type": "text/plain"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        return self.request("POST", "/logs", query, body, headers)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """path: below the API. Raises Unreachable, UsageError for an unusable token file."""
        target = self._path + API + path
        if query:
            target += "?" + urlencode(query)
        sent = {"User-Agent": ("diagnoser-client/" + VERSION).rstrip("/")}
        if headers:
            sent.update(headers)
        token = self._token.read()
        if token:
            sent["Authorization"] = "Bearer " + token
        is_kept = self._connection is not None
        try:
            return self._once(method, target, body, sent)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if not is_kept or isinstance(error, socket.timeout):
                raise Unreachable(_told(error)) from None
        try:
            return self._once(method, target, body, sent)  # the service closes a connection that was idle
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unreachable(_told(error)) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = self._connection or self._connected()
        connection.request(method, target, body=body, headers=dict(headers))
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES + 1)
        if len(text) > ANSWER_BYTES or response.will_close:
            self.close()
        wait = response.getheader("Retry-After", "")
        if wait.isdigit():
            return Answer(response.status, text, float(wait))
        return Answer(response.status, text)

    def _connected(self) -> http.client.HTTPConnection:
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if self._is_tls:
            kind = http.client.HTTPSConnection
        self._connection = kind(self._host, self._port, timeout=self._timeout)
        return self._connection


def _told(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

"""Posting to a receiver: what is delivered, what may be tried again, and where nothing goes."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import orjson
import pytest
from standardwebhooks import Webhook

from diagnoser.adapters import http
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.channels.slack.sending import SlackWebhook
from diagnoser.model.alerts import Alert, AlertKind
from diagnoser.model.errors import BadInput, DeliveryError
from tests.contract.records import outbox_message
from tests.receiver import Receiver, running

NOW = 1_800_000_000.0
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0IHJ1bg=="


def clock() -> float:
    return NOW


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    made = http.create_client()
    yield made
    await made.aclose()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    with running(made):
        yield made


def to(receiver: Receiver, client: httpx.AsyncClient, *, allow_private: bool = True) -> http.Poster:
    return http.poster(receiver.url, client, clock, 5.0, allow_private)


async def fault(poster: http.Poster) -> DeliveryError:
    with pytest.raises(DeliveryError) as raised:
        await poster.post(b"{}", {})
    return raised.value


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_every_success_is_a_delivery(receiver: Receiver, client: httpx.AsyncClient, status: int) -> None:
    """Receivers may answer with any 2xx; the body arrives as JSON."""
    receiver.script = [(status, {})]
    await to(receiver, client).post(b'{"a":1}', {"webhook-id": "x"})
    ((headers, body),) = receiver.requests
    assert body == b'{"a":1}'
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_receiver_in_trouble_is_tried_again(receiver: Receiver, client: httpx.AsyncClient, status: int) -> None:
    """Overload and faults of the receiver pass."""
    receiver.script = [(status, {})]
    assert not (await fault(to(receiver, client))).permanent


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 410, 422])
async def test_a_refusal_is_permanent(receiver: Receiver, client: httpx.AsyncClient, status: int) -> None:
    """The same request would be refused again; redirects are not followed."""
    receiver.script = [(status, {"location": receiver.url})]
    assert (await fault(to(receiver, client))).permanent
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("wish", "seconds"),
    [
        ("120", 120.0),
        (format_datetime(datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(datetime.fromtimestamp(NOW, UTC) - timedelta(seconds=90), usegmt=True), 0.0),
        ("soon", None),
        ("-5", None),
    ],
)
async def test_the_receivers_wish_is_read(
    receiver: Receiver, client: httpx.AsyncClient, wish: str, seconds: float | None
) -> None:
    """Retry-After is a number of seconds or a date; anything else is ignored."""
    receiver.script = [(503, {"retry-after": wish})]
    assert (await fault(to(receiver, client))).retry_after == seconds


async def test_a_receiver_that_is_down_is_tried_again(client: httpx.AsyncClient) -> None:
    """A refused connection passes, and the message does not hold the URL."""
    gone = Receiver()
    gone.server_close()
    error = await fault(to(gone, client))
    assert not error.permanent
    assert "secret-path" not in str(error)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a01:203",
        "2002:a01:203::1",
    ],
)
def test_an_inside_address_is_not_public(address: str) -> None:
    """Loopback, private, link-local, shared and multicast addresses, also inside IPv6 forms of IPv4."""
    assert not http.is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_outside_address_is_public(address: str) -> None:
    """Receivers on the Internet can be reached over both families."""
    assert http.is_public(address)


async def test_nothing_goes_to_a_private_address_unless_allowed(receiver: Receiver, client: httpx.AsyncClient) -> None:
    """Loopback is refused for good, before a connection is made."""
    assert (await fault(to(receiver, client, allow_private=False))).permanent
    assert receiver.requests == []


async def test_a_name_with_one_private_address_is_refused(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public address beside a private one does not help."""

    def resolve(*arguments: object, **named: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    poster = http.poster("http://receiver.test/", client, clock, 5.0, False)
    assert (await fault(poster)).permanent


async def test_a_name_that_does_not_resolve_is_tried_again(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers come back."""

    def resolve(*arguments: object, **named: object) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    poster = http.poster("http://receiver.test/", client, clock, 5.0, False)
    assert not (await fault(poster)).permanent


async def test_the_connection_goes_to_the_address_that_was_checked(
    receiver: Receiver, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is not resolved a second time, is still told to the receiver, and a dead address is passed over."""

    async def checked(url: httpx.URL) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(http, "_public_addresses", checked)
    url = f"http://receiver.test:{receiver.server_port}/hook"
    await http.poster(url, client, clock, 5.0, False).post(b"{}", {})
    ((headers, _),) = receiver.requests
    assert headers["host"] == f"receiver.test:{receiver.server_port}"


@pytest.mark.parametrize("url", ["", "receiver.test/hook", "ftp://receiver.test/", "http://", "http://[::1/"])
async def test_an_unusable_url_stops_the_start(client: httpx.AsyncClient, url: str) -> None:
    """A fault in the settings is told when the sender is made, without the URL in the message."""
    with pytest.raises(BadInput):
        http.poster(url, client, clock, 5.0, False)


async def test_a_recovery_webhook_is_signed_anew_at_every_try(receiver: Receiver, client: httpx.AsyncClient) -> None:
    """Id and body stay, timestamp and signature follow the clock, and the public library accepts them."""
    times = iter([NOW, NOW + 7.9])
    sender = RecoveryWebhook(receiver.url, SECRET, client, lambda: next(times), allow_private=True)
    for _ in range(2):
        await sender.send(outbox_message())
    (first, body), (second, _) = receiver.requests
    assert first["webhook-id"] == second["webhook-id"] == outbox_message().key
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1800000000", "1800000007")
    moment = datetime.fromtimestamp(NOW, UTC)
    assert first["webhook-signature"] == Webhook(SECRET).sign(outbox_message().key, moment, body.decode())
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_a"])
async def test_an_unusable_secret_stops_the_start(client: httpx.AsyncClient, secret: str) -> None:
    """No webhook is ever sent with an empty or broken key."""
    with pytest.raises(BadInput):
        RecoveryWebhook("http://receiver.test/", secret, client, clock)


async def test_a_slack_alert_is_posted_as_a_message(
    receiver: Receiver, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Its title is the text of the message, and the URL, which is the secret, is in no log."""
    alert = Alert(AlertKind.FAILURE, "i", "llm-7b attempt 1 failed: gpu_lost", "llm-7b", 1)
    with caplog.at_level(logging.INFO):
        await SlackWebhook(receiver.url, client, clock, allow_private=True).post(alert, None, "")
    ((_, body),) = receiver.requests
    assert orjson.loads(body)["text"] == alert.title
    assert "secret-path" not in caplog.text

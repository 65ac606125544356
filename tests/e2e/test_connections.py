"""What a client may cost before anybody knows who it is: bytes, time and connections, at the real server."""

import gzip
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from diagnoser.processes import KEEP_ALIVE_SECONDS
from tests.e2e.service import Service, diagnosis_of, service, until

TOKEN = "0123456789abcdef-write"
GIVE_UP_SECONDS = 180.0
"""A test fails when the server has not closed a connection by then; a slow machine may take long."""


@contextmanager
def started(folder: Path, **settings: str) -> Iterator[Service]:
    with service(folder, DIAGNOSER_TOKENS=f"admin:{TOKEN}", **settings) as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a token and settings that nobody changed, for all tests that need no others."""
    with started(tmp_path_factory.mktemp("guarded")) as running:
        yield running


def connected(running: Service, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=GIVE_UP_SECONDS)
    connection.sendall(data)
    return connection


def until_closed(connection: socket.socket) -> bytes:
    """Everything that the server said before it closed the connection. Fails when it leaves it open."""
    heard = b""
    with connection:
        try:
            while data := connection.recv(65536):
                heard += data
        except ConnectionResetError:  # it closed while bytes of ours were on their way
            pass
    return heard


def get(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ", id="one header without an end"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-", id="a name without an end"),
        pytest.param(b"GET /", id="a path without an end"),
        pytest.param(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
            id="a trailer without an end",
        ),
        pytest.param(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            id="a chunk extension without an end",
        ),
    ],
)
def test_a_head_without_an_end_is_refused(guarded: Service, begin: bytes) -> None:
    """Whatever grows without an end before or beside a body: the server closes after some megabytes at most."""
    sent = 0
    connection = connected(guarded, begin)
    try:
        while sent < 150 << 20:
            connection.sendall(b"a" * 65536)
            sent += 65536
    except (ConnectionResetError, BrokenPipeError):
        pass
    until_closed(connection)
    assert sent < 32 << 20  # what the sockets of both sides hold
    assert httpx.get(f"{guarded.url}/livez").status_code == 200


def test_a_large_head_is_told_what_is_wrong(guarded: Service) -> None:
    """Complete, but of too many small headers, or of one large one: 431. 60 KB of headers still pass."""
    many = {f"X-{number}": "v" * 100 for number in range(605)}
    for headers in (many, {"X-Long": "v" * 66_000}):
        answer = until_closed(connected(guarded, get("/livez", Host="localhost", **headers)))
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"65536 bytes" in answer
    assert httpx.get(f"{guarded.url}/livez", headers={"X-Long": "v" * 60_000}).status_code == 200


def test_half_open_requests_do_not_live_on(tmp_path: Path) -> None:
    """400 clients that never finish their headers, one byte at a time or in silence, are told so and let go."""
    with started(tmp_path, DIAGNOSER_REQUEST_HEAD_SECONDS="2") as running, ExitStack() as stack:
        half = get("/livez", Host="localhost")[:-2]
        silent = [connected(running, half) for _ in range(400)]
        dripping = stack.enter_context(closing(connected(running, half)))
        assert httpx.get(f"{running.url}/livez", timeout=GIVE_UP_SECONDS).status_code == 200
        assert all(until_closed(one).startswith(b"HTTP/1.1 408 ") for one in silent)
        assert until(lambda: _drip(dripping), "the dripping client is let go", GIVE_UP_SECONDS)
        assert until_closed(connected(running)) == b""


def _drip(connection: socket.socket) -> bool:
    """Sends one byte of a header more; whether the server had enough of it."""
    try:
        connection.sendall(b"a")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_a_slow_head_on_a_used_connection_is_let_go_too(tmp_path: Path) -> None:
    """The second request of a connection has the same time as the first, blank lines before it included."""
    with started(tmp_path, DIAGNOSER_REQUEST_HEAD_SECONDS="1") as running:
        heard = until_closed(connected(running, get("/livez", Host="localhost") + b"GET /livez HTTP/1.1\r\nHo"))
        assert re.findall(rb"HTTP/1.1 (\d+) ", heard) == [b"200", b"408"]
        connection = connected(running, get("/livez", Host="localhost"))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        connection.sendall(b"\r\n\r\n")
        assert b"HTTP/1.1 " not in until_closed(connection)


def test_an_idle_connection_outlives_the_pauses_of_shippers(tmp_path: Path) -> None:
    """Shippers flush, and proxies keep connections, for up to a minute: ours does not close after uvicorn's own 5
    seconds."""
    assert KEEP_ALIVE_SECONDS > 60
    with started(tmp_path) as running, closing(connected(running)) as connection:
        for _ in range(2):
            connection.sendall(get("/livez", Host="localhost"))
            answer = b""
            while not answer.endswith(b'{"status":"alive"}'):  # head and body may come apart
                answer += connection.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            time.sleep(6)


def test_idle_connections_make_room(tmp_path: Path) -> None:
    """Beyond the bound the connection that has waited longest is closed; the newest is served."""
    limits = {"DIAGNOSER_MAX_CONNECTIONS": "20", "DIAGNOSER_REQUEST_HEAD_SECONDS": "3600"}
    with started(tmp_path, **limits) as running, ExitStack() as stack:
        idle = [stack.enter_context(closing(connected(running, b"GET /livez HT"))) for _ in range(60)]
        assert httpx.get(f"{running.url}/livez", timeout=GIVE_UP_SECONDS).status_code == 200
        assert [until_closed(one) for one in idle[:40]] == [b""] * 40


def test_a_flood_of_busy_connections_gets_503(tmp_path: Path) -> None:
    """Where no connection can be closed without loss, the newest is told to come again."""
    stream = get("/api/v1/live", Host="localhost", Authorization=f"Bearer {TOKEN}")
    with started(tmp_path, DIAGNOSER_MAX_CONNECTIONS="5") as running, ExitStack() as stack:
        assert running.client
        running.client.close()
        for _ in range(5):
            busy = stack.enter_context(closing(connected(running, stream)))
            assert busy.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert until_closed(connected(running)).startswith(b"HTTP/1.1 503 ")


def test_websockets_are_not_spoken(guarded: Service) -> None:
    """A request to change the protocol is answered as an ordinary one: there is no way around the bounds."""
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AA==",
        "Sec-WebSocket-Version": "13",
    }
    with closing(connected(guarded, get("/livez", Host="localhost", **upgrade))) as one:
        assert one.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_head_request_is_answered_as_a_get_without_its_body(guarded: Service) -> None:
    """What watches a site often asks so; what needs a token needs it here as well."""
    asked = ("/readyz", 200), ("/login", 200), ("/api/v1/jobs", 401), ("/api/v1/logs", 405)
    for path, status in asked:
        answer = httpx.head(guarded.url + path)
        assert (answer.status_code, answer.content) == (status, b"")
    asking = get("/readyz", Host="127.0.0.1", Connection="close").replace(b"GET", b"HEAD", 1)
    heard = until_closed(connected(guarded, asking))
    assert heard.endswith(b"\r\n\r\n")
    assert re.search(rb"content-length: [1-9]", heard)


def test_nobody_reads_without_a_token(guarded: Service) -> None:
    """Every page and every document but health and static files asks for one, the API's description included."""
    paths = ["/", "/rules", "/docs", "/recovery", "/openapi.json", "/metrics", "/api/v1/diagnoses", "/api/v1/rules"]
    assert {path: httpx.get(guarded.url + path).status_code for path in paths} == dict.fromkeys(paths, 401)
    with httpx.Client(base_url=guarded.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
        assert client.get("/openapi.json").json()["info"]["title"] == "diagnoser"
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert httpx.get(guarded.url + path).status_code in (401, 404)


def test_a_rebound_name_reaches_nothing(tmp_path: Path) -> None:
    """Without tokens a page whose name was pointed at this machine can neither read nor approve; the message says which
    setting to change. Addresses, loopback names and the name of the base URL work.
    """
    names = {
        "localhost": 200,
        "LOCALHOST.": 200,
        "127.0.0.1": 200,
        "[::1]": 200,
        "10.1.2.3": 200,
        "diagnoser.example": 200,
    }
    names |= {"evil.example": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "": 421}
    with service(tmp_path, DIAGNOSER_BASE_URL="https://Diagnoser.example/") as running:
        client = running.start()
        for name, status in names.items():
            for port in ("", f":{running.port}"):
                assert client.get("/", headers={"Host": name + port}).status_code == status, name
        refused = client.post("/api/v1/plans/x/approve", json={"by": "me"}, headers={"Host": "evil.example"})
        assert refused.status_code == 421
        assert refused.headers["content-type"] == "application/problem+json"
        assert "DIAGNOSER_ALLOWED_HOSTS" in refused.json()["detail"]
        for lines in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
            with closing(connected(running, b"GET /livez HTTP/1.1\r\n" + lines + b"\r\n")) as connection:
                assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        assert until_closed(connected(running, b"GET /livez HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


def test_names_are_free_where_tokens_are_asked_for(guarded: Service) -> None:
    """Agents, probes and proxies of a cluster call the service by names that nobody listed: a token protects it."""
    for name in ("diagnoser", "diagnoser.default.svc.cluster.local", "10.1.2.3"):
        assert httpx.get(f"{guarded.url}/livez", headers={"Host": name}).status_code == 200
        assert httpx.get(f"{guarded.url}/api/v1/plans", headers={"Host": name}).status_code == 401


def test_empty_lines_of_a_small_body_are_bounded(standing: Service) -> None:
    """20 MB of newlines in 20 KB of gzip are refused before a line is made; two millions of them are each counted."""
    gzipped = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    client = standing.client
    assert client is not None
    refused = client.post("/api/v1/logs?job=empty", content=gzip.compress(b"\n" * (20 << 20)), headers=gzipped)
    assert refused.status_code == 413
    assert "2000000 lines" in refused.json()["detail"]
    body = gzip.compress(b"\n" * 1_999_999 + b"KeyError: 'width'\n")
    assert client.post("/api/v1/logs?job=empty&offset=0", content=body, headers=gzipped).status_code == 204
    client.post("/api/v1/jobs/empty/events", json={"kind": "exit", "code": 1}).raise_for_status()
    found = diagnosis_of(client, "empty", lines=2_000_000)
    assert found["compression"]["lines_in"] == 2_000_000
    assert found["root_cause"]["line"] == 2_000_000


def test_90_000_nodes_are_registered(standing: Service) -> None:
    """A job of the largest size is taken in one request, and again, with another partition, in the next."""
    nodes = [f"gpu-{number:05d}" for number in range(90_000)]
    job = {"id": "large", "nodes": nodes, "rank_nodes": dict(enumerate(nodes)), "labels": {"partition": "a"}}
    client = standing.client
    assert client is not None
    for partition in ("a", "b"):
        answer = client.post("/api/v1/jobs", json=job | {"labels": {"partition": partition}})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["nodes"]) == len(answer.json()["rank_nodes"]) == 90_000


@pytest.mark.parametrize("path", ["/api/v1/logs?job=j", "/loki/api/v1/push"])
def test_a_sender_that_hangs_up_costs_one_line_of_log(guarded: Service, path: str) -> None:
    """It goes in the middle of its body: that is no failure of the service, and no traceback is worth it."""
    before = len(guarded.log().splitlines())
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"
    with connected(guarded, head.encode() + b'{"job": ') as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the body is being read
    until(lambda: "client_hung_up" in "\n".join(guarded.log().splitlines()[before:]), "the service has seen it go")
    assert guarded.process is not None and guarded.process.poll() is None
    said = guarded.log().splitlines()[before:]
    assert len(said) == 1, said

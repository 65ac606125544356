"""The example of a reverse proxy, as nginx itself reads it."""

import os
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import service, until
from tests.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "diagnoser.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

TOKEN = "0123456789abcdef"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx absent: apt-get install nginx-light")


class Replica(ThreadingHTTPServer):
    """Answers with its own port and refuses the first ``refusals`` requests."""

    def __init__(self, refusals: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.refusals = refusals
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answer(BaseHTTPRequestHandler):
    server: Replica

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refuses, self.server.refusals = self.server.refusals > 0, max(0, self.server.refusals - 1)
        self.send_response(503 if refuses else 200)
        body = str(self.server.server_port).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """port: with TLS; plain: without. trusted: what its certificate is checked with."""

    port: int
    plain: int
    trusted: ssl.SSLContext

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"https://localhost:{self.port}", timeout=60, verify=self.trusted)


@contextmanager
def proxied(folder: Path, replicas: Sequence[int]) -> Iterator[Proxy]:
    """nginx with the example as it is, but for ports, here those of ``replicas``, and the place of its certificate."""
    assert NGINX
    port, plain = free_port(), free_port()
    request = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    files = ("-keyout", "key.pem", "-out", "certificate.pem", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(("openssl", *request, *files), cwd=folder, check=True, capture_output=True)
    text = EXAMPLE.read_text()
    for old, replica in zip(("8321", "8322"), replicas, strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{replica}")
    for old, new in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("/etc/ssl/diagnoser.pem", f"{folder}/certificate.pem"),
        ("/etc/ssl/diagnoser.key", f"{folder}/key.pem"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    main = folder / "nginx.conf"
    places = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log off; {places} include {folder}/site.conf; }}\n"
    )
    command = [NGINX, "-p", str(folder), "-c", str(main)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert (checked.returncode, re.findall(r"\[(?:warn|emerg)\].*", checked.stderr)) == (0, []), checked.stderr
    found = Proxy(port, plain, ssl.create_default_context(cafile=folder / "certificate.pem"))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with found.client() as client:
            until(lambda: process.poll() is not None or answers(client), "nginx answers")
        assert process.poll() is None, (folder / "error.log").read_text()
        yield found
    finally:
        process.terminate()
        process.wait(timeout=180)


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    found = [Replica(), Replica()]
    yield found
    for replica in found:
        replica.shutdown()
        replica.server_close()


def test_the_example_sends_a_job_to_one_replica_and_past_one_that_is_away(
    tmp_path: Path, replicas: list[Replica]
) -> None:
    """Logs by query, events and pages by path; jobs are spread; after a 503 the other replica gets the same body."""
    with proxied(tmp_path, ports(replicas)) as proxy, proxy.client() as client:
        by_job = {job: client.post(f"/api/v1/logs?job={job}", content=b"x").text for job in map(str, range(20))}
        assert set(by_job.values()) == {str(replica.server_port) for replica in replicas}
        for job, replica_port in by_job.items():
            assert client.post(f"/api/v1/jobs/{job}/events", content=b"{}").text == replica_port
            assert client.get(f"/jobs/{job}/attempts/1/hang").text == replica_port
            assert client.get(f"/jobs/{job}/attempts/1/log/live").text == replica_port
            assert client.post(f"/api/v1/logs?rank=3&job={job}", content=b"x").text == replica_port
        for replica in replicas:
            replica.refusals = 1
            (job, *_) = [job for job, at in by_job.items() if at == str(replica.server_port)]
            answer = client.post(f"/api/v1/logs?job={job}", content=b"x")
            assert (answer.status_code, answer.text != by_job[job]) == (200, True)


def test_the_example_takes_nothing_without_tls(tmp_path: Path, replicas: list[Replica]) -> None:
    """A token that came in the clear is not led on to where it works; over TLS, browsers are told to stay."""
    with proxied(tmp_path, ports(replicas)) as proxy, proxy.client() as client:
        token = {"authorization": "Bearer secret"}
        answer = httpx.get(f"http://127.0.0.1:{proxy.plain}/api/v1/diagnoses", headers=token)
        assert (answer.status_code, "location" in answer.headers) == (400, False)
        assert "max-age" in client.get("/").headers["strict-transport-security"]
        assert "/" not in client.get("/").headers["server"]


def test_the_service_behind_the_example_sees_who_calls(tmp_path: Path) -> None:
    """The address of the client, and not that of nginx nor what the client says of itself; and live streams arrive."""
    with service(tmp_path, DIAGNOSER_TOKENS=f"admin:{TOKEN}") as server:
        server.start()
        with proxied(tmp_path, [server.port] * 2) as proxy:
            way = httpx.HTTPTransport(local_address="127.0.0.2", verify=proxy.trusted)
            headers = {"authorization": f"Bearer {TOKEN}", "x-forwarded-for": "203.0.113.9"}
            with httpx.Client(base_url=f"https://localhost:{proxy.port}", transport=way, headers=headers) as client:
                client.post("/api/v1/jobs", json={"id": "j", "nodes": ["n"]}).raise_for_status()
                [entry] = client.get("/api/v1/audit").raise_for_status().json()["items"]
                assert entry["address"] == "127.0.0.2"
                with client.stream("GET", "/api/v1/live") as live:
                    assert next(live.iter_lines()).startswith(":")


def ports(replicas: Sequence[Replica]) -> list[int]:
    return [replica.server_port for replica in replicas]


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False

"""The example of a reverse proxy, as nginx itself reads it."""

import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import free_port, until

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "diagnoser.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

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


def test_the_example_sends_a_job_to_one_replica_and_past_one_that_is_away(tmp_path: Path) -> None:
    """Logs by query, events and pages by path; jobs are spread; after a 503 the other replica gets the same body."""
    assert NGINX
    replicas, port = [Replica(), Replica()], free_port()
    text = EXAMPLE.read_text().replace("127.0.0.1:8320", f"127.0.0.1:{port}")
    for old, replica in zip(("8321", "8322"), replicas, strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{replica.server_port}")
    (tmp_path / "site.conf").write_text(text)
    main = tmp_path / "nginx.conf"
    places = " ".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log off; {places} include {tmp_path}/site.conf; }}\n"
    )
    process = subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", str(main)], stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until(lambda: process.poll() is not None or answers(client), "nginx answers")
            assert process.poll() is None, (tmp_path / "error.log").read_text()
            by_job = {job: client.post(f"/api/v1/logs?job={job}", content=b"x").text for job in map(str, range(20))}
            assert set(by_job.values()) == {str(replica.server_port) for replica in replicas}
            for job, replica_port in by_job.items():
                assert client.post(f"/api/v1/jobs/{job}/events", content=b"{}").text == replica_port
                assert client.get(f"/jobs/{job}/attempts/1/hang").text == replica_port
                assert client.post(f"/api/v1/logs?rank=3&job={job}", content=b"x").text == replica_port
            for replica in replicas:
                replica.refusals = 1
                (job, *_) = [job for job, at in by_job.items() if at == str(replica.server_port)]
                answer = client.post(f"/api/v1/logs?job={job}", content=b"x")
                assert (answer.status_code, answer.text != by_job[job]) == (200, True)
    finally:
        process.terminate()
        process.wait(timeout=60)
        for replica in replicas:
            replica.shutdown()
            replica.server_close()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False

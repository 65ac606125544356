"""The service speaks https by itself, and a person who was made on the command line signs in there."""

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import preloaded
from tests.certificates import write_certificate
from tests.e2e.service import until
from tests.ports import free_port

PASSWORD = "correct horse battery"


def diagnoser(folder: Path, *arguments: str, given: str = "") -> str:
    """What a command prints."""
    command = [str(preloaded.program_folder() / "diagnoser"), *arguments]
    environment = os.environ | {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/test.db", "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def served(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client that trusts the service's certificate and no other."""
    certificate, key = write_certificate(tmp_path)
    port = free_port()
    diagnoser(tmp_path, "users", "add", "maria", "--role", "admin", given=PASSWORD + "\n")
    flags = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--port", str(port)]
    environment = os.environ | {"DIAGNOSER_DATABASE_URL": f"sqlite:///{tmp_path}/test.db"}
    process = preloaded.Preloaded(["serve", *flags], environment, tmp_path / "service.log")
    trusted = ssl.create_default_context(cafile=str(certificate))
    try:
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
            until(lambda: _is_ready(client, process), "the service is ready")
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def _is_ready(client: httpx.Client, process: preloaded.Program) -> bool:
    assert process.poll() is None
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_a_person_signs_in_over_https(served: httpx.Client, tmp_path: Path) -> None:
    """The cookie is kept to https; what was done is in the audit log, that of the command line included."""
    form = {"name": "maria", "password": PASSWORD}
    answer = served.post("/login", data=form, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-diagnoser_session=") and "secure" in cookie.lower()
    assert ">maria</a>" in served.get("/jobs").text
    written = [json.loads(line) for line in diagnoser(tmp_path, "audit", "--json").splitlines()]
    assert [(entry["action"], entry["actor_kind"]) for entry in written] == [
        ("POST /login", "person"),
        ("diagnoser users add", "command"),
    ]
    diagnoser(tmp_path, "users", "disable", "maria")
    assert served.get("/api/v1/diagnoses").status_code == 401


def test_plain_http_gets_no_answer_there(served: httpx.Client) -> None:
    """So that no token is ever read off the wire."""
    with pytest.raises(httpx.TransportError):
        httpx.get(str(served.base_url).replace("https", "http") + "/livez")

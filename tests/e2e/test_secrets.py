"""Secrets of the settings and of requests, each a word that is found again: in no log line, page, answer or metric."""

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

import httpx

from diagnoser.config.settings import FROM_FILES, Settings
from tests import preloaded
from tests.conftest import NOWHERE
from tests.e2e.service import DEMO_LOG, Service, diagnosis_of, send, service, until
from tests.ports import free_port
from tests.thorough import diagonal

SERVER = NOWHERE.removeprefix("http://")


def canary(name: str) -> str:
    """A word that stands for the secret ``name``, as long as secrets are."""
    return f"Canary-{name.replace('_', '-')}-0123456789"


def address(name: str, path: str = "") -> str:
    """A server that is not there, with a password."""
    return f"http://user:{canary(name)}@{SERVER}{path}"


SECRET = {
    "tokens": f"admin:{canary('tokens')}",
    "redis_url": f"redis://:{canary('redis_url')}@{SERVER}/0",
    "llm_api_key": canary("llm_api_key"),
    "webhook_secret": "whsec_" + base64.b64encode(canary("webhook_secret").encode()).decode(),
    "slack_url": f"{NOWHERE}/services/{canary('slack_url')}",
    "slack_token": f"xoxb-{canary('slack_token')}",
    "slack_signing_secret": canary("slack_signing_secret"),
    "apprise_urls": f"pager=json://user:{canary('apprise_urls')}@{SERVER}",
    "prometheus_token": canary("prometheus_token"),
    "line_source_authorization": f"Bearer {canary('line_source_authorization')}",
    "oidc_client_secret": canary("oidc_client_secret"),
}
"""Of each secret setting but the database's, for which there is a test of its own."""
ADDRESSES = {
    "llm_url": address("llm_url", "/v1"),
    "embedding_url": address("embedding_url", "/v1"),
    "webhook_url": address("webhook_url", f"/hook?key={canary('webhook_key')}"),
    "alertmanager_url": address("alertmanager_url"),
    "prometheus_url": address("prometheus_url"),
    "slack_api_url": address("slack_api_url", "/api/"),
}
"""No secrets by themselves, but people write passwords into them."""
ORDINARY = {
    "llm_model": "m",
    "embedding_model": "m",
    "slack_channel": "C1",
    "slack_operators": "U1",
    "allow_private_targets": "true",
    "log_level": "debug",
    "llm_deadline_seconds": "5",
    "oidc_issuer": NOWHERE,
    "oidc_client_id": "diagnoser",
    "oidc_default_role": "viewer",
    "base_url": "http://127.0.0.1:8321",
}
HEADERS = {
    "authorization": f"Bearer {canary('bearer')}",
    "proxy-authorization": f"Bearer {canary('proxy')}",
    "cookie": f"session={canary('cookie')}",
    "x-api-key": canary("x_api_key"),
    "x-slack-signature": canary("signature"),
}
CANARIES = {value for name in (*SECRET, *ADDRESSES, "webhook_key") for value in (canary(name),)}
CANARIES |= {canary(name) for name in ("bearer", "basic", "proxy", "cookie", "x_api_key", "signature", "query", "form")}


def environment(given: dict[str, str]) -> dict[str, str]:
    return {f"DIAGNOSER_{name.upper()}": value for name, value in given.items()}


def _forms(word: str) -> set[str]:
    encoded = {base64.b64encode(f"{before}{word}".encode()).decode().rstrip("=") for before in ("", ":", "user:")}
    return {word, quote(word, safe=""), *encoded}


FORMS = {word: _forms(word) for word in CANARIES}
"""Each canary as it is, and as a header or an address would carry it."""


def found_in(text: str) -> set[str]:
    """Canaries in a text, in any form."""
    return {word for word, forms in FORMS.items() if any(form in text for form in forms)}


def test_there_is_a_canary_for_each_secret_setting() -> None:
    """A new one has to be added here; of the addresses, those that may have a password in them."""
    assert set(SECRET) | {"database_url"} == FROM_FILES
    urls = {name for name in Settings.model_fields if name.endswith("_url")}
    assert urls - set(SECRET) - set(ADDRESSES) == {"base_url", "database_url"}


def _requests(client: httpx.Client) -> list[httpx.Response]:
    """Each route and method that the API tells of and the pages, with a right token, and in turn with a wrong one or a
    wrong password."""
    right = {"authorization": f"Bearer {canary('tokens')}"}
    wrong = [HEADERS, HEADERS | {"authorization": "Basic " + base64.b64encode(f":{canary('basic')}".encode()).decode()}]
    kept = {name: HEADERS[name] for name in ("cookie", "x-api-key")}
    paths = client.get("/openapi.json", headers=right).json()["paths"]
    pages = ("/", "/jobs", "/nodes", "/diagnoses", "/accuracy", "/rules", "/unplaced", "/plans", "/metrics", "/readyz")
    asked = [("get", page) for page in pages] + [(method, path) for path, some in paths.items() for method in some]
    answers = []
    for place, (method, path) in enumerate(asked):
        if path.endswith("/live") or path == "/api/v1/plans/claim":
            continue  # these wait for news
        where = path.replace("{id}", "j").replace("{attempt}", "1").replace("{", "").replace("}", "")
        for headers in (right | kept, *diagonal(wrong, place, 2)):
            body = b'{"token": "%s", broken' % canary("form").encode() if method != "get" else None
            query = {"token": canary("query"), "access_token": canary("query")}
            headers = headers | {"content-type": "application/json"}
            answers.append(client.request(method.upper(), where, headers=headers, params=query, content=body))
    return answers


def test_no_secret_of_settings_or_requests_is_told(tmp_path: Path) -> None:
    """While Redis, the model, the chat and the receivers are away, and every route is asked, rightly and wrongly."""
    with service(tmp_path, **environment({**SECRET, **ADDRESSES, **ORDINARY})) as running:
        client = _started(running)
        lines = DEMO_LOG.read_bytes().splitlines(keepends=True)
        client.headers["authorization"] = f"Bearer {canary('tokens')}"
        send(client, lines, 0, len(lines))
        assert client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).status_code == 200
        made = diagnosis_of(client, lines=len(lines))
        until(lambda: "Error" in running.log() or "error" in running.log(), "something that was away is told of")
        shown = [client.get(path) for path in ("/", f"/diagnoses/{made['id']}", "/metrics", "/readyz", "/jobs/j")]
        del client.headers["authorization"]
        shown += _requests(client)
        assert {200, 303, 400} <= {answer.status_code for answer in shown}
        for answer in shown:
            told = answer.text + json.dumps(dict(answer.headers))
            # the way to the sign-in leads back to the address that this visitor asked for, query and all
            asked_for = {canary("query")} if answer.status_code == 303 else set()
            assert found_in(told) <= asked_for, f"{answer.request.method} {answer.request.url.path}"
        running.stop()
        for line in running.log().splitlines():
            assert found_in(line) == set(), line


def _started(running: Service) -> httpx.Client:
    running.start()
    assert running.client is not None
    return running.client


def test_the_databases_password_is_not_told(tmp_path: Path) -> None:
    """By a service that can not reach it, nor by a command that can not; from the environment or from a file."""
    url = f"postgresql://diagnoser:{canary('tokens')}@127.0.0.1:{free_port()}/diagnoser"
    (tmp_path / "url").write_text(url)
    base = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    plain, filed = {"DIAGNOSER_DATABASE_URL": url}, {"DIAGNOSER_DATABASE_URL_FILE": str(tmp_path / "url")}
    for given, words in ((plain, ["serve", "--port", "0"]), (filed, ["db", "check"]), (filed, ["token", "list"])):
        done = preloaded.run(words, base | given)
        told = done.stdout + done.stderr
        assert (done.returncode, found_in(told)) == (1, set()), told
        assert told


def test_a_setting_that_does_not_hold_is_not_repeated() -> None:
    """A fault names the setting and not its value, which may be a secret in the wrong place."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    faulty = {name: canary("tokens") for name in environment(dict.fromkeys(Settings.model_fields, ""))}
    done = preloaded.run(["serve"], base | faulty)
    assert (done.returncode, found_in(done.stdout + done.stderr)) == (1, set()), done.stderr
    assert "DIAGNOSER_PORT" in done.stderr

"""The configurations of deploy/shippers: where the program is at hand, it looks at its own itself; what the others
would send is sent."""

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import httpx
import orjson
import pytest
import yaml
import zstandard

from diagnoser.ingest.protocols.protobuf_wire import encoded
from tests.e2e.service import Service, diagnosis_of, service
from tests.integration.shippers.failing_run import BROKEN, NODE, FailingRun
from tests.integration.shippers.programs import (
    CONFIGS,
    OTELCOL,
    RSYSLOG,
    RSYSLOG_NODE,
    SYSLOG_NG,
    SYSLOG_NG_NODE,
    Program,
    Shipper,
)
from tests.integration.shippers.test_restart import PERSON, SETTINGS, TOKEN, check_diagnosis

TIME = "2026-11-18T03:00:00.000Z"


PROGRAMS = [OTELCOL, RSYSLOG, RSYSLOG_NODE, SYSLOG_NG, SYSLOG_NG_NODE]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.config)
def test_the_program_accepts_its_configuration(tmp_path: Path, program: Program) -> None:
    """Without a word of an error or a warning."""
    if program.missing:
        pytest.skip(program.missing)
    shipper = Shipper(program, tmp_path, "127.0.0.1:9", TOKEN, tmp_path / "training", NODE)
    shipper.write_config()
    verdict = shipper.check()
    assert verdict.returncode == 0, verdict.stderr
    assert not re.search(r"(?i)\b(error|warning)\b", verdict.stderr), verdict.stderr


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, httpx.Client]]:
    """A service with the mapping of the examples."""
    with service(tmp_path_factory.mktemp("service"), **SETTINGS) as process:
        client = process.start()
        client.headers.update(PERSON)
        yield process, client


def fluent_bit(lines: dict[str, list[str]], address: str) -> httpx.Request:
    """A chunk of the output http, format json."""
    (output,) = _yaml("fluent-bit.yaml")["pipeline"]["outputs"]
    (tail,) = _yaml("fluent-bit.yaml")["pipeline"]["inputs"]
    assert (output["name"], output["format"], output["compress"]) == ("http", "json", "gzip")
    records = [
        {output["json_date_key"]: TIME, tail["path_key"]: path, "log": line, "host.name": NODE}
        for path, texts in lines.items()
        for line in texts
    ]
    name, _, value = output["header"].partition(" ")
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", name: value}
    assert f"{output['host']}:{output['port']}" == "diagnoser:8321"
    return httpx.Request("POST", f"http://{address}{output['uri']}", content=_gzip(records), headers=headers)


def vector(lines: dict[str, list[str]], address: str) -> httpx.Request:
    """A batch of the sink http, records one per line."""
    config = _yaml("vector.yaml")
    source, sink = config["sources"]["training"], config["sinks"]["diagnoser"]
    assert (source["file_key"], source["host_key"]) == ("log.file.path", "host.name")
    assert (sink["encoding"]["codec"], sink["framing"]["method"]) == ("json", "newline_delimited")
    rows = [
        orjson.dumps(
            {
                "host": {"name": NODE},
                "log": {"file": {"path": path}},
                "message": line,
                "source_type": "file",
                "timestamp": TIME,
            }
        )
        for path, texts in lines.items()
        for line in texts
    ]
    headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": sink["compression"]}
    headers["Authorization"] = f"Bearer {sink['auth']['token']}"
    return httpx.Request("POST", _here(sink["uri"], address), content=_zstd(b"\n".join(rows)), headers=headers)


def alloy(lines: dict[str, list[str]], address: str) -> httpx.Request:
    """A push of loki.write: protobuf in snappy, the file's name and the host's as labels."""
    text = (CONFIGS / "config.alloy").read_text()
    url, token = (_setting(text, name) for name in ("url", "bearer_token"))
    assert '"host_name" = constants.hostname' in text
    stamp = encoded(1, encoded(1, 1_790_000_000))
    push = b"".join(
        encoded(
            1,
            encoded(1, f'{{filename="{path}", host_name="{NODE}"}}'.encode())
            + b"".join(encoded(2, stamp + encoded(2, line.encode())) for line in texts),
        )
        for path, texts in lines.items()
    )
    headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {token}"}
    body = bytes(cramjam.snappy.compress_raw(push))
    return httpx.Request("POST", _here(url, address), content=body, headers=headers)


def filebeat(lines: dict[str, list[str]], address: str) -> httpx.Request:
    """A bulk request of output.elasticsearch, which has asked for version and licence before."""
    output = _yaml("filebeat.yml")["output.elasticsearch"]
    (host,) = output["hosts"]
    documents = [
        {
            "@timestamp": TIME,
            "log": {"offset": 88 * number, "file": {"path": path, "device_id": "2049", "inode": "1835"}},
            "message": line,
            "input": {"type": "filestream"},
            "ecs": {"version": "8.0.0"},
            "host": {"name": NODE},
            "agent": {"id": "6f1c", "name": NODE, "type": "filebeat", "version": "8.17.0", "ephemeral_id": "a11"},
        }
        for path, texts in lines.items()
        for number, line in enumerate(texts)
    ]
    return _bulk(_here(host, address), documents, output["index"], (output["username"], output["password"]))


def logstash(lines: dict[str, list[str]], address: str) -> httpx.Request:
    """A bulk request of the output elasticsearch."""
    text = (CONFIGS / "logstash.conf").read_text()
    settings = dict(re.findall(r'(\w+) => \[?"?([^"\]\n]+)"?\]?', text))
    documents = [
        {
            "@timestamp": TIME,
            "@version": "1",
            "message": line,
            "event": {"original": line},
            "host": {"name": NODE},
            "log": {"file": {"path": path}},
        }
        for path, texts in lines.items()
        for line in texts
    ]
    login = settings["user"], settings["password"]
    return _bulk(_here(settings["hosts"], address), documents, settings["index"], login)


@pytest.mark.parametrize(
    "request_of", [fluent_bit, vector, alloy, filebeat, logstash], ids=lambda shipper: shipper.__name__
)
def test_what_the_configured_output_sends_is_placed_and_diagnosed(
    running: tuple[Service, httpx.Client],
    tmp_path: Path,
    request_of: Callable[[dict[str, list[str]], str], httpx.Request],
) -> None:
    """Job and rank come from the path by the mapping, the node from the host, and the run is diagnosed with both."""
    process, client = running
    job = request_of.__name__.replace("_", "-")
    run = FailingRun(tmp_path)
    run.begin()
    run.fail()
    lines = {
        f"/var/log/training/{job}/rank-{rank}.log": run.path(rank).read_text().splitlines() for rank in (4, BROKEN)
    }
    request = request_of(lines, f"127.0.0.1:{process.port}")
    answer = client.send(request)
    assert answer.status_code in (200, 204), answer.text
    if answer.content:
        assert answer.json()["errors"] is False, answer.text
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    found = diagnosis_of(client, job, sum(map(len, lines.values())))
    check_diagnosis(found)


def test_the_other_configurations_are_well_formed() -> None:
    """Each names the address and the token as all do, and those in YAML can be read."""
    texts = {path.name: path.read_text() for path in CONFIGS.iterdir() if path.suffix != ".md"}
    assert {name for name in texts if name.endswith((".yaml", ".yml"))} == {
        "fluent-bit.yaml", "fluent-bit-node.yaml", "vector.yaml", "vector-node.yaml", "otelcol.yaml",
        "otelcol-node.yaml", "otelcol-queue.yaml", "filebeat.yml", "filebeat-node.yml", "mapping.yaml"
    }  # fmt: skip
    for name in set(texts) - {"mapping.yaml", "otelcol-queue.yaml"}:
        assert "dgn_" in texts[name], name
        assert "diagnoser" in texts[name], name
    for name in ("config.alloy", "config-node.alloy", "logstash.conf"):
        plain = re.sub(r'"[^"\n]*"|//[^\n]*|#[^\n]*', "", texts[name])
        assert plain.count("{") == plain.count("}"), name
    queue = _yaml("otelcol-queue.yaml")
    assert queue["service"]["extensions"] == list(queue["extensions"])


def _yaml(name: str) -> dict[str, Any]:
    text = (CONFIGS / name).read_text().replace("dgn_TOKEN", TOKEN)
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def _setting(text: str, name: str) -> str:
    found = re.search(rf'{name} += "([^"]+)"', text)
    assert found, name
    return found[1].replace("dgn_TOKEN", TOKEN)


def _here(url: str, address: str) -> str:
    assert "//diagnoser:8321" in url
    return url.replace("diagnoser:8321", address)


def _gzip(content: Any) -> bytes:
    return gzip.compress(orjson.dumps(content))


def _zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def _bulk(url: str, documents: list[dict[str, Any]], index: str, login: tuple[str, str]) -> httpx.Request:
    """After what its clients ask first; they send nothing to a server that answers otherwise."""
    login = login[0], login[1].replace("dgn_TOKEN", TOKEN)
    with httpx.Client(auth=login) as asking:
        greeting, licence = asking.get(url), asking.get(f"{url}/_license")
    assert greeting.headers["x-elastic-product"] == "Elasticsearch"
    assert int(greeting.json()["version"]["number"].split(".")[0]) >= 8
    assert licence.json()["license"]["status"] == "active"
    action = orjson.dumps({"create": {"_index": index}})
    body = b"".join(action + b"\n" + orjson.dumps(document) + b"\n" for document in documents)
    request = httpx.Request("POST", f"{url}/_bulk", content=body, headers={"Content-Type": "application/x-ndjson"})
    return next(httpx.BasicAuth(*login).auth_flow(request))


def test_configurations_for_nodes_read_the_kernels_own_records() -> None:
    """Each asks journald for its transport and its facility, with the token of an agent."""
    names = ("fluent-bit-node.yaml", "vector-node.yaml", "otelcol-node.yaml", "filebeat-node.yml", "config-node.alloy")
    for name in names:
        text = (CONFIGS / name).read_text()
        assert re.search(r"_TRANSPORT[=: \[]+kernel", text), name
        assert re.search(r'SYSLOG_FACILITY[=: \["]+0', text), name
        assert "dgn_AGENT" in text, name
        assert "dgn_TOKEN" not in text, name

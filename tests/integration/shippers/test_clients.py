"""Client libraries, each in its own interpreter: they believe that they talk to what they were made for."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import Service, diagnosis_of, service
from tests.environments import SHIPPERS
from tests.integration.shippers.failing_run import BROKEN, NODE, FailingRun
from tests.integration.shippers.test_restart import PERSON, SETTINGS, TOKEN, check_diagnosis

pytestmark = pytest.mark.skipif(bool(SHIPPERS.missing), reason=SHIPPERS.missing)

ELASTICSEARCH = """
import sys
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

path, address, token, job, node = sys.argv[1:]
client = Elasticsearch(f"http://{address}/elasticsearch", basic_auth=("client", token))
assert client.info()["version"]["number"]
documents = (
    {"_op_type": "create", "message": line, "job": job, "rank": 5, "host": {"name": node}}
    for line in open(path).read().splitlines()
)
done, errors = bulk(client, documents, index="training", chunk_size=20)
print(done, errors)
"""

LOKI = """
import logging, sys
from logging_loki import LokiHandler

path, address, token, job, node = sys.argv[1:]
tags = {"job": job, "rank": "5", "host": node}
handler = LokiHandler(f"http://{address}/loki/api/v1/push", tags=tags, auth=("client", token), version="1")
handler.handleError = lambda record: sys.exit("refused")
for line in open(path).read().splitlines():
    handler.emit(logging.makeLogRecord({"name": "train", "msg": line, "levelname": "INFO"}))
"""
OTLP = """
import logging, sys
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

path, address, token, job, node = sys.argv[1:]
exporter = OTLPLogExporter(f"http://{address}/v1/logs", headers={"Authorization": f"Bearer {token}"})
provider = LoggerProvider(Resource({"job": job, "rank": 5, "host.name": node}))
provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
logger = provider.get_logger("train")
for line in open(path).read().splitlines():
    logger.emit(LogRecord(body=line, severity_number=SeverityNumber.INFO))
provider.shutdown()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, httpx.Client]]:
    with service(tmp_path_factory.mktemp("service"), **SETTINGS) as process:
        client = process.start()
        client.headers.update(PERSON)
        yield process, client


@pytest.mark.parametrize(("job", "script"), [("by-elasticsearch", ELASTICSEARCH), ("by-loki", LOKI), ("by-otlp", OTLP)])
def test_a_client_library_sends_a_run_that_is_diagnosed(
    running: tuple[Service, httpx.Client], tmp_path: Path, job: str, script: str
) -> None:
    """Its own checks of the server pass, no line is reported as failed, and rank and node come out."""
    process, client = running
    run = FailingRun(tmp_path)
    run.begin()
    run.fail()
    arguments = (run.path(BROKEN), f"127.0.0.1:{process.port}", TOKEN, job, NODE)
    sent = subprocess.run(
        [SHIPPERS.python, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert (sent.returncode, sent.stderr) == (0, ""), sent.stderr
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    check_diagnosis(diagnosis_of(client, job, run.path(BROKEN).read_text().count("\n")))

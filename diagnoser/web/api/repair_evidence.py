"""What a repair would have destroyed: agents send what a node says of itself, and people take it away as one file.

A node's log tells of the jobs of all, so it is for those who see the whole service. Text is masked when it arrives,
and so are the dumps when they leave; flight recorders leave as what they show.
"""

import asyncio
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import Annotated

import orjson
from fastapi.responses import Response
from pydantic import Field, StrictInt

from diagnoser.hang.report import contract
from diagnoser.model import AttemptKey, EvidenceKind, RuntimeFile
from diagnoser.model.errors import NotFound
from diagnoser.model.nodes import NodeSnapshot, SnapshotPart
from diagnoser.redaction.redact import Redact, masked, masked_lines
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.params import JobPath, Node
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import AGENT, READ, Caller
from diagnoser.web.http.dependencies import Core, Intake, Logs
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, StrictSchema

OUTPUT_CHARS = 4 << 20
_TEXTS = (EvidenceKind.STACKS, EvidenceKind.RAS, EvidenceKind.ACTIVITY)
"""Kinds of dumps that are text."""
_MISSING = ".missing.txt"
"""End of the name of what a node did not give: the file holds why, and what came before a command took too long."""

router = ApiRouter("evidence")


class SnapshotPartBody(StrictSchema):
    """Output of one command on the node."""

    id: str = Field(pattern=r"^[a-z0-9_]{1,60}$")
    exit_code: StrictInt | None = None
    output: str = Field(max_length=OUTPUT_CHARS)


class SnapshotBody(StrictSchema):
    node: Node
    parts: Annotated[list[SnapshotPartBody], Field(min_length=1, max_length=50)]


@router.post(
    "/jobs/{id}/attempts/{attempt}/node-snapshots",
    status_code=204,
    dependencies=AGENT,
    response_description="Stored",
    responses=answers(404),
    summary="Keep what a node says of itself",
)
async def send(
    id: JobPath,
    attempt: AttemptPath,
    body: SnapshotBody,
    core: Core,
    intake: Intake,
    caller: Caller,
) -> None:
    """Before a plan takes the node out: its kernel log, the state of its GPUs, counters. It proves nothing. A later one
    of the same node replaces it."""
    job = await intake.job_access.check(caller, id)
    outputs = await asyncio.to_thread(lambda: [masked_lines(part.output, core.redact) for part in body.parts])
    parts = [SnapshotPart(part.id, part.exit_code, text) for part, text in zip(body.parts, outputs, strict=True)]
    snapshot = NodeSnapshot(body.node, core.clock(), tuple(parts))
    await core.store.evidence.add_snapshot(AttemptKey(job, attempt), snapshot)


@router.get(
    "/jobs/{id}/attempts/{attempt}/evidence.tar",
    dependencies=READ,
    responses={
        200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}},
        **answers(404),
    },
    response_class=Response,
    summary="Download the evidence of an attempt",
)
async def download(id: JobPath, attempt: AttemptPath, core: Core, logs: Logs, caller: Caller) -> Response:
    """One tar for a vendor's ticket: what the nodes said before they were taken out, stacks and RAS answers of the
    ranks, and what their flight recorders show. Secrets are masked. 404 while there is nothing."""
    check_whole_service(caller)
    key, evidence = AttemptKey(id, attempt), core.store.evidence
    snapshots, files = await asyncio.gather(evidence.snapshots(key), evidence.runtime_files(key))
    shown = await logs.context.hang_report(key)
    report = contract(shown) if shown else None
    if not snapshots and not files:
        raise NotFound(f"no evidence of attempt {attempt} of {id!r} is kept")
    data = await asyncio.to_thread(_tar, _members(snapshots, files, report, core.redact), core.clock())
    disposition = {"content-disposition": f'attachment; filename="evidence-{attempt}.tar"'}
    return Response(data, media_type="application/x-tar", headers=disposition)


def _members(
    snapshots: Sequence[NodeSnapshot], files: Sequence[RuntimeFile], report: object, redact: Redact
) -> Iterator[tuple[str, str]]:
    """Give (name, text) of each file of the tar."""
    for snapshot in snapshots:
        folder = f"nodes/{_file_name(snapshot.node)}"
        for part in snapshot.parts:
            yield f"{folder}/{part.id}{_MISSING if part.exit_code is None else '.txt'}", part.output
    for file in files:
        if file.kind in _TEXTS:
            where = f"rank-{file.rank}" if file.rank >= 0 else file.node or "ranks"
            name = _file_name(f"{file.provenance}-{file.node or 'any'}-{where}.txt")
            yield f"ranks/{file.kind}/{name}", masked_lines(file.data.decode("utf-8", "replace"), redact)
    if report:
        yield "ranks/hang.json", orjson.dumps(masked(report, redact), option=orjson.OPT_INDENT_2).decode()


def _file_name(text: str) -> str:
    """A name of one file, whatever a node calls itself."""
    return re.sub(r"[^A-Za-z0-9_-](?=[^A-Za-z0-9_-])|[^A-Za-z0-9._-]|^\.", "_", text)


def _tar(members: Iterator[tuple[str, str]], now: float) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as tar:
        for name, text in members:
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"evidence/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return stored.getvalue()

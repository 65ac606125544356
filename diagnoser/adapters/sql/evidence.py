"""Dumps of the ranks of an attempt, and what agents are asked to collect about runs that may hang."""

from collections.abc import Sequence
from typing import Any

import zstandard
from sqlalchemy import RowMapping, and_, case, func, select, update

from diagnoser.adapters.sql.agent_requests import claim_requests
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new, put_rows
from diagnoser.adapters.sql.statements import of_attempt, pick, read_record, text_of
from diagnoser.adapters.sql.tables import attempts, evidence_requests, node_snapshots, runtime_files
from diagnoser.model import AttemptKey, EvidenceRequest, RuntimeFile
from diagnoser.model.errors import NotFound, TooLarge
from diagnoser.model.hangs import StoredFile
from diagnoser.model.nodes import NodeSnapshot, SnapshotParts
from diagnoser.model.record_json import RecordJson, fields_of

_REQUEST = RecordJson(EvidenceRequest)
_PARTS = RecordJson(SnapshotParts)
FILES_MOST, BYTES_MOST = 20_000, 256 << 20
"""Dumps of one attempt, and their bytes as they are stored, compressed."""


class EvidenceRepository(Repository):
    async def add_runtime_files(self, attempt: AttemptKey, files: Sequence[RuntimeFile], *, due: bool = True) -> None:
        """Of each kind, rank, node and provenance the newest is kept. due: the attempt becomes due again at once, also
        one that is checked for silence. Raises NotFound for an unknown attempt, TooLarge beyond the limits.

        The row of the attempt is locked first: requests that run beside each other see what the others stored.
        """
        rows = [_file_row(attempt, file) for file in files]
        newest = max((file.received for file in files), default=0.0)
        mine = of_attempt(attempts, attempt)
        news = {
            "revision": attempts.c.revision + 1,
            "dirty": case((attempts.c.revision == attempts.c.diagnosed, newest), else_=attempts.c.dirty),
            "lease": case((attempts.c.token == "", 0.0), else_=attempts.c.lease),
        }
        locked = update(attempts).where(mine).values(news if due else {"revision": attempts.c.revision})
        async with self._db.writing() as connection:
            if not (await connection.execute(locked)).rowcount:
                raise NotFound(f"job {attempt.job!r} has no attempt {attempt.number}")
            await put_rows(connection, runtime_files, rows)
            held = select(func.count(), func.sum(runtime_files.c.stored)).where(of_attempt(runtime_files, attempt))
            count, size = (await connection.execute(held)).one()
            if count > FILES_MOST or size > BYTES_MOST:
                raise TooLarge(
                    f"attempt {attempt.number} of {attempt.job} would hold {count} dumps of {size} bytes: "
                    f"at most {FILES_MOST} of {BYTES_MOST} are kept"
                )
            for row in rows:
                told = pick(row, ("kind", "rank", "node", "provenance", "size"))
                await note_change(connection, "attempt", f"{attempt.job}/{attempt.number}", None, {"dump": told})

    async def runtime_files(self, attempt: AttemptKey) -> list[RuntimeFile]:
        """By kind, rank, node."""
        row = runtime_files.c
        query = select(runtime_files).where(of_attempt(runtime_files, attempt)).order_by(row.kind, row.rank, row.node)
        return await self._db.rows(query, _file_of)

    async def list_runtime_files(self, attempt: AttemptKey) -> list[StoredFile]:
        row = runtime_files.c
        columns = (row.kind, row.rank, row.node, row.received, row.provenance, row.size.label("bytes"))
        query = select(*columns).where(of_attempt(runtime_files, attempt)).order_by(row.kind, row.rank, row.node)
        return await self._db.records(query, StoredFile)

    async def add_snapshot(self, attempt: AttemptKey, snapshot: NodeSnapshot) -> None:
        """Of each node the newest is kept. Raises NotFound for an unknown attempt."""
        data = zstandard.compress(_PARTS.dump(SnapshotParts(snapshot.parts)).encode())
        row = {"job": attempt.job, "attempt": attempt.number, "node": snapshot.node}
        row |= {"received": snapshot.received, "stored": len(data), "data": data}
        async with self._db.writing() as connection:
            if not (await connection.execute(select(attempts.c.job).where(of_attempt(attempts, attempt)))).first():
                raise NotFound(f"job {attempt.job!r} has no attempt {attempt.number}")
            await put_rows(connection, node_snapshots, [row])
            told = {"snapshot": snapshot.node, "bytes": len(data)}
            await note_change(connection, "attempt", f"{attempt.job}/{attempt.number}", None, told)

    async def snapshots(self, attempt: AttemptKey) -> list[NodeSnapshot]:
        """By node."""
        query = select(node_snapshots).where(of_attempt(node_snapshots, attempt)).order_by(node_snapshots.c.node)
        return await self._db.rows(query, _snapshot_of)

    async def nodes_with_snapshots(self, attempt: AttemptKey) -> list[str]:
        row = node_snapshots.c
        query = select(row.node).where(of_attempt(node_snapshots, attempt)).order_by(row.node)
        return await self._db.values(query, str)

    async def request(self, request: EvidenceRequest, not_before: float = 0.0) -> bool:
        """False when the same was asked for already: of one silence evidence is collected once.

        not_before: when agents may get it.
        """
        row = fields_of(request, ("id", "since", "cluster", "created"))
        row |= {"job": request.attempt.job, "attempt": request.attempt.number}
        row |= {"lease": not_before, "body": _REQUEST.dump(request)}
        async with self._db.writing() as connection:
            return bool(await insert_new(connection, evidence_requests, [row]))

    async def claim_requests(
        self, cluster: str, now: float, lease: float, oldest: float, limit: int
    ) -> list[EvidenceRequest]:
        """Requests of a cluster that nobody works on; an agent that dies loses them after ``lease`` seconds. Those made
        before ``oldest`` are over."""
        row = evidence_requests.c
        waiting = and_(row.cluster == cluster, row.result.is_(None), row.created >= oldest, row.lease <= now)
        return await claim_requests(self._db, evidence_requests, waiting, now + lease, limit, _REQUEST.load)

    async def finish_request(self, id: str, cluster: str, now: float, result: str) -> bool:
        """False when it is not known, or of another cluster. Idempotent."""
        row = evidence_requests.c
        mine = update(evidence_requests).where(row.id == id, row.cluster == cluster)
        async with self._db.writing() as connection:
            is_known = bool((await connection.execute(mine.values(result=result, lease=now))).rowcount)
            if is_known:
                await note_change(connection, "evidence request", id, None, {"result": result})
            return is_known

    async def requests(self, attempt: AttemptKey) -> list[tuple[EvidenceRequest, str]]:
        """The newest first, each with what came of it, "" while it is open."""
        row = evidence_requests.c
        query = select(row.body, row.result).where(of_attempt(evidence_requests, attempt)).order_by(row.created.desc())
        return await self._db.rows(query, _request_of)


def _snapshot_of(row: RowMapping) -> NodeSnapshot:
    parts = _PARTS.load(zstandard.decompress(bytes(row["data"]))).parts
    return NodeSnapshot(row["node"], row["received"], parts)


def _request_of(row: RowMapping) -> tuple[EvidenceRequest, str]:
    return _REQUEST.load(row["body"]), text_of(row, "result")


def _file_row(attempt: AttemptKey, file: RuntimeFile) -> dict[str, Any]:
    data = zstandard.compress(file.data, level=1)
    row = fields_of(file, ("kind", "rank", "node", "provenance", "received"))
    sizes = {"size": len(file.data), "stored": len(data)}
    return row | sizes | {"job": attempt.job, "attempt": attempt.number, "data": data}


def _file_of(row: RowMapping) -> RuntimeFile:
    return read_record(RuntimeFile, row, data=zstandard.decompress(bytes(row["data"])))

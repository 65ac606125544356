"""Tries to sign in, by account and by address, and wrong tokens by address: a row for each, with the last times."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import orjson
from sqlalchemy import Connection, case, select, update

from diagnoser.adapters.sql.database import Repository, insert
from diagnoser.adapters.sql.tables import login_tries

_ROW = login_tries.c


class LoginTryRepository(Repository):
    """Tries to sign in, and wrong tokens, counted by all replicas together.

    A key is an account or an address: only its hash is kept. Rows are locked in one order, so that replicas never
    wait for each other in a circle.
    """

    async def count(self, tries: Mapping[str, int], now: float, window: float) -> float:
        """Count a try for each key, unless one of them had its number of tries within the last ``window`` seconds:
        then none is counted. However many come at once, no more than that number are. Seconds to wait, 0.0 for none."""
        most = {_hash(key): count for key, count in tries.items()}
        async with self._db.reading() as connection:  # what is refused writes nothing, however often it comes
            rows = await connection.execute(select(_ROW.key, _ROW.times).where(_ROW.key.in_(most)))
            known = {row.key: orjson.loads(row.times) for row in rows}
        if wait := _wait(known, most, now, window):
            return wait

        def work(connection: Connection) -> float:
            found = {key: _locked(connection, key, now) for key in sorted(most)}
            wait = _wait(found, most, now, window)
            if not wait:
                for key, times in found.items():
                    _store(connection, key, sorted([*times, now])[-most[key] :])
            return wait

        return await self._db.write(work)

    async def uncount(self, keys: Iterable[str], counted: float) -> None:
        """Take back the try that was counted at that time."""
        hashes = sorted(map(_hash, keys))

        def work(connection: Connection) -> None:
            for key in hashes:
                times = _locked(connection, key, counted)
                if counted in times:
                    times.remove(counted)
                    _store(connection, key, times)

        await self._db.write(work)

    async def drop(self, before: float, limit: int) -> int:
        return await self._db.drop_rows(select(_ROW.key).where(_ROW.last < before).order_by(_ROW.last), limit, _ROW.key)


def _locked(connection: Connection, key: str, now: float) -> list[float]:
    """Times of the last tries. The row is made where there is none, and is this transaction's until its end."""
    statement = insert(connection, login_tries).values(key=key, times="[]", last=now)
    newer = case((statement.excluded.last > _ROW.last, statement.excluded.last), else_=_ROW.last)
    upsert = statement.on_conflict_do_update(index_elements=["key"], set_={"last": newer})
    times: list[float] = orjson.loads(connection.execute(upsert.returning(_ROW.times)).scalar_one())
    return times


def _wait(times: Mapping[str, Sequence[float]], most: Mapping[str, int], now: float, window: float) -> float:
    """Until the oldest of the last tries of each key is out of the window."""
    full = (tried[0] + window - now for key, tried in times.items() if len(tried) >= most[key])
    return max([0.0, *full])


def _store(connection: Connection, key: str, times: Sequence[float]) -> None:
    connection.execute(update(login_tries).where(_ROW.key == key).values(times=orjson.dumps(times).decode()))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()

"""Accounts of people, and the sessions of their browsers by the hash of their cookies."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert, insert_new
from diagnoser.adapters.sql.statements import pick
from diagnoser.adapters.sql.tables import login_tries, sessions, users
from diagnoser.model.errors import Conflict, Denied, NotFound, existing
from diagnoser.model.people import MOST_FIRST, Identity, Role, Session, User, UserChange

_USER = tuple(field.name for field in fields(User))
_SESSION = tuple(field.name for field in fields(Session))


def _changed(user: User, change: UserChange, now: float) -> User:
    """A user who is disabled once more stays so since the first time."""
    changed = replace(user, role=change.role or user.role)
    if change.disabled is None:
        return changed
    return replace(changed, disabled=(user.disabled or now) if change.disabled else None)


class UserRepository(Repository):
    async def add(self, user: User, password: str) -> None:
        """password: its hash. Raises Conflict when the name is taken: history names it, also when it is disabled."""
        async with self._db.writing() as connection:
            if not await insert_new(connection, users, [_row(user, password)]):
                raise Conflict(f"there is, or was, a user {user.name!r}: choose another name")
            await note_change(connection, "user", user.name, None, user)

    async def list_all(self) -> list[User]:
        """All of them, by name."""
        return await self._db.rows(select(users).order_by(users.c.name), _user)

    async def has_users(self) -> bool:
        """Whether there is any account, disabled ones included."""
        return await self._db.any(select(users.c.name).limit(1))

    async def find_with_password(self, name: str) -> tuple[User, str] | None:
        """The user with the hash of the password, "" for one of the identity provider."""
        async with self._db.reading() as connection:
            row = await _find(connection, users.c.name == name)
        return (_user(row), row["password"]) if row else None

    async def change(self, name: str, change: UserChange, now: float) -> User:
        """A new password, a lower role or a disabled account ends all sessions. Raises NotFound."""
        has_new_password = change.password is not None
        async with self._db.writing() as connection:
            row = existing(await _find(connection, users.c.name == name, lock=True), f"there is no user {name!r}")
            user = _user(row)
            if has_new_password and not user.is_local:
                raise Conflict(f"{name!r} signs in at {user.issuer}: there is no password here")
            changed = _changed(user, change, now)
            mine = update(users).where(users.c.name == name)
            await connection.execute(mine.values(_row(changed, change.password or row["password"])))
            is_less = MOST_FIRST.index(changed.role) > MOST_FIRST.index(user.role)
            if any((has_new_password, changed.disabled is not None, is_less)):
                await _end(connection, sessions.c.user == name, now)
            said = {"has_new_password": True} if has_new_password else {}
            await note_change(connection, "user", name, asdict(user), asdict(changed) | said)
        return changed

    async def renew_password(self, name: str, old: str, new: str) -> None:
        """Store another hash of the same password, unless it was changed meanwhile."""
        mine = update(users).where(users.c.name == name, users.c.password == old)
        await self._db.execute(mine.values(password=new))

    async def sign_in_identity(self, identity: Identity, now: float) -> User:
        """The account of that person, made or brought up to date. It keeps the name that it got first.

        Raises Conflict when somebody else has the name, Denied for an account that is disabled.
        """
        mine = and_(users.c.issuer == identity.issuer, users.c.subject == identity.subject)
        async with self._db.writing() as connection:
            row = await _find(connection, mine, lock=True)
            if row is None:
                user = User(identity.name, identity.role, now, identity.issuer, identity.subject)
                if not await insert_new(connection, users, [_row(user, "")]):
                    raise Conflict(
                        f"another account is called {identity.name!r} here: ask whoever runs diagnoser for its name"
                    )
                await note_change(connection, "user", user.name, None, user)
                return user
            user = _user(row)
            if user.disabled is not None:
                raise Denied(f"The account {user.name!r} is disabled.")
            if user.role is not identity.role:
                changed = replace(user, role=identity.role)
                await connection.execute(update(users).where(mine).values(role=changed.role.value))
                await note_change(connection, "user", user.name, user, changed)
                return changed
            return user

    async def add_session(self, session: Session) -> None:
        """A sign-in, noted with the user as well. Raises NotFound without the user."""
        async with self._db.writing() as connection:
            signed_in = update(users).where(users.c.name == session.user).values(last_sign_in=session.created)
            if not (await connection.execute(signed_in)).rowcount:
                raise NotFound(f"there is no user {session.user!r}")
            await connection.execute(sessions.insert(), asdict(session))
            await note_change(connection, "session", session.user, None, _told(session))

    async def session(self, hash: str) -> tuple[Session, User] | None:
        query = select(users, *(sessions.c[name].label(f"session_{name}") for name in _SESSION))
        query = query.join(sessions, sessions.c.user == users.c.name).where(sessions.c.hash == hash)
        row = await self._db.row(query)
        return (Session(**{name: row[f"session_{name}"] for name in _SESSION}), _user(row)) if row else None

    async def sessions(self, name: str) -> list[Session]:
        """Those that nobody has ended, the newest first."""
        row = sessions.c
        query = select(sessions).where(row.user == name, row.ended.is_(None)).order_by(row.created.desc(), row.hash)
        return await self._db.records(query, Session)

    async def record_session_use(self, hash: str, now: float) -> None:
        await self._db.execute(update(sessions).where(sessions.c.hash == hash).values(last_used=now))

    async def end_sessions(self, name: str, now: float, hash: str = "") -> int:
        """Sign out: the session with that hash, or all of the user; how many that were."""
        which = and_(sessions.c.user == name, sessions.c.hash == hash) if hash else sessions.c.user == name
        async with self._db.writing() as connection:
            count = await _end(connection, which, now)
            await note_change(connection, "session", name, {"signed_in": count}, {"signed_in": 0})
        return count

    async def has_signed_in(self, name: str, address: str, since: float) -> bool:
        row = sessions.c
        where = and_(row.user == name, row.address == address, row.created >= since)
        return await self._db.any(select(row.hash).where(where).limit(1))

    async def drop_sessions(self, before: float, limit: int) -> int:
        """Drop sessions that have expired before."""
        row = sessions.c
        return await self._db.drop_rows(
            select(row.hash).where(row.expires < before).order_by(row.expires), limit, row.hash
        )


async def _find(connection: AsyncConnection, which: ColumnElement[bool], *, lock: bool = False) -> RowMapping | None:
    query = select(users).where(which)
    return (await connection.execute(query.with_for_update() if lock else query)).mappings().first()


async def _end(connection: AsyncConnection, which: ColumnElement[bool], now: float) -> int:
    ending = update(sessions).where(which, sessions.c.ended.is_(None)).values(ended=now)
    return (await connection.execute(ending)).rowcount


def _row(user: User, password: str) -> dict[str, Any]:
    return asdict(user) | {"role": user.role.value, "password": password}


def _user(row: Mapping[str, Any] | RowMapping) -> User:
    return User(**pick(row, _USER) | {"role": Role(row["role"])})


def _told(session: Session) -> dict[str, Any]:
    """Without the hash: whoever reads the audit log is to learn nothing of a cookie."""
    return {"address": session.address, "browser": session.browser, "expires": session.expires}


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
            known = {row.key: _times(row.times, now, window) for row in rows}
        if wait := _wait(known, most, now, window):
            return wait

        def work(connection: Connection) -> float:
            found = {key: _times(_locked(connection, key, now), now, window) for key in sorted(most)}
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
                times = orjson.loads(_locked(connection, key, counted))
                if counted in times:
                    times.remove(counted)
                    _store(connection, key, times)

        await self._db.write(work)

    async def drop(self, before: float, limit: int) -> int:
        return await self._db.drop_rows(select(_ROW.key).where(_ROW.last < before).order_by(_ROW.last), limit, _ROW.key)


def _locked(connection: Connection, key: str, now: float) -> str:
    """Times of the last tries. The row is made where there is none, and is this transaction's until its end."""
    statement = insert(connection, login_tries).values(key=key, times="[]", last=now)
    newer = case((statement.excluded.last > _ROW.last, statement.excluded.last), else_=_ROW.last)
    upsert = statement.on_conflict_do_update(index_elements=["key"], set_={"last": newer})
    times: str = connection.execute(upsert.returning(_ROW.times)).scalar_one()
    return times


def _times(stored: str, now: float, window: float) -> list[float]:
    """Without those that a later clock noted, before it was set back: nobody is locked out until it has caught up."""
    return [time for time in orjson.loads(stored) if time < now + window]


def _wait(times: Mapping[str, Sequence[float]], most: Mapping[str, int], now: float, window: float) -> float:
    """Until the oldest of the last tries of each key is out of the window."""
    full = (tried[0] + window - now for key, tried in times.items() if len(tried) >= most[key])
    return max([0.0, *full])


def _store(connection: Connection, key: str, times: Sequence[float]) -> None:
    connection.execute(update(login_tries).where(_ROW.key == key).values(times=orjson.dumps(times).decode()))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()

"""Tokens, by the hash of their secrets."""

from dataclasses import fields

from sqlalchemy import RowMapping, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.statements import read_record, text_of
from diagnoser.adapters.sql.tables import tokens
from diagnoser.model.access import Credential, StoredToken
from diagnoser.model.errors import Conflict, existing
from diagnoser.model.record_json import fields_of

_FIELDS = tuple(field.name for field in fields(Credential))


class TokenRepository(Repository):
    async def add(self, token: StoredToken) -> None:
        """Raises Conflict when the name was given before, also to a token that is revoked: history names it."""
        credential = token.credential
        row = fields_of(credential, _FIELDS)
        row |= {"scope": credential.scope.value, "hash": token.hash}
        async with self._db.writing() as connection:
            if not await insert_new(connection, tokens, [row]):
                raise Conflict(f"there is, or was, a token {credential.name!r}: choose another name")
            await note_change(connection, "token", credential.name, None, credential)

    async def list_all(self) -> list[StoredToken]:
        """All of them, by name, with those that expired or were revoked."""
        return await self._db.rows(select(tokens).order_by(tokens.c.name), _token_of)

    async def rotate(self, name: str, hash: str, expires: float | None, now: float, overlap: float) -> Credential:
        """Give the token a new secret. The one before stays valid for ``overlap`` seconds, at most until it expires;
        one before that is not valid any more. Raises NotFound, and Conflict for a token that is revoked."""
        async with self._db.writing() as connection:
            token = await _find(connection, name)
            if token.credential.revoked is not None:
                raise Conflict(f"the token {name!r} is revoked: create another one")
            ends = [now + overlap, *([token.credential.expires] if token.credential.expires is not None else [])]
            changed = {
                "hash": hash,
                "created": now,
                "expires": expires,
                "last_used": None,
                "old_hash": token.hash,
                "old_until": min(ends),
                "old_used": token.credential.last_used,
            }
            await connection.execute(update(tokens).where(tokens.c.name == name).values(changed))
            rotated = (await _find(connection, name)).credential
            await note_change(connection, "token", name, token.credential, rotated)
            return rotated

    async def revoke(self, name: str, now: float) -> Credential:
        """Both of its secrets stop working; a second call changes nothing. Raises NotFound."""
        live = tokens.c.revoked.is_(None)
        async with self._db.writing() as connection:
            before = (await _find(connection, name)).credential
            await connection.execute(update(tokens).where(tokens.c.name == name, live).values(revoked=now))
            revoked = (await _find(connection, name)).credential
            await note_change(connection, "token", name, before, revoked)
            return revoked

    async def record_use(self, hash: str, now: float) -> None:
        async with self._db.writing() as connection:
            await connection.execute(update(tokens).where(tokens.c.hash == hash).values(last_used=now))
            await connection.execute(update(tokens).where(tokens.c.old_hash == hash).values(old_used=now))


async def _find(connection: AsyncConnection, name: str) -> StoredToken:
    """Raises NotFound."""
    query = select(tokens).where(tokens.c.name == name).with_for_update()
    row = existing((await connection.execute(query)).mappings().first(), f"there is no token {name!r}")
    return _token_of(row)


def _token_of(row: RowMapping) -> StoredToken:
    return StoredToken(
        read_record(Credential, row), row["hash"], text_of(row, "old_hash"), row["old_until"] or 0.0, row["old_used"]
    )

"""Tokens, as they are stored: by hash, never the secret."""

from typing import Protocol

from diagnoser.model.access import Credential, StoredToken


class TokenStore(Protocol):
    async def add_token(self, token: StoredToken) -> None:
        """Raises Conflict when the name was given before, also to a token that is revoked: history names it."""

    async def tokens(self) -> list[StoredToken]:
        """All of them, by name, with those that expired or were revoked."""

    async def rotate_token(self, name: str, hash: str, expires: float | None, now: float, overlap: float) -> Credential:
        """Give the token a new secret. The one before stays valid for ``overlap`` seconds, at most until it expires;
        one before that is not valid any more. Raises NotFound, and Conflict for a token that is revoked."""

    async def revoke_token(self, name: str, now: float) -> Credential:
        """Both of its secrets stop working; a second call changes nothing. Raises NotFound."""

    async def note_token_use(self, hash: str, now: float) -> None:
        """Its secret with this hash was used."""

"""Hashes of passwords: Argon2id, with the parameters that argon2-cffi recommends (RFC 9106); and secrets of tokens."""

import asyncio
import secrets
from functools import cached_property
from typing import TYPE_CHECKING

from diagnoser.model.access import TOKEN_PREFIX

if TYPE_CHECKING:
    import argon2


def new_secret() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


class Argon2Passwords:
    """Slow on purpose, and hungry for memory: hash and verify take tens of milliseconds in a thread of their own. The
    library is loaded with the first password: most requests never need it."""

    @cached_property
    def _hasher(self) -> "argon2.PasswordHasher":
        from argon2 import PasswordHasher

        return PasswordHasher()

    @cached_property
    def _nobody(self) -> str:
        """What the password of nobody is compared with: of a random text, and made with the same parameters."""
        return self._hasher.hash(secrets.token_urlsafe(32))

    async def hash(self, password: str) -> str:
        return await asyncio.to_thread(lambda: self._hasher.hash(password))

    async def verify(self, hash: str, password: str) -> bool:
        """hash: "" for somebody who has no password, which takes as long and is never right."""
        return await asyncio.to_thread(self._verify, hash, password)

    def is_outdated(self, hash: str) -> bool:
        """Whether it was made with weaker parameters than today's."""
        return self._hasher.check_needs_rehash(hash)

    def _verify(self, hash: str, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        try:
            self._hasher.verify(hash or self._nobody, password)
        except (VerificationError, InvalidHashError):
            return False
        return bool(hash)

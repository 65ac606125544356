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
    """``ports.PasswordHasher``. The library is loaded with the first password: most requests never need it."""

    def __init__(self, *, is_weak: bool = False) -> None:
        """is_weak: costs nothing and protects nothing, for tests."""
        self._is_weak = is_weak

    @cached_property
    def _hasher(self) -> "argon2.PasswordHasher":
        from argon2 import PasswordHasher

        return PasswordHasher(time_cost=1, memory_cost=64, parallelism=1) if self._is_weak else PasswordHasher()

    @cached_property
    def _nobody(self) -> str:
        """What the password of nobody is compared with: of a random text, and made with the same parameters."""
        return self._hasher.hash(secrets.token_urlsafe(32))

    async def hash(self, password: str) -> str:
        return await asyncio.to_thread(lambda: self._hasher.hash(password))

    async def verify(self, hash: str, password: str) -> bool:
        return await asyncio.to_thread(self._verify, hash, password)

    def is_outdated(self, hash: str) -> bool:
        return self._hasher.check_needs_rehash(hash)

    def _verify(self, hash: str, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        try:
            self._hasher.verify(hash or self._nobody, password)
        except (VerificationError, InvalidHashError):
            return False
        return bool(hash)

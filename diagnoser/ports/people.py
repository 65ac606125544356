"""The check of passwords, and the provider of identities."""

from typing import Protocol

from diagnoser.model.people import Identity


class PasswordHasher(Protocol):
    """Slow on purpose, and hungry for memory: both calls take tens of milliseconds in a thread of their own."""

    async def hash(self, password: str) -> str: ...

    async def verify(self, hash: str, password: str) -> bool:
        """hash: "" for somebody who has no password, which takes as long and is never right."""

    def is_outdated(self, hash: str) -> bool:
        """Whether it was made with weaker parameters than today's."""


class IdentityProvider(Protocol):
    """A provider of OpenID Connect. Raises Unavailable where it does not answer, Denied for what it says no to."""

    @property
    def name(self) -> str:
        """For people."""

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to sign in. verifier: of PKCE, which stays here."""

    async def identity(self, code: str, nonce: str, verifier: str, issuer: str) -> Identity:
        """Exchange the code for who signed in. issuer: what the answer named as its origin, "" where it named none.
        Raises Denied also for a person to whom the site gives no role."""

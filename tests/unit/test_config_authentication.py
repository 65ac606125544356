"""Tokens of the settings, and where the service may listen without any."""

import pytest
from pydantic import SecretStr

from diagnoser.config.authentication import check_bind_address, tokens
from diagnoser.config.settings import Settings
from diagnoser.model.access import Scope
from diagnoser.model.errors import BadInput


def with_tokens(text: str, host: str = "127.0.0.1") -> Settings:
    return Settings(tokens=SecretStr(text), host=host)


def test_tokens_are_read_with_their_scopes() -> None:
    """Each is named after its scope and its place in the list."""
    found = tokens(with_tokens(f" admin:{'a' * 16}, ingest:{'b:' * 8},"))
    assert [(token.name, token.scope, token.secret) for token in found] == [
        ("admin-1", Scope.ADMIN, "a" * 16),
        ("ingest-2", Scope.INGEST, "b:" * 8),
    ]


@pytest.mark.parametrize("text", ["short:secret", "admin:short", "aaaaaaaaaaaaaaaaaaaaaaaa", f"root:{'a' * 16}"])
def test_a_faulty_token_is_told_without_its_secret(text: str) -> None:
    """By its number: the message may end up in a log."""
    with pytest.raises(BadInput, match="token 1") as told:
        tokens(with_tokens(text))
    assert text.partition(":")[2] not in str(told.value) or not text.partition(":")[2]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_loopback_needs_no_tokens(host: str) -> None:
    """Whoever can connect is on this machine."""
    check_bind_address(with_tokens("", host), stored=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "diagnoser.example"])
def test_any_other_address_needs_them(host: str) -> None:
    """Stored ones or those of the settings."""
    with pytest.raises(BadInput, match="diagnoser token create"):
        check_bind_address(with_tokens("", host), stored=False)
    check_bind_address(with_tokens("", host), stored=True)
    check_bind_address(with_tokens(f"admin:{'a' * 16}", host), stored=False)

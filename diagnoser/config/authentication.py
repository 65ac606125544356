"""Authentication settings: bearer tokens, and the address that the service may listen on without them."""

import ipaddress

from diagnoser.config.settings import Settings
from diagnoser.model.access import Scope, Token
from diagnoser.model.errors import BadInput

SECRET_LENGTH = 16


def tokens(settings: Settings) -> tuple[Token, ...]:
    """The bearer tokens of the settings. Raises BadInput for a token without a scope or with a short secret."""
    entries = [part.strip() for part in settings.tokens.get_secret_value().split(",") if part.strip()]
    result = []
    for number, entry in enumerate(entries, 1):
        scope, _, secret = entry.partition(":")
        if scope not in set(Scope) or len(secret) < SECRET_LENGTH:
            scopes = ", ".join(f"{scope}:" for scope in Scope)
            raise BadInput(
                f"DIAGNOSER_TOKENS: token {number} must begin with one of {scopes} and have {SECRET_LENGTH} characters"
            )
        result.append(Token(f"{scope}-{number}", secret, Scope(scope)))
    return tuple(result)


def check_bind_address(settings: Settings) -> None:
    """Raises BadInput when the service would listen beyond loopback without tokens."""
    try:
        loopback = ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        loopback = settings.host == "localhost"
    if not loopback and not tokens(settings):
        raise BadInput(
            f"listening on {settings.host} needs DIAGNOSER_TOKENS: without tokens anybody could send and read logs"
        )

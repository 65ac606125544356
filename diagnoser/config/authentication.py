"""Who may come in: the tokens of the settings, and the address that the service listens on."""

import ipaddress

from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.web.dependencies import Scope, Token

SECRET_LENGTH = 16


def tokens(settings: Settings) -> tuple[Token, ...]:
    """The bearer tokens of the settings. Raises BadInput for one without a scope, or that is too short."""
    given = [part.strip() for part in settings.tokens.get_secret_value().split(",") if part.strip()]
    found = []
    for number, entry in enumerate(given, 1):
        scope, _, secret = entry.partition(":")
        if scope not in set(Scope) or len(secret) < SECRET_LENGTH:
            scopes = ", ".join(f"{one}:" for one in Scope)
            raise BadInput(
                f"DIAGNOSER_TOKENS: token {number} must begin with one of {scopes} and have {SECRET_LENGTH} characters"
            )
        found.append(Token(f"{scope}-{number}", secret, Scope(scope)))
    return tuple(found)


def check_bind_address(settings: Settings) -> None:
    """Raises BadInput when strangers could come in."""
    try:
        loopback = ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        loopback = settings.host == "localhost"
    if not loopback and not tokens(settings):
        raise BadInput(f"listening on {settings.host} needs DIAGNOSER_TOKENS: anybody there could send and read logs")

"""Authentication settings: bearer tokens, and the address that the service may listen on without them."""

import ipaddress

from diagnoser.config.settings import Settings, listed
from diagnoser.model.access import Scope, Token
from diagnoser.model.errors import BadInput

SECRET_LENGTH = 16


def tokens(settings: Settings) -> tuple[Token, ...]:
    """The bearer tokens of the settings. Raises BadInput for a token without a scope or with a short secret."""
    result = []
    for number, entry in enumerate(listed(settings.tokens.get_secret_value()), 1):
        scope, _, secret = entry.partition(":")
        if scope not in set(Scope) or len(secret) < SECRET_LENGTH:
            scopes = ", ".join(f"{scope}:" for scope in Scope)
            raise BadInput(
                f"DIAGNOSER_TOKENS: token {number} must begin with one of {scopes} and have {SECRET_LENGTH} characters"
            )
        result.append(Token(f"{scope}-{number}", secret, Scope(scope)))
    return tuple(result)


def is_loopback(host: str | None) -> bool:
    """host: None for an address that names none."""
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind_address(settings: Settings, *, stored: bool) -> None:
    """stored: whether the database holds tokens or users. Raises BadInput when the service would listen beyond loopback
    without either."""
    if is_loopback(settings.host):
        return
    if stored:
        return
    if not tokens(settings) and not settings.oidc_issuer:
        raise BadInput(
            f"listening on {settings.host} needs tokens (diagnoser token create, or DIAGNOSER_TOKENS) or users "
            "(diagnoser users add): without them anybody could send and read logs"
        )

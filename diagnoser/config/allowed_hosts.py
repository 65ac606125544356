"""The names that requests may call the service by, and the proxies that may say whom they come from."""

import re
from ipaddress import ip_network
from urllib.parse import urlsplit

from diagnoser.config.authentication import is_loopback
from diagnoser.config.settings import Settings, listed
from diagnoser.model.errors import BadInput

_PATTERN = re.compile(r"\*|(?:\*\.)?[^\s/:*]+")


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The names, in lower case; ``*`` for any. Raises BadInput for a name that no Host header could hold.

    A page of another site can give its own name the address of this service (DNS rebinding) and is then, for the
    browser, a page of this service. That is worth something only where no token is asked for: a browser does not send
    what it knows for this service to another name. So names are checked on loopback, where there may be no tokens, and
    service names that agents and probes use in a cluster work without being listed.
    """
    given = _given_names(settings.allowed_hosts)
    if settings.base_url and not settings.base_url.startswith(("http://", "https://")):
        raise BadInput(f"DIAGNOSER_BASE_URL: {settings.base_url!r} must begin with http:// or https://")
    own = frozenset({settings.host.lower(), urlsplit(settings.base_url).hostname or ""} - {""})
    if given:
        return given | own
    tokens = settings.tokens.get_secret_value().strip(" ,")
    if any((tokens, settings.oidc_issuer, not is_loopback(settings.host))):
        return frozenset({"*"})
    return own


def _given_names(setting: str) -> frozenset[str]:
    names = frozenset(name.lower().rstrip(".") for name in listed(setting))
    for name in names:
        if not _PATTERN.fullmatch(name):
            raise BadInput(f"DIAGNOSER_ALLOWED_HOSTS: {name!r} must be a name alone, '*.' and a name, or '*'")
    return names


def trusted_proxies(settings: Settings) -> list[str]:
    """Raises BadInput for a name: what is believed is the address that a connection comes from."""
    proxies = listed(settings.trusted_proxies)
    for entry in proxies:
        if entry == "*":
            continue
        try:
            ip_network(entry)
        except ValueError as error:
            raise BadInput(f"DIAGNOSER_TRUSTED_PROXIES: {error}") from None
    return proxies

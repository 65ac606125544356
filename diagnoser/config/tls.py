"""The certificate that the service itself speaks https with."""

import ssl

from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput, os_reason


def check_certificate(settings: Settings) -> None:
    """Raises BadInput for a certificate that cannot be used: better at the start than with the first request."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if (certificate, key) == (None, None):
        return
    if certificate is None or key is None:
        missing = "DIAGNOSER_TLS_KEY" if key is None else "DIAGNOSER_TLS_CERTIFICATE"
        raise BadInput(f"https needs both a certificate and its key: {missing} is missing")
    for file in (certificate, key):
        try:
            file.open("rb").close()
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {os_reason(error)}") from None
    try:
        # An empty password, so that a key that needs one is a fault and no question at the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(f"{certificate} and {key} are no certificate with its key: {error}") from None


def address(settings: Settings) -> str:
    """How the service is reached where nobody says otherwise."""
    scheme, host = "http", settings.host
    if settings.tls_certificate:
        scheme = "https"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{settings.port}"


def public_address(settings: Settings) -> str:
    """How people reach the service: what links begin with."""
    return settings.base_url.rstrip("/") or address(settings)

"""Where traces go, as the settings say."""

from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diagnoser.config.settings import Settings
from diagnoser.config.site_files import load_redactor
from diagnoser.model.errors import BadInput
from diagnoser.ports import Clock

if TYPE_CHECKING:
    from diagnoser.adapters.otlp import OtlpTraces


def open_traces(settings: Settings, clock: Clock) -> "OtlpTraces | None":
    """Open the traces; None where they are off. Raises BadInput."""
    if not settings.otlp_endpoint:
        return None
    check_endpoint(settings.otlp_endpoint)
    from diagnoser.adapters.otlp import OtlpTraces

    return OtlpTraces(settings.otlp_endpoint, version("diagnoser"), settings.role, clock, load_redactor(settings))


def check_endpoint(endpoint: str) -> None:
    """Raise BadInput for what is no address, or without the package that sends there."""
    if not _is_address(endpoint):
        raise BadInput("DIAGNOSER_OTLP_ENDPOINT must be http://host:port or https://host:port, usually of port 4318")
    try:
        import opentelemetry.exporter.otlp.proto.http  # noqa: F401
    except ImportError:
        raise BadInput("DIAGNOSER_OTLP_ENDPOINT: traces need OpenTelemetry's SDK: install diagnoser[otel]") from None


def _is_address(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        return False
    if port == 0:
        return False
    return url.scheme in ("http", "https") and url.hostname is not None

"""Properties of the Kafka client: from an operator's file and the command line, which wins."""

import stat
from collections.abc import Mapping
from pathlib import Path

from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput

OURS = ("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "partition.assignment.strategy")
"""What makes each message count once: not for a file to set."""

_SECRET_WORDS = ("password", "secret", "key.pem", "sasl.oauthbearer.config")


def properties(settings: Settings, *, brokers: str, group: str) -> dict[str, str | int]:
    """Properties of librdkafka. Raises BadInput; never shows a value.

    brokers: may be empty where the file names them.
    """
    merged: dict[str, str | int] = {}
    if settings.kafka_properties:
        merged.update(_read(settings.kafka_properties))
    if brokers:
        merged["bootstrap.servers"] = brokers
    if group:
        merged["group.id"] = group
    if not merged.get("bootstrap.servers"):
        raise BadInput("no brokers: name them with --brokers, or as bootstrap.servers in DIAGNOSER_KAFKA_PROPERTIES")
    return merged


def is_secret(name: str) -> bool:
    """Whether the value of this property must not be shown."""
    return any(word in name for word in _SECRET_WORDS)


def _read(path: Path) -> dict[str, str]:
    """A file as Kafka's own tools read it: blank lines and those that begin with # say nothing."""
    try:
        text, mode = path.read_text("utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"DIAGNOSER_KAFKA_PROPERTIES: {error}") from None
    result: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise BadInput(f"{path}:{number}: not name=value")
        result[name.strip()] = value.strip()
    _check(path, mode, result)
    return result


def _check(path: Path, mode: int, found: Mapping[str, str]) -> None:
    if mode & stat.S_IRWXO and any(map(is_secret, found)):
        raise BadInput(f"{path} holds a secret and everybody on this machine may read it: chmod o= {path}")
    if ours := [name for name in OURS if name in found]:
        raise BadInput(f"{path}: {', '.join(ours)} cannot be set: offsets are stored with the lines, in our database")

"""Properties of the Kafka client: where they come from, and what is refused."""

from pathlib import Path

import pytest

from diagnoser.config import kafka
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput


def written(folder: Path, text: str, mode: int = 0o600) -> Settings:
    file = folder / "client.properties"
    file.write_text(text)
    file.chmod(mode)
    return Settings(kafka_properties=file)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Each property once."""
    file = written(tmp_path, "# ours\n\nbootstrap.servers = a:1\nsasl.username=file\nsocket.keepalive.enable=true\n")
    assert kafka.properties(file, brokers="b:2", group="g") == {
        "bootstrap.servers": "b:2",
        "group.id": "g",
        "sasl.username": "file",
        "socket.keepalive.enable": "true",
    }
    assert kafka.properties(file, brokers="", group="g")["bootstrap.servers"] == "a:1"


def test_a_file_with_a_secret_is_not_for_everybody(tmp_path: Path) -> None:
    """Its owner and group may read it, as files of Kubernetes secrets have it."""
    secret = "bootstrap.servers=a:1\nsasl.password=a-very-secret-word\n"
    with pytest.raises(BadInput, match="chmod o=") as refused:
        kafka.properties(written(tmp_path, secret, 0o644), brokers="", group="g")
    assert "a-very-secret-word" not in str(refused.value)
    assert kafka.properties(written(tmp_path, secret, 0o640), brokers="", group="g")["sasl.password"]
    assert kafka.properties(written(tmp_path, "bootstrap.servers=a:1\n", 0o644), brokers="", group="g")


@pytest.mark.parametrize("name", kafka.OURS)
def test_what_makes_each_message_count_once_cannot_be_switched_off(tmp_path: Path, name: str) -> None:
    """The file may set everything else."""
    with pytest.raises(BadInput, match=name):
        kafka.properties(written(tmp_path, f"{name}=x\n"), brokers="a:1", group="g")


def test_what_is_missing_or_no_property_is_told(tmp_path: Path) -> None:
    """With the place, and without the line, which may hold a secret."""
    with pytest.raises(BadInput, match="no brokers"):
        kafka.properties(Settings(), brokers="", group="g")
    with pytest.raises(BadInput, match=r"client\.properties:2: not name=value$"):
        kafka.properties(written(tmp_path, "a=b\na-very-secret-word\n"), brokers="a:1", group="g")
    with pytest.raises(BadInput, match="DIAGNOSER_KAFKA_PROPERTIES"):
        kafka.properties(Settings(kafka_properties=tmp_path / "none"), brokers="a:1", group="g")


@pytest.mark.parametrize("properties", [{"no.such.property": "x"}, {"security.protocol": "a-very-secret-word"}])
def test_a_property_that_the_client_refuses_is_named_and_not_shown(properties: dict[str, str]) -> None:
    """Its message quotes the value."""
    adapter = pytest.importorskip("diagnoser.adapters.kafka", reason="pip install 'diagnoser[kafka]'")
    with pytest.raises(BadInput, match=next(iter(properties))) as refused:
        adapter.KafkaSource({"bootstrap.servers": "a:1", "group.id": "g", **properties}, "logs")
    assert "a-very-secret-word" not in str(refused.value)

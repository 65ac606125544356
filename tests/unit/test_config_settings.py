"""Settings from an environment."""

from pathlib import Path

import pytest

from diagnoser.config.allowed_hosts import allowed_hosts, trusted_proxies
from diagnoser.config.settings import Settings, load
from diagnoser.model.errors import BadInput


def test_defaults_are_safe() -> None:
    """With nothing set the service listens on loopback, stores in a file and acts on nothing."""
    settings = load({})
    assert settings.host == "127.0.0.1"
    assert settings.database_url.startswith("sqlite")
    assert settings.webhook_url == ""
    assert settings.recovery_mode == "policy"


def test_an_unknown_name_stops_the_start_and_suggests() -> None:
    """A typo is told with the nearest name instead of being ignored."""
    with pytest.raises(BadInput, match="did you mean DIAGNOSER_FATAL_DEBOUNCE_SECONDS"):
        load({"DIAGNOSER_FATAL_DEBOUNSE_SECONDS": "3"})


def test_all_faults_are_told_at_once() -> None:
    """Two wrong settings are both in the one message."""
    with pytest.raises(BadInput) as error:
        load({"DIAGNOSER_PORT": "x", "DIAGNOSER_CLAIM_LEASE_SECONDS": "-1"})
    assert "DIAGNOSER_PORT" in str(error.value)
    assert "DIAGNOSER_CLAIM_LEASE_SECONDS" in str(error.value)


def test_names_of_others_are_left_alone() -> None:
    """Only names with our prefix are read."""
    assert load({"PORT": "x", "HOME": "/root"}) == load({})


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    """DIAGNOSER_<SECRET>_FILE is read, stripped, and wins; it does not work for what is no secret."""
    path = tmp_path / "secret"
    path.write_text("whsec_abc\n")
    assert load({"DIAGNOSER_WEBHOOK_SECRET_FILE": str(path)}).webhook_secret.get_secret_value() == "whsec_abc"
    both = {"DIAGNOSER_DATABASE_URL": "sqlite:///image.db", "DIAGNOSER_DATABASE_URL_FILE": str(path)}
    assert load(both).database_url == "whsec_abc"
    with pytest.raises(BadInput, match="no such setting"):
        load({"DIAGNOSER_HOST_FILE": str(path)})


def test_secrets_do_not_show() -> None:
    """Printing the settings shows no secret."""
    settings = load({"DIAGNOSER_SLACK_URL": "https://chat.example/T0/very-secret", "DIAGNOSER_LLM_API_KEY": "k-12345"})
    assert "very-secret" not in repr(settings)
    assert "k-12345" not in repr(settings)


def test_every_setting_is_described() -> None:
    """Each field carries the sentence that docs/configuration.md shows."""
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, {"127.0.0.1"}),
        ({"DIAGNOSER_BASE_URL": "https://Logs.example:8443/x"}, {"127.0.0.1", "logs.example"}),
        ({"DIAGNOSER_TOKENS": "read:0123456789abcdef"}, {"*"}),
        (
            {"DIAGNOSER_TOKENS": "read:0123456789abcdef", "DIAGNOSER_ALLOWED_HOSTS": "A.example., *.svc"},
            {"127.0.0.1", "a.example", "*.svc"},
        ),
    ],
)
def test_names_are_checked_where_no_token_is_asked_for(environment: dict[str, str], names: set[str]) -> None:
    """Or where they are listed; the base URL's name and the address to listen on are always among them."""
    assert allowed_hosts(load(environment)) == names


@pytest.mark.parametrize("name", ["https://a.example", "a.example:80", "a.*.example", "**", "*example"])
def test_a_name_that_no_request_could_carry_stops_the_start(name: str) -> None:
    """It is told with the setting's name."""
    with pytest.raises(BadInput, match="DIAGNOSER_ALLOWED_HOSTS"):
        allowed_hosts(load({"DIAGNOSER_ALLOWED_HOSTS": name}))


def test_an_address_without_its_scheme_is_told() -> None:
    """Else links in alerts would lead nowhere."""
    with pytest.raises(BadInput, match="DIAGNOSER_BASE_URL"):
        allowed_hosts(load({"DIAGNOSER_BASE_URL": "diagnoser.example"}))


def test_proxies_are_addresses() -> None:
    """A name would be taken and never match: all people would share the proxy's address."""
    assert trusted_proxies(load({"DIAGNOSER_TRUSTED_PROXIES": "10.0.0.0/8, ::1,"})) == ["10.0.0.0/8", "::1"]
    assert trusted_proxies(load({"DIAGNOSER_TRUSTED_PROXIES": "*"})) == ["*"]
    with pytest.raises(BadInput, match="DIAGNOSER_TRUSTED_PROXIES: 'nginx'"):
        trusted_proxies(load({"DIAGNOSER_TRUSTED_PROXIES": "nginx"}))

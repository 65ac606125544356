"""The certificate of the service is looked at before anything starts."""

from pathlib import Path

import pytest

from diagnoser.config.settings import Settings
from diagnoser.config.tls import address, check_certificate
from diagnoser.model.errors import BadInput
from tests.certificates import write_certificate


def test_a_certificate_with_its_key_is_good(tmp_path: Path) -> None:
    """And so is none; the service's address says which it is."""
    certificate, key = write_certificate(tmp_path)
    settings = Settings(tls_certificate=certificate, tls_key=key, host="::1", port=443)
    check_certificate(settings)
    check_certificate(Settings())
    assert (address(settings), address(Settings())) == ("https://[::1]:443", "http://127.0.0.1:8321")


@pytest.mark.parametrize(
    ("certificate", "key", "fault"),
    [
        ("service.pem", None, "DIAGNOSER_TLS_KEY is missing"),
        (None, "service.key", "DIAGNOSER_TLS_CERTIFICATE is missing"),
        ("absent.pem", "service.key", "absent.pem cannot be read"),
        ("service.key", "service.pem", "no certificate with its key"),
        ("service.pem", "other/service.key", "no certificate with its key"),
        ("locked/service.pem", "locked/service.key", "no certificate with its key"),
    ],
)
def test_whatever_is_wrong_is_told(tmp_path: Path, certificate: str | None, key: str | None, fault: str) -> None:
    """One without the other, a file that is absent, the key of another certificate, one that asks for a password."""
    write_certificate(tmp_path)
    for name, password in (("other", ""), ("locked", "a password")):
        (tmp_path / name).mkdir()
        write_certificate(tmp_path / name, password)
    settings = Settings(
        tls_certificate=tmp_path / certificate if certificate else None, tls_key=tmp_path / key if key else None
    )
    with pytest.raises(BadInput, match=fault):
        check_certificate(settings)

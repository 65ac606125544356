"""A connection to the service, of agents and clients."""

import pytest
from structlog.testing import capture_logs

from diagnoser.integrations.http_api import connect


@pytest.mark.parametrize(
    ("url", "token", "warns"),
    [
        ("http://diagnoser:8321", "secret", True),
        ("http://192.0.2.1:8321", "secret", True),
        ("https://diagnoser.example", "secret", False),
        ("http://127.0.0.1:8321", "secret", False),
        ("http://[::1]:8321", "secret", False),
        ("http://localhost:8321", "secret", False),
        ("http://diagnoser:8321", "", False),
    ],
)
async def test_a_token_that_others_could_read_is_told(url: str, token: str, warns: bool) -> None:
    """Once, at the start; the warning does not hold it."""
    with capture_logs() as told:
        async with connect(url, token):
            pass
    assert [entry["event"] for entry in told] == (["token_unencrypted"] if warns else [])
    assert "secret" not in str(told)

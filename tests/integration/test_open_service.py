"""A service without tokens whose plans may act."""

import asyncio
from pathlib import Path
from typing import Literal

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from diagnoser import app
from diagnoser.config.settings import Settings
from tests.rule_files import ANALYZER


async def started(folder: Path, mode: Literal["policy", "observe", "act"], tokens: str) -> tuple[list[str], object]:
    """(events of its log, the part ``access`` of its health)."""
    settings = Settings(database_url=f"sqlite:///{folder}/test.db", recovery_mode=mode, tokens=SecretStr(tokens))
    with capture_logs() as logged:
        async with app.running(settings, asyncio.Event()) as served:
            transport = httpx.ASGITransport(served)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                ready = await client.get("/readyz")
    assert ready.status_code == 200, ready.text
    return [entry["event"] for entry in logged], ready.json()["parts"].get("access")


@pytest.mark.parametrize(
    ("mode", "tokens", "warns", "ready"),
    [
        ("act", "", True, False),
        ("act", f"admin:{'a' * 16}", False, True),
        ("observe", "", False, None),
        ("policy", "", False, None),
    ],
)
async def test_who_may_move_machines_without_a_token_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Literal["policy", "observe", "act"],
    tokens: str,
    warns: bool,
    ready: bool | None,
) -> None:
    """Everybody: in the log at the start, and at /readyz as long as it lasts. The shipped policy acts nowhere."""
    monkeypatch.setattr(app, "load_analyzer", lambda settings: ANALYZER)
    events, access = await started(tmp_path, mode, tokens)
    assert ("no_tokens" in events) is warns
    if ready is None:
        assert access is None
    else:
        assert isinstance(access, dict)
        assert (access["ready"], "everybody who can connect" in access["detail"]) == (ready, not ready)

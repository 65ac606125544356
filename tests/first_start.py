"""A start and a request, for processes that are forked from here: the first ones of a process cost half a second more
than later ones, for schemas, statements and templates that are compiled at their first use."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from diagnoser.app import running
from diagnoser.config import settings
from diagnoser.web.pages.rendering import templates
from tests import shipped_rules, statements, tls

ADDRESS = "http://127.0.0.1:8321"


async def _serve_once(folder: Path) -> None:
    given = settings.load({"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/first.db", "DIAGNOSER_LOG_LEVEL": "error"})
    async with running(given, asyncio.Event()) as application:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, timeout=120.0) as client:
            for path in ("/readyz", "/", "/api/v1/jobs"):
                await client.get(path)  # whatever comes: a machine that is busy may not be ready in time
            sent = await client.post(
                "/api/v1/logs", params={"job": "j"}, content=b"step 1\n", headers={"content-type": "text/plain"}
            )
            sent.raise_for_status()


def _draw_all() -> None:
    for name in templates().list_templates():
        templates().get_template(name)


shipped_rules.use()
tls.share_contexts()
statements.share()
with TemporaryDirectory() as _folder:
    asyncio.run(_serve_once(Path(_folder)))
_draw_all()

"""What end-to-end tests share."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.e2e.browser import sharing
from tests.e2e.service import Service, service


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with settings that nobody changed, started once for tests that leave it running, and use jobs and nodes
    of their own."""
    with service(tmp_path_factory.mktemp("standing")) as running:
        running.start()
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_browser() -> AsyncIterator[None]:
    async with sharing():
        yield

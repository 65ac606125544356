"""It never loses the cause: every labelled root-cause line is kept verbatim, alone and inside large healthy logs."""

import pytest

from tests.corpus import needs_corpus
from tests.thorough import THOROUGH
from tools.bench import logs, measure

EVERY = 1 if THOROUGH else 16
pytestmark = [needs_corpus, pytest.mark.corpus]


@pytest.mark.parametrize("name", logs.SETS)
def test_the_root_line_is_kept(name: str) -> None:
    """Alone, with the rules and filters of the project."""
    lost, cases = measure.missed([name], [])
    assert cases
    assert lost == []


def test_the_root_line_is_kept_inside_a_healthy_log() -> None:
    """One case in sixteen, spliced at a random line of a sample of healthy logs (a seeded draw); thorough tests and the
    bench take all of them."""
    hosts = [data for data in logs.healthy().values() if 500_000 <= len(data) <= 1_500_000][::6]
    lost, cases = measure.missed(logs.SETS, hosts, every=EVERY)
    assert cases > 400 / EVERY
    assert lost == []

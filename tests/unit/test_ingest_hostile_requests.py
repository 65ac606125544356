"""Whatever comes as a request is read or refused."""

import random

import pytest

from tests import hostile_requests


@pytest.mark.parametrize("seed", range(4))
def test_no_request_breaks_a_parser(seed: int) -> None:
    """Requests of every format with bytes changed, taken out, doubled or of another format (see ``tests.fuzz``)."""
    rng = random.Random(seed)
    for _ in range(150):
        hostile_requests.one_input(hostile_requests.mutated(rng))

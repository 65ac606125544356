"""What a person says of a failure that rules knew holds from the next one on, within bounds, until it is taken back."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rule_learning import NOW, ROOT, STEPS, Site, site
from diagnoser.model.taxonomy import FailureType
import dataclasses

FULL = "OSError: [Errno 28] No space left on device: '/scratch/quilt/shard-{n}.bin'"

@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, has_memory=True) as made:
        yield made

async def test_x(here):
    for line in (FULL, "KeyError: 'quilt_manifest_{n}'", "RuntimeError: The size of tensor a ({n}) must match the size of tensor b (12) at non-singleton dimension 1","feeder: lease of the quilt shard expired, no space left on device in cache {n}"):
        first = await here.run(f"q{ord(line[0])}-1", [*STEPS, line.format(n=3)], name="quilt-1")
        await here.say(first, FailureType.DATASET_LOADING_ERROR)
        f=await here.store.feedback.confirmed_failures(0,"",10)
        again = await here.run(f"q{ord(line[0])}-2", [*STEPS, line.format(n=4)],name="quilt-2")
        d=again.diagnosis
        print(first.diagnosis.type, first.diagnosis.decided_by, first.diagnosis.recovery, '->', d.type,d.decided_by,d.recovery,d.precedent,d.needs_review, f[-1].lesson)
    assert 0

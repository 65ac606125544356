"""Every failure that a person judged is diagnosed again when rules or cases change."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from diagnoser.compress import Compressor
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.learning.case_replay import CaseReplayer, label_of
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.model import LearnedState
from diagnoser.model.taxonomy import FailureType
from tests import accuracy_bars
from tests.rule_learning import NOW, QUILT, ROOT, STEPS, Site, site

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


def replayer(here: Site, now: float = NOW, version: str = "1.0") -> CaseReplayer:
    history = ReplayHistory(here.store, AttemptLogs(here.store, Compressor))
    return CaseReplayer(history, here.registry, lambda: now, version)


async def test_a_correction_is_replayed_until_the_rules_have_it_right(here: Site) -> None:
    """The type is wrong as judged and replayed; right once the learned rule is in force; the way stays on record."""
    assert await replayer(here).step() is None
    await here.say(await here.run("fine-1", [*STEPS, OOM]), None)
    rule = await here.taught()
    first = await replayer(here).step()
    assert first is not None
    outcomes = [(outcome.was_right, outcome.is_right, outcome.root) for outcome in first.outcomes]
    assert outcomes == [(True, True, True), (False, False, True)]
    assert await replayer(here).step() is None
    await here.move(rule, LearnedState.ACTIVE)
    await here.registry.refresh()
    second = await replayer(here, NOW + 1).step()
    assert second is not None
    assert (second.right, second.was_right, second.roots) == (2, 1, (True, True))
    assert [replay.right for replay in await here.store.cases.replays(5)] == [2, 1]


async def test_a_replay_waits_for_further_cases_but_not_for_other_rules_or_software(here: Site) -> None:
    """New judgements are gathered for an hour."""
    await here.say(await here.fail("quilt-1"))
    assert await replayer(here).step()
    await here.say(await here.fail("quilt-2", 5))
    assert await replayer(here, NOW + 60).step() is None
    assert await replayer(here, NOW + 60, "1.1").step()
    await here.say(await here.fail("quilt-3", 6))
    later = await replayer(here, NOW + 7200, "1.1").step()
    assert later is not None and len(later.outcomes) == 3


async def test_the_later_word_on_an_attempt_is_its_case(here: Site) -> None:
    """Two judgements of one attempt are one case, with the cause that was named last."""
    record = await here.fail("quilt-1")
    await here.say(record, FailureType.ECC_ERROR)
    await here.say(record)
    cases = [case async for case in ReplayHistory(here.store, AttemptLogs(here.store, Compressor)).judged()]
    assert [case.known_type for case in cases] == [FailureType.DATALOADER_KILLED]
    label = label_of(cases[0], accuracy_bars.load().knowledge.policy)
    assert (label.type, label.root_lines) == ("dataloader_killed", (ROOT,))
    assert label.root_text == QUILT.format(n=4711, host="gpu-017")


async def test_score_without_a_folder_scores_the_sites_own_cases(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The type of one case of two is right; without any case the command says so."""
    await here.say(await here.run("fine-1", [*STEPS, OOM]), None)
    await here.say(await here.fail("quilt-1"))
    await here.store.close()
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{tmp_path / 'learning.db'}")
    command = [sys.executable, "-m", "diagnoser", "score"]
    told = await asyncio.to_thread(subprocess.run, [*command, "--json"], capture_output=True, text=True, check=True)
    report = orjson.loads(told.stdout)
    assert (report["cases"], report["type"], report["root_line"]) == (2, 0.5, 1.0)
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    empty = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (empty.returncode, "nobody has confirmed" in empty.stderr) == (1, True)

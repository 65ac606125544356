"""The generalizer of a baseline against a real database and a real HTTP server."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor
from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.learning import baseline_generalizer
from diagnoser.learning.baseline_generalizer import ASK_AGAIN_SECONDS, BaselineGeneralizer, Variant
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.model import (
    Anchor,
    Attempt,
    AttemptKey,
    Baseline,
    CleanRun,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    Job,
    LearnedFilter,
    LineBlock,
    RootCause,
    Stream,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Claim, Timing
from tests.contract import records
from tests.databases import sqlite_store
from tests.integration.model_server import ModelServer, Reply, Say, in_turn, model_server, refusal
from tests.integration.scripted import question
from tests.rule_files import ANALYZER

NOW = 1_790_000_000.0
PATTERN = r"^opened lane \S+ of the quilt$"
COMPLETED = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.9, "heuristic:exit_event")
NAMES = ("seven", "nine", "eleven", "twelve")
ROUTINE = "loading the tokenizer of the mix\nmounted the shards of the mix\n"


def answer(*patterns: str) -> Reply:
    return Reply(json.dumps({"filters": patterns}))


def says(*patterns: str) -> Say:
    return in_turn(answer(*patterns))


@dataclass
class Family:
    store: SqlStore
    context: DiagnosisContext
    registry: RuleRegistry
    generalizer: BaselineGeneralizer
    metrics: Metrics
    now: float = NOW

    async def ran(self, *names: str, text: str = "opened lane {} of the quilt") -> Baseline:
        """Clean runs that each name their lane; the baseline after the generalizer has looked at it."""
        for name in names:
            key = AttemptKey(f"mix-{name}")
            attempt = Attempt(key, self.now, events=(Event(EventKind.EXIT, self.now, code=0),))
            compressor = self.registry.compressor()
            compressor.feed(LineBlock(Stream(), f"{ROUTINE}{text.format(name)}\n".encode()))
            claim = Claim(attempt, Job(key.job, name="mix", nodes=("quartz31",)), "")
            await self.context.record_baseline(claim, COMPLETED, AttemptLog(compressor.take()))
            await self.generalizer.generalize(claim.job)
        return await self.context.baseline(Job("", name="mix"))

    async def failed_at(self, text: str) -> None:
        """A verdict points at this line."""
        key = AttemptKey("broken")
        await self.store.append([records.append(key, fatal=True)])
        (claim,) = await self.store.claim_attempts(1e6, Timing(1.0, 1.0, 1.0, 1.0), 60.0, 1)
        verdict = replace(records.diagnosis(), root_cause=RootCause(3, text))
        await self.store.save_diagnosis(claim, records.record("broken", claim, verdict), None, [])


@asynccontextmanager
async def family(folder: Path, server: ModelServer) -> AsyncIterator[Family]:
    settings = Settings(llm_url=server.url, llm_model="scripted")
    store = await sqlite_store(folder / "test.db")
    registry, metrics = RuleRegistry(ANALYZER, store, time.time), Metrics(CollectorRegistry())
    model = llm_factory.endpoint(settings)
    context = DiagnosisContext(store, AttemptLogs(store, Compressor), lambda: made.now, baseline_days=30)
    guarded = llm_factory.guarded(settings, model, metrics)
    generalizer = llm_factory.baseline_generalizer(settings, store, context, registry, guarded, metrics)
    generalizer._clock = lambda: made.now
    made = Family(store, context, registry, generalizer, metrics)
    try:
        yield made
    finally:
        await store.close()
        await model.close()


async def learned(folder: Path, say: Say, names: Sequence[str] = NAMES[:3]) -> tuple[list[str], ModelServer]:
    """The patterns of the baseline after these runs."""
    with model_server(say) as server:
        async with family(folder, server) as found:
            known = await found.ran(*names)
    return [one.pattern for one in known.filters], server


async def test_what_each_run_words_anew_is_known_after_three_runs(tmp_path: Path) -> None:
    """Three answers agree on a pattern; the next run's wording is then no new line, and nothing is asked again."""
    with model_server(says(PATTERN)) as server:
        async with family(tmp_path, server) as found:
            known = await found.ran(*NAMES)
            metrics = found.metrics.registry.get_sample_value("diagnoser_llm_requests_total")
    assert known.filters == (LearnedFilter(PATTERN, "scripted", known.filters[0].prompt_hash),)
    assert known.filters[0].prompt_hash
    assert [run.unmatched for run in known.runs] == [(), *((f"opened lane {n} of the quilt",) for n in NAMES[1:3]), ()]
    assert len(server.asked) == metrics == 3


async def test_the_model_sees_no_host_and_no_secret(tmp_path: Path) -> None:
    """Only lines that each run words anew, with machines and secrets replaced."""
    with model_server(says()) as server:
        async with family(tmp_path, server) as found:
            await found.ran(*NAMES[:3], text="opened lane {} on quartz31 for hf_aBcDeFgHiJkLmNoPqRsTuVwX")
    asked = question(server.asked[0])
    assert "opened lane nine on host-1 for" in asked.user and "opened lane eleven on host-1 for" in asked.user
    assert not any(word in asked.user for word in ("loading the tokenizer", "quartz31", "hf_aBc"))


WRONG = (
    r"(",
    r".*",
    r"^opened \S+ \S+ \S+ \S+ \S+$",
    r"^opened lane .*",
    r"^opened lane nine of the quilt$",
    r"^closed lane \S+$",
)


@pytest.mark.parametrize("pattern", WRONG)
async def test_a_pattern_that_is_too_wide_or_too_narrow_is_not_taken(tmp_path: Path, pattern: str) -> None:
    """It must compile, match several of the lines, and ask for words of them in both halves."""
    assert (await learned(tmp_path, says(pattern)))[0] == []


async def test_answers_that_do_not_agree_teach_nothing(tmp_path: Path) -> None:
    """One of three knows the lines; of two that do, both patterns hold."""
    assert (await learned(tmp_path / "one", in_turn(answer(PATTERN), answer(), answer())))[0] == []
    other = r"^opened lane \w+ of the quilt"
    found = (await learned(tmp_path / "two", in_turn(answer(PATTERN), answer(other), answer())))[0]
    assert sorted(found) == sorted([PATTERN, other])


@pytest.mark.parametrize("reply", [refusal("overloaded", 500), Reply("no JSON at all"), Reply(drop=True)])
async def test_a_model_that_fails_leaves_the_shapes_alone(tmp_path: Path, reply: Reply) -> None:
    """Nothing is learned, the runs stay known, and the family is not asked about again on the same day."""
    with model_server(in_turn(reply)) as server:
        async with family(tmp_path, server) as found:
            known = await found.ran(*NAMES[:3])
            asked = len(server.asked)
            await found.ran(NAMES[3])
    assert (len(known.runs), known.filters) == (3, ())
    assert len(server.asked) == asked > 0


async def test_a_day_later_it_is_asked_again(tmp_path: Path) -> None:
    """When the next clean run ends."""
    with model_server(says()) as server:
        async with family(tmp_path, server) as found:
            await found.ran(*NAMES[:3])
            found.now += ASK_AGAIN_SECONDS
            await found.ran(NAMES[3])
    assert len(server.asked) == 6


async def test_a_filter_never_matches_a_root_line(tmp_path: Path) -> None:
    """Neither one that is known when the model answers nor, from the next clean run on, one that became known later."""
    root = "3: opened lane zero of the quilt"
    with model_server(says(PATTERN)) as server:
        (tmp_path / "before").mkdir()
        async with family(tmp_path / "before", server) as found:
            await found.failed_at(root)
            assert (await found.ran(*NAMES[:3])).filters == ()
        (tmp_path / "after").mkdir()
        async with family(tmp_path / "after", server) as found:
            assert len((await found.ran(*NAMES[:3])).filters) == 1
            await found.failed_at(root)
            assert (await found.ran(NAMES[3])).filters == ()


async def test_a_run_that_failed_teaches_nothing(tmp_path: Path) -> None:
    """Only a clean run is recorded, and the generalizer is told of each."""
    with model_server(says(PATTERN)) as server:
        async with family(tmp_path, server) as found:
            told: list[str] = []
            context = replace(found.context, recorded=lambda job: told.append(job.id))
            attempt = Attempt(AttemptKey("mix-1"), NOW, events=(Event(EventKind.EXIT, NOW, code=1),))
            compressor = found.registry.compressor()
            compressor.feed(LineBlock(Stream(), ROUTINE.encode()))
            log = AttemptLog(compressor.take())
            await context.record_baseline(Claim(attempt, Job("mix-1"), ""), COMPLETED, log)
            assert (told, (await context.baseline(Job("mix-1"))).runs) == ([], ())
            clean = replace(attempt, events=(Event(EventKind.EXIT, NOW, code=0),))
            await context.record_baseline(Claim(clean, Job("mix-1"), ""), COMPLETED, log)
            assert told == ["mix-1"]
            facts: Facts = await context.facts(Claim(clean, Job("mix-1"), ""))
            assert [run.name for run in facts.baseline.runs] == ["mix-1/1"]


def test_lines_that_could_matter_are_never_shown_to_a_model() -> None:
    """Uneasy words, a rule's anchor, and what only one run printed."""
    texts = [("opened lane {} of the quilt"), "retrying lane {} of the quilt", "zx81 lane {} of the quilt"]
    runs = tuple(
        CleanRun(f"j/{number}", 10, {}, tuple(text.format(name) for text in texts))
        for number, name in enumerate(NAMES[:2])
    )
    alone = CleanRun("j/9", 10, {}, ("the seam is alone in its shape",))
    groups = baseline_generalizer.variants(Baseline((*runs, alone)), [Anchor("zx81")])
    assert groups == [["opened lane seven of the quilt", "opened lane nine of the quilt"]]


def test_a_pattern_must_match_a_line_as_it_came_and_as_it_was_shown() -> None:
    """What a model writes about an alias matches no log."""
    lines = [Variant(f"mounted gpu-{n} for lane {w}", f"mounted host-{n} for lane {w}") for n, w in enumerate(NAMES)]
    assert baseline_generalizer.fault(r"^mounted host-\d for lane \w+$", lines)
    assert not baseline_generalizer.fault(r"^mounted \S+ for lane \w+$", lines)

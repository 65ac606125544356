"""The Log Agent over a real database and, with a model, HTTP: from the routine of clean runs to a filter."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.compress import from_bytes, pack
from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.learning.rule_writer import LLMRuleWriter
from diagnoser.model import AttemptKey, Job, LearnedRule, LearnedState, LineBlock, Stream
from diagnoser.model.logs import Append
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.compaction import Compaction
from tests.integration.model_server import Reply, Say, model_server
from tests.rule_learning import NOW, STEPS, Site, site

ROUTINE = (
    "qx-feeder: streamed shard {n} of volume a{n} in {n} ms",
    "page sweep number {n} gave {n} pages back",
    "weights of layer {n} mapped read only",
)
DARK = "zx81: lane 4 sagged below the mark and the bridge went dark"
GOOD = (
    r"^qx-feeder: streamed shard \d+ of volume \S+ in \d+ ms$",
    r"^page sweep number \d+ gave \d+ pages back$",
    r"^weights of layer \d+ mapped read only$",
)


def printed(seed: int, *more: str, times: int = 90) -> list[str]:
    routine = [text.format(n=number + seed) for number in range(times) for text in ROUTINE]
    return [*routine, *STEPS, *more]


async def clean(here: Site, *more: str, **of_job: Any) -> None:
    """A run of the family that completes."""
    number = next(here.numbers)
    await here.run(f"feeding-{number}", printed(number, *more, "Training completed"), code=0, **of_job)


async def rules(here: Site) -> list[LearnedRule]:
    return await here.store.rules.page(LearnedRuleQuery(filters=True), "", 50)


async def learned(here: Site, runs: int = 4) -> list[LearnedRule]:
    """What is learned from so many clean runs."""
    for _ in range(runs):
        await clean(here)
        await here.log_agent.step()
    await here.registry.refresh()
    return await rules(here)


async def in_force(here: Site, runs: int = 4) -> LearnedRule:
    await learned(here, runs)
    return await promoted(here)


async def promoted(here: Site) -> LearnedRule:
    """The rule in shadow, after three clean runs more."""
    for _ in range(3):
        await clean(here)
    await here.log_agent.step()
    await here.registry.refresh()
    (rule,) = await rules(here)
    assert rule.state is LearnedState.ACTIVE, rule
    return rule


async def templates(here: Site, job: str) -> list[tuple[str, int]]:
    log = await here.log_agent._history.logs.load(AttemptKey(job, 1))
    return [(template.filtered_by, template.count) for template in log.evidence.templates]


async def test_routine_of_clean_runs_becomes_a_filter_in_force(tmp_path: Path) -> None:
    """In shadow after three clean runs, in force after three more; then the family's log has one counted entry."""
    async with site(tmp_path, filters=True) as here:
        assert await learned(here, 3) == []
        rule = await in_force(here, 1)
        assert [gate.passed for gate in rule.gates] == [True] * 2
        assert (rule.counts.confirmed, rule.counts.wrong, rule.counts.lines) == (3, 0, 3 * 270)
        found = await here.run("feeding-99", printed(99, DARK))
        assert (f"learned/{rule.id}", 270) in await templates(here, "feeding-99")
        assert "270 lines filtered as routine" in found.diagnosis.left_out.why
        assert found.diagnosis.compression.lines_in == 300


@asynccontextmanager
async def with_model(folder: Path, say: Say) -> AsyncIterator[Site]:
    """A site whose filters a model writes, over HTTP."""
    with model_server(say) as server:
        settings = Settings(llm_url=server.url, llm_model="scripted")
        model = llm_factory.endpoint(settings)
        prompt = llm_factory.load_prompt(settings, llm_factory.LOG_AGENT)
        async with site(folder, filters=True, filter_pen=LLMRuleWriter(model, prompt, lambda: "MARK", 60.0)) as here:
            yield here
        await model.close()


def says(*patterns: str) -> Reply:
    return Reply(json.dumps({"patterns": patterns}))


async def test_what_several_samples_agree_on_is_taken(tmp_path: Path) -> None:
    """A pattern that one of three answers has is left out."""
    replies = iter([says(*GOOD), says(*GOOD[:2]), says(*GOOD[:2])])
    async with with_model(tmp_path, lambda _: next(replies)) as here:
        (rule,) = await learned(here)
    assert (rule.state, rule.text.splitlines()) == (LearnedState.SHADOW, list(GOOD[:2]))
    assert (rule.author.name, rule.author.calls) == ("llm:scripted", 3)


@pytest.mark.parametrize(
    "pattern",
    [
        "^.*$",
        r"^\S+$",
        r"^qx-feeder: .*$",
        r"^(a+)+$",
        r"^(?:\d+|qx-feeder: streamed shard \d+ of volume \S+ in \d+ ms)$",
        r"^qx-feeder: \w+ shard \d+ of volume \S+ in \d+ ms$",
        r"page sweep number \d+ gave \d+ pages back",
        r"^page sweep number \d+ gave \d+ pages back[^q]+$",
        r"^page sweep number \d+ gave \d+ pages back(?: and died)?$",
        "zx81",
        "(unclosed",
    ],
)
async def test_a_hostile_model_hides_nothing(tmp_path: Path, pattern: str) -> None:
    """Wide patterns, alternatives, optional ends, those that run for ever elsewhere, and those that are none."""
    async with with_model(tmp_path, lambda _: says(pattern)) as here:
        (rule,) = await learned(here)
    assert (rule.state, rule.text) == (LearnedState.REFUSED, "")


async def test_a_model_that_fails_is_replaced_by_the_shapes(tmp_path: Path) -> None:
    """The reason stands with the rule."""
    async with with_model(tmp_path, lambda _: Reply(status=500, raw=b"")) as here:
        (rule,) = await learned(here)
    assert (rule.state, rule.author.name) == (LearnedState.SHADOW, "template")
    assert rule.author.failure.startswith("model_unavailable")


async def test_words_of_trouble_and_anchors_are_no_routine(tmp_path: Path) -> None:
    """A job that prints evidence in clean runs does not get it filtered; nor does one that prints secrets."""
    lines = (
        "NCCL WARN Timeout waiting for peer 4",
        "Xid 79 on the lane",
        "key 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 of mia",
    )
    async with site(tmp_path, filters=True) as here:
        for _ in range(4):
            await clean(here, *lines)
            await here.log_agent.step()
            await here.log_agent.step()
        (rule,) = await rules(here)
    assert not any(word in rule.text for word in ("NCCL", "Xid", "hf_"))


async def test_a_line_that_was_once_the_cause_refuses_a_filter(tmp_path: Path) -> None:
    """A person named it, for whatever job."""
    async with site(tmp_path, filters=True) as here:
        cause = ROUTINE[2].format(n=7)
        found = await here.run("other-1", [*STEPS, cause], code=1)
        await here.say(found)
        (rule,) = await learned(here)
    assert rule.state is LearnedState.REFUSED
    assert "evidence_of_verdicts" in rule.history[-1].why


async def test_the_first_verdict_that_cites_its_line_switches_it_off(tmp_path: Path) -> None:
    """A person names a filtered line as the cause: the next load of any log of the family shows its shapes again."""
    async with site(tmp_path, filters=True) as here:
        rule = await in_force(here)
        found = await here.run("feeding-99", [*STEPS, ROUTINE[1].format(n=8), DARK], code=1)
        await here.say(found)
        await here.log_agent.step()
        assert await here.learned_state(rule) is LearnedState.RETIRED
        await clean(here)
        assert not any(name.startswith("learned/") for name, _ in await templates(here, "feeding-99"))


async def test_a_family_of_another_tenant_or_name_is_read_as_before(tmp_path: Path) -> None:
    """Also one whose framework is written to look like this tenant's family."""
    async with site(tmp_path, filters=True) as here:
        for _ in range(4):
            await clean(here, tenant="ann")
            await here.log_agent.step()
        for _ in range(3):
            await clean(here, tenant="ann")
        await here.log_agent.step()
        (rule,) = await rules(here)
        assert (rule.state, rule.tenant) == (LearnedState.ACTIVE, "ann")
        others: dict[str, dict[str, Any]] = {
            "feeding-901": {"tenant": "bob"},
            "feeding-902": {},
            "feeding-903": {"framework": "@ann/"},
            "reading-904": {"tenant": "ann"},
        }
        for job, fields in others.items():
            await here.print_lines(job, printed(1), **fields)
            assert not any(name for name, _ in await templates(here, job)), job


async def feed(here: Site, lines: list[str], first: int) -> None:
    """Some lines of a run that goes on, as the ingest stores them."""
    data = "".join(f"{line}\n" for line in lines).encode()
    raw = pack([LineBlock(Stream(), data, first, received=NOW - 60)])
    key, end = AttemptKey("feeding-99", 1), first + len(lines) - 1
    cursors = {Stream(): (int(first > 1), ((1, end),))}
    await here.store.logs.append([Append(key, raw, NOW - 60, cursors, False, len(data))])


def compaction(here: Site) -> Compaction:
    folding, metrics = here.log_agent._filters.folding, Metrics(CollectorRegistry())
    return Compaction(here.store.logs, here.registry.compressor, lambda: NOW + 1000, metrics, folding=folding)


async def test_a_filter_promoted_while_a_stream_runs_counts_every_line_once(tmp_path: Path) -> None:
    """Parts stored before and after it, or by a replica without it, merge; lines that are kept verbatim stay."""
    async with site(tmp_path, filters=True) as here:
        await learned(here)
        lines = printed(1)
        await here.store.jobs.register(Job("feeding-99", created=NOW - 100))
        await feed(here, lines[:150], 1)
        assert await compaction(here).step()
        before = await here.log_agent._history.logs.load(AttemptKey("feeding-99", 1))
        rule = await promoted(here)
        await feed(here, lines[150:], 151)
        raw = await here.log_agent._history.logs.load(AttemptKey("feeding-99", 1))
        assert await compaction(here).step()
        pieces = [piece.data for piece in await here.store.logs.pieces(AttemptKey("feeding-99", 1))]
        second = from_bytes(pieces[1])
        log = await here.log_agent._history.logs.load(AttemptKey("feeding-99", 1))
    assert not any(stat.is_folded for stat in before.delta.shapes.values())
    assert [stat.count for stat in second.shapes.values() if stat.is_folded] == [120]
    for delta in (raw.delta, log.delta):
        assert [(stat.filtered, stat.count) for stat in delta.shapes.values() if stat.is_folded] == [
            (f"learned/{rule.id}", 270)
        ]
        assert delta.lines == sum(stat.count for stat in delta.shapes.values()) == len(lines)
    assert [row.text for row in second.shares[Stream()].rows.values()][-1].decode() == lines[-1]


async def test_a_filter_that_was_retired_comes_back_only_through_its_tests(tmp_path: Path) -> None:
    """Brought back by a person, it is tested against what people said since, and refused."""
    async with site(tmp_path, filters=True) as here:
        rule = await in_force(here)
        found = await here.run("other-1", [*STEPS, ROUTINE[1].format(n=8)], code=1)
        await here.say(found)
        await here.log_agent.step()
        await here.move(rule, LearnedState.PROPOSED)
        await here.log_agent.step()
        assert await here.learned_state(rule) is LearnedState.REFUSED

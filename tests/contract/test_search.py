"""Contract of the look-ups behind the search over everything, and of saved views."""

from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, Event, EventKind, Job, LearnedRule, LearnedState
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import FoundNode
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.views import ListName, SavedView
from tests.serving import ECC, NOW, save


async def test_a_job_is_found_by_any_part_while_it_runs_and_by_its_beginning_for_ever(store: SqlStore) -> None:
    """In any case while it has not ended; afterwards by how its id begins. Logs of nodes are no jobs."""
    await store.jobs.add_event(AttemptKey("llm-70B-pretrain", 1), Event(EventKind.STARTED, NOW))
    for job in ("llm-7b", "LLM-7b", "llm.7b%_", "~east/llm-7"):
        await store.jobs.add_event(AttemptKey(job, 1), Event(EventKind.STARTED, NOW - 100))
        await store.jobs.add_event(AttemptKey(job, 1), Event(EventKind.EXIT, NOW - 50, code=0))
    assert await store.search.jobs_like("70b", 5) == ["llm-70B-pretrain"]
    assert await store.search.jobs_like("llm-7", 5) == ["llm-70B-pretrain", "llm-7b"]
    assert await store.search.jobs_like("%", 5) == []
    assert await store.search.jobs_like("llm.7b%", 5) == ["llm.7b%_"]
    assert await store.search.jobs_like("~east", 5) == []
    assert await store.search.jobs_like("llm", 1) == ["llm-70B-pretrain"]


async def test_a_node_is_found_in_the_clusters_and_in_diagnoses(store: SqlStore) -> None:
    """By any part of its name where a job was registered with it; by the whole name where only a diagnosis has it."""
    await store.jobs.register(Job("a", cluster="east", nodes=("gpu-017", "gpu-018", "cpu-1")))
    await save(store, "b", ECC)
    assert await store.search.nodes_containing("PU-01", 5) == [
        FoundNode("gpu-017", "east"),
        FoundNode("gpu-018", "east"),
    ]
    assert await store.search.nodes_containing("hgx-04", 5) == [FoundNode("hgx-04")]
    assert await store.search.nodes_containing("hgx-0", 5) == []
    assert len(await store.search.nodes_containing("pu-", 1)) == 1


async def test_an_incident_is_found_by_what_is_shown_of_it(store: SqlStore) -> None:
    """All the words must be in its node, type, line or assignee; words of the stored record do not count."""
    await save(store, "a", ECC)
    (found,) = await store.search.incidents_like("hgx-04 ecc", 5)
    assert (found.node, found.failures) == ("hgx-04", 1)
    assert await store.search.incidents_like("NVRM xid", 5) == [found]
    for nothing in ("hgx-04 nvlink", "first_seen", "history", "?"):
        assert await store.search.incidents_like(nothing, 5) == []


async def test_a_learned_rule_is_found_by_its_words(store: SqlStore) -> None:
    """In its id, its type or its text."""
    rule = LearnedRule(
        id="learned_seam", type=FailureType.VALUE_ERROR, source="d1", by="ida", created=NOW, text="title: A seam broke"
    )
    await store.rules.propose(replace(rule, state=LearnedState.PROPOSED))
    for words in ("seam broke", "LEARNED_seam", "value error"):
        assert [one.id for one in await store.search.learned_rules_like(words, 5)] == ["learned_seam"]
    for words in ("seam held", "created", "!"):
        assert await store.search.learned_rules_like(words, 5) == []


async def test_a_view_is_kept_under_its_name(store: SqlStore) -> None:
    """Saving it again replaces it, each list has its own names, and there is room for so many."""
    view = SavedView(ListName.DIAGNOSES, "ECC in east", "type=ecc_error&cluster=east", "ida", NOW)
    await store.views.save(view, 2)
    await store.views.save(replace(view, listed=ListName.JOBS, query="state=silent"), 2)
    await store.views.save(replace(view, query="type=ecc_error", by="tom"), 2)
    await store.views.save(replace(view, name="All"), 2)
    assert [(one.name, one.query, one.by) for one in await store.views.of_list(ListName.DIAGNOSES)] == [
        ("All", view.query, "ida"),
        ("ECC in east", "type=ecc_error", "tom"),
    ]
    with pytest.raises(BadInput, match="2 saved views"):
        await store.views.save(replace(view, name="third"), 2)
    assert await store.views.delete(ListName.DIAGNOSES, "All")
    assert not await store.views.delete(ListName.DIAGNOSES, "All")
    assert len(await store.views.of_list(ListName.JOBS)) == 1

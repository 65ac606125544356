"""Contract of incidents: which failures they hold, what they count, and what people do with them."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, Diagnosis, Incident, IncidentState, Job, RootCause
from diagnoser.model.alerts import AlertThread
from diagnoser.model.errors import BadInput, NotFound
from diagnoser.model.ids import id_of
from diagnoser.model.queries import UNRESOLVED, IncidentFilter, position_of
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.incidents import DAY, acknowledged, assigned, escalated, muted, new_incident, reopened, resolved
from tests.contract.records import append, claimed, diagnosis, record

EVERY = IncidentFilter()
OOM = Diagnosis(
    Outcome.FAILED,
    Category.SCRIPT,
    FailureType.OUT_OF_MEMORY_ERROR,
    0.9,
    "rule:oom",
    root_cause=RootCause(7, "CUDA out of memory. Tried to allocate 2.31 GiB"),
)
DONE = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.99, "heuristic:exit")


async def fail(
    store: SqlStore, id: str, job: str, verdict: Diagnosis = OOM, attempt: int = 1, created: float = 200.0
) -> DiagnosisRecord:
    """The attempt gets this verdict."""
    key = AttemptKey(job, attempt)
    cursor = next(iter((await store.logs.cursors([key]))[key].values()), None)
    await store.logs.append([append(key, at=created - 150, fatal=True, read=cursor)])
    (claim,) = [claim for claim in await claimed(store, created + 1_000) if claim.attempt.key == key]
    made = record(id, claim, verdict, created)
    await store.work.save_diagnosis(claim, made, None, [])
    return made


async def the_incident(store: SqlStore, where: IncidentFilter = EVERY) -> Incident:
    (incident,) = await store.incidents.page(where, "", 10)
    return incident


async def test_failures_of_one_fingerprint_are_one_incident(store: SqlStore) -> None:
    """Across jobs and attempts; numbers do not tell them apart, and the newest stands for all."""
    await fail(store, "01", "a", created=200.0)
    await fail(store, "02", "a", attempt=2, created=300.0)
    other = replace(OOM, root_cause=RootCause(9, "CUDA out of memory. Tried to allocate 17 GiB"))
    await fail(store, "03", "b", other, created=400.0)
    incident = await the_incident(store)
    assert (incident.failures, incident.jobs, incident.first_seen, incident.last_seen) == (3, 2, 200.0, 400.0)
    assert (incident.diagnosis, incident.line) == ("03", "CUDA out of memory. Tried to allocate 17 GiB")
    assert (incident.state, incident.node, incident.assignee) == (IncidentState.OPEN, "", "")
    assert [failure.id for failure in await store.incidents.failures(incident.id, "", 2)] == ["03", "02"]
    assert [failure.id for failure in await store.incidents.failures(incident.id, "02", 2)] == ["01"]


async def test_faults_of_one_node_are_one_incident(store: SqlStore) -> None:
    """Whatever they print; the same words of another node, or of the node of another cluster, are another one."""
    await fail(store, "01", "a", diagnosis("NVRM: Xid 79, GPU has fallen off the bus"))
    await fail(store, "02", "b", diagnosis("uncorrectable ECC error"))
    await store.jobs.register(Job("c", cluster="west"))
    await fail(store, "03", "c", diagnosis())
    base = diagnosis()
    assert base.root_cause is not None
    await fail(store, "04", "d", replace(base, root_cause=replace(base.root_cause, node="gpu-777")))
    by_place = {(found.cluster, found.node): found.failures for found in await store.incidents.page(EVERY, "", 10)}
    assert by_place == {("default", "gpu-004"): 2, ("west", "gpu-004"): 1, ("default", "gpu-777"): 1}
    assert len(await store.incidents.page(IncidentFilter(node="gpu-004"), "", 10)) == 2


async def test_eighteen_nodes_under_one_switch_are_one_incident(store: SqlStore) -> None:
    """Its receivers go on in the thread of the first node. A node elsewhere, and one that the scheduler did not give to
    the job that names it, are incidents of their own, before the others fail as well."""
    nodes = [f"n{number:02}" for number in range(18)]
    await store.nodes.set_places(
        "default", {node: ["switch:a"] for node in nodes} | {f"m{n}": ["x:y"] for n in range(30)}
    )
    base = diagnosis()
    assert base.root_cause is not None
    for number, node in enumerate(["n17", *nodes, "m1", "n03"]):
        job, given = f"j{number}", "other" if number in (0, 20) else node
        await store.jobs.register(Job(job, nodes=(given,), registered=True, created=1.0))
        verdict = replace(base, root_cause=replace(base.root_cause, node=node))
        await fail(store, f"{number:02}", job, verdict, created=200.0 + 10 * number)
        if number == 1:
            first = await store.incidents.of_diagnosis("01")
            assert first is not None and first.node == "n00"
            await store.alerts.save_thread(AlertThread("slack:ops", first.id, "t1", 200.0))
    found = {incident.place or incident.node: incident for incident in await store.incidents.page(EVERY, "", 50)}
    assert sorted(found) == ["m1", "n03", "n17", "switch:a"]
    of_switch = found["switch:a"]
    assert (of_switch.failures, of_switch.jobs, sorted(of_switch.nodes), of_switch.first_seen) == (18, 18, nodes, 210.0)
    moved = await store.incidents.of_diagnosis("01")
    assert moved is not None and moved.id == of_switch.id
    thread = await store.alerts.thread("slack:ops", of_switch.id)
    assert thread is not None and thread.handle == "t1"
    await store.jobs.register(Job("late", nodes=("n04",), registered=True, created=1.0))
    verdict = replace(base, root_cause=replace(base.root_cause, node="n04"))
    await fail(store, "99", "late", verdict, created=5_000.0)
    late = await store.incidents.of_diagnosis("99")
    assert late is not None and late.node == "n04"


async def test_what_ended_well_is_no_incident(store: SqlStore) -> None:
    """Nor is what was cancelled."""
    good = await fail(store, "01", "a", DONE)
    assert await store.incidents.page(EVERY, "", 10) == []
    assert await store.incidents.of_diagnosis(good.id) is None


async def test_a_failure_whose_verdict_changes_moves(store: SqlStore) -> None:
    """A model, or late lines, may name another cause: each attempt counts once, and what nothing is left of goes."""
    await fail(store, "01", "a")
    await fail(store, "02", "b")
    first = await the_incident(store)
    await fail(store, "03", "b", diagnosis(), created=300.0)
    by_id = {incident.id: incident for incident in await store.incidents.page(EVERY, "", 10)}
    moved = await store.incidents.of_diagnosis("03")
    assert moved is not None and moved.node == "gpu-004"
    assert (by_id[first.id].failures, by_id[first.id].jobs, by_id[first.id].diagnosis) == (1, 1, "01")
    await fail(store, "04", "a", DONE, created=400.0)
    assert [incident.id for incident in await store.incidents.page(EVERY, "", 10)] == [moved.id]


async def test_a_new_verdict_of_the_same_cause_counts_once(store: SqlStore) -> None:
    """A replaced diagnosis belongs to the incident of its attempt, too."""
    await fail(store, "01", "a")
    await fail(store, "02", "a", created=300.0)
    incident = await the_incident(store)
    assert (incident.failures, incident.jobs, incident.diagnosis) == (1, 1, "02")
    assert [failure.id for failure in await store.incidents.failures(incident.id, "", 5)] == ["02"]
    assert await store.incidents.of_diagnosis("01") == incident


async def test_people_acknowledge_assign_resolve_and_reopen(store: SqlStore) -> None:
    """Each is an entry of the history, with who and why; repeating one changes nothing."""
    await fail(store, "01", "a")
    mine = (await the_incident(store)).id
    seen = await store.incidents.change(mine, lambda stored: acknowledged(stored, "ida", "looking", 500.0))
    assert (seen.state, seen.assignee) == (IncidentState.ACKNOWLEDGED, "ida")
    again = await store.incidents.change(mine, lambda stored: acknowledged(stored, "bob", "", 501.0))
    assert again == seen
    given = await store.incidents.change(mine, lambda stored: assigned(stored, "ida", "", 502.0, assignee="bob"))
    assert await store.incidents.count_unresolved(500.0) == {IncidentState.ACKNOWLEDGED: 1, IncidentState.OPEN: 0}
    done = await store.incidents.change(mine, lambda stored: resolved(stored, "bob", "smaller batch", 503.0))
    assert (given.assignee, done.state, done.assignee) == ("bob", IncidentState.RESOLVED, "bob")
    assert await store.incidents.page(UNRESOLVED, "", 10) == []
    with pytest.raises(BadInput, match="reopen it"):
        await store.incidents.change(mine, lambda stored: assigned(stored, "ida", "", 504.0, assignee="ida"))
    back = await store.incidents.change(mine, lambda stored: reopened(stored, "ida", "not yet", 505.0))
    assert [(change.by, change.state, change.comment) for change in back.history] == [
        ("ida", IncidentState.ACKNOWLEDGED, "looking"),
        ("ida", IncidentState.ACKNOWLEDGED, ""),
        ("bob", IncidentState.RESOLVED, "smaller batch"),
        ("ida", IncidentState.OPEN, "not yet"),
    ]
    assert await store.incidents.find(mine) == back == await the_incident(store, UNRESOLVED)
    with pytest.raises(NotFound):
        await store.incidents.change("0", lambda stored: stored)


async def test_a_resolved_incident_opens_when_it_comes_back(store: SqlStore) -> None:
    """By a new failure only: a late verdict on one that is counted already does not."""
    await fail(store, "01", "a", created=200.0)
    mine = (await the_incident(store)).id
    await store.incidents.change(mine, lambda stored: resolved(stored, "ida", "", 500.0))
    await fail(store, "02", "a", created=600.0)
    assert (await the_incident(store)).state is IncidentState.RESOLVED
    await fail(store, "03", "b", created=700.0)
    incident = await the_incident(store)
    assert (incident.state, incident.history[-1].by) == (IncidentState.OPEN, "diagnoser")
    assert incident.history[-1].comment == "it came back"


async def test_a_muted_incident_comes_back_with_a_new_kind_of_failure(store: SqlStore) -> None:
    """Not with the same kind again; and at the end of its time it is in the list as before."""
    await fail(store, "01", "a", diagnosis("NVRM: Xid 79"), created=200.0)
    mine = (await the_incident(store)).id
    await store.incidents.change(mine, partial(muted, by="ida", comment="", now=300.0, seconds=DAY))
    awake = IncidentFilter(UNRESOLVED.states, is_muted=False, now=500.0)
    await fail(store, "02", "b", diagnosis("NVRM: Xid 79"), created=400.0)
    assert await store.incidents.page(awake, "", 10) == await store.incidents.costly(awake, 10) == []
    assert len(await store.incidents.page(replace(awake, now=300.0 + DAY), "", 10)) == 1
    await fail(store, "03", "c", replace(diagnosis("NVRM: Xid 94"), type=FailureType.ECC_ERROR), created=450.0)
    (back,) = await store.incidents.costly(awake, 10)
    assert (back.muted_until, back.history[-1].by) == (0.0, "diagnoser")
    assert "a new kind of failure joined" in back.history[-1].comment


async def test_the_costly_ones_are_found_among_newer_script_errors(store: SqlStore) -> None:
    """One of a machine, one that somebody escalated, and one that comes again and again."""
    await fail(store, "01", "a", diagnosis(), created=200.0)
    old = replace(OOM, root_cause=RootCause(7, "RuntimeError: raised"))
    await fail(store, "02", "b", old, created=201.0)
    raised = await store.incidents.of_diagnosis("02")
    assert raised is not None
    await store.incidents.change(raised.id, lambda stored: escalated(stored, "ida", "", 300.0))
    for number in range(2):
        again = replace(OOM, root_cause=RootCause(7, "RuntimeError: again"))
        await fail(store, f"1{number}", f"again-{number}", again, created=210.0 + number)
    for number in range(3):
        newer = replace(OOM, root_cause=RootCause(7, f"KeyError: {'x' * number}"))
        await fail(store, f"2{number}", f"newer-{number}", newer, created=220.0 + number)
    found = await store.incidents.costly(UNRESOLVED, 1)
    assert {incident.diagnosis for incident in found} == {"01", "02", "11", "22"}
    assert next(incident for incident in found if incident.diagnosis == "02").escalated == 300.0
    runs = await store.diagnoses.runs_of_incidents([raised.id], 0.0, 10)
    assert [run.diagnosed for run in runs.pop(raised.id)] == [201.0] and not runs


async def test_pages_of_incidents_neither_repeat_nor_skip(store: SqlStore) -> None:
    """The one with the newest failure first."""
    for number in range(5):
        verdict = replace(OOM, root_cause=RootCause(1, "cause " + "abcde"[number]))
        await fail(store, f"0{number}", f"job-{number}", verdict, created=200.0 + number)
    paged, after = [], ""
    while page := await store.incidents.page(UNRESOLVED, after, 2):
        paged += [incident.diagnosis for incident in page]
        after = position_of(page[-1])
    assert paged == ["04", "03", "02", "01", "00"]
    with pytest.raises(BadInput, match="is not the `next`"):
        await store.incidents.page(EVERY, "nonsense", 2)


async def test_workers_that_save_at_once_lose_no_count(store: SqlStore, second: SqlStore) -> None:
    """Many jobs that one cause ends are diagnosed in the same moment, by several replicas."""
    keys = [AttemptKey(f"job-{number}") for number in range(8)]
    await store.logs.append([append(key, at=50.0, fatal=True) for key in keys])
    claims = await claimed(store, 1_000.0, limit=20)
    saves = [
        (store, second)[number % 2].work.save_diagnosis(
            claim, record(f"0{number}", claim, OOM, 200.0 + number), None, []
        )
        for number, claim in enumerate(claims)
    ]
    await asyncio.gather(*saves)
    incident = await the_incident(store)
    assert (incident.failures, incident.jobs, incident.last_seen) == (8, 8, 207.0)


async def test_people_who_act_at_once_both_count(store: SqlStore, second: SqlStore) -> None:
    """Neither overwrites what the other did."""
    await fail(store, "01", "a")
    mine = (await the_incident(store)).id
    acts = [
        (store, second)[number % 2].incidents.change(
            mine, partial(assigned, by=f"p{number}", comment="", now=300.0, assignee=f"p{number}")
        )
        for number in range(6)
    ]
    await asyncio.gather(*acts)
    assert len((await the_incident(store)).history) == 6


def test_without_a_line_only_failures_of_one_family_are_alike() -> None:
    """An empty fingerprint would make one incident of all that nobody understands."""
    bare = replace(OOM, root_cause=None)
    ids = {new_incident("01", 1.0, bare, "east", family).id for family in ("llama", "bert")}  # type: ignore[union-attr]
    assert len(ids) == 2


async def test_nodes_that_failed_more_than_once_are_counted(store: SqlStore) -> None:
    """Most failures first; not those of long ago, nor incidents of no node."""
    await fail(store, "01", "a", diagnosis(), created=200.0)
    await fail(store, "02", "b", OOM, created=300.0)
    await fail(store, "03", "c", OOM, created=300.0)
    assert await store.incidents.worst_nodes(0.0, 5) == []
    await fail(store, "04", "d", diagnosis(), created=400.0)
    assert [incident.node for incident in await store.incidents.worst_nodes(0.0, 5)] == ["gpu-004"]
    assert await store.incidents.worst_nodes(400.0, 5) == []


async def test_failures_are_counted_by_span_and_category(store: SqlStore) -> None:
    """Current verdicts only, by the time in their ids; what ended well is no failure."""
    ids = [id_of(at, 0) for at in (100.0, 150.0, 250.0, 260.0, 350.0)]
    await fail(store, ids[0], "a", OOM)
    await fail(store, ids[1], "b", diagnosis())
    await fail(store, ids[2], "c", OOM)
    await fail(store, ids[3], "c", diagnosis())
    await fail(store, ids[4], "d", DONE)
    counts = await store.diagnoses.failures_between([100.0, 200.0, 300.0, 400.0])
    assert counts == [{Category.SCRIPT: 1, Category.INFRASTRUCTURE: 1}, {Category.INFRASTRUCTURE: 1}, {}]
    assert await store.diagnoses.failures_between([100.0]) == []


async def test_an_incident_of_which_nothing_is_left_is_dropped(store: SqlStore) -> None:
    """After its last failure went, whoever worked on it; not before, and not one that failed since."""
    await fail(store, "01", "a")
    old = await the_incident(store)
    await store.incidents.change(old.id, lambda incident: resolved(incident, "ida", "new cable", 300.0))
    assert await store.retention.drop_incidents(9_000.0, 10) == 0
    await fail(store, "02", "b", diagnosis(), created=20_000.0)
    assert (await store.retention.drop_attempts(9_000.0, 10)).attempts == 1
    assert await store.retention.drop_incidents(150.0, 10) == 0
    assert await store.retention.drop_incidents(9_000.0, 10) == 1
    assert (await the_incident(store)).node == "gpu-004"
    assert await store.retention.drop_incidents(9_000.0, 10) == 0

"""Contract of the logs of nodes."""

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import NODE_LOG, AttemptKey, Event, EventKind, Job, Stream, node_log_id
from tests.contract.records import KEY, TIMING, append, record

LOG = node_log_id("east", "gpu-004.hpc.example")
KERNEL = Stream("kernel", "gpu-004.hpc.example")


async def diagnosed(store: SqlStore, at: float, key: AttemptKey = KEY) -> None:
    """An attempt that ended a moment before ``at``, with its diagnosis."""
    await store.jobs.add_event(key, Event(EventKind.EXIT, at - 10, code=1))
    (claim,) = await store.work.claim_attempts(at, TIMING, 60.0, 5)
    await store.work.save_diagnosis(claim, record(f"d{at}", claim), None, [])


async def test_parts_are_found_by_node_and_age(store: SqlStore) -> None:
    """Of the nodes that are asked for, the parts from a number on; nodes without a log are missing."""
    for number in (10, 11):
        await store.logs.append([append(AttemptKey(LOG, number), stream=KERNEL, delta=b"part %d" % number)])
    other = node_log_id("east", "gpu-005")
    assert await store.node_logs.parts([LOG, other], 11) == {LOG: [b"part 11"]}
    assert sorted((await store.node_logs.parts([LOG], 1))[LOG]) == [b"part 10", b"part 11"]
    assert await store.node_logs.parts([LOG], 1, newest=1) == {LOG: [b"part 11"]}
    assert await store.node_logs.parts([], 1) == {}


async def test_a_node_log_is_never_due(store: SqlStore) -> None:
    """Fatal lines of a node make no attempt of their own due for diagnosis."""
    await store.logs.append([append(AttemptKey(LOG, 10), stream=KERNEL, fatal=True, at=100.0)])
    assert await store.work.claim_attempts(10_000.0, TIMING, 60.0, 5) == []


async def test_old_parts_go_with_all_that_is_theirs(store: SqlStore) -> None:
    """Parts under a number are dropped with lines and cursors; newer ones and jobs stay."""
    await store.logs.append([append(AttemptKey(LOG, number), stream=KERNEL) for number in (3, 4)])
    await store.logs.append([append()])
    assert await store.node_logs.drop_parts(NODE_LOG, 4) == 1
    assert await store.logs.pieces(AttemptKey(LOG, 3)) == []
    assert (await store.logs.cursors([AttemptKey(LOG, 3)]))[AttemptKey(LOG, 3)] == {}
    assert len(await store.logs.pieces(AttemptKey(LOG, 4))) == len(await store.logs.pieces(KEY)) == 1


async def test_attempts_on_the_node_are_looked_at_again(store: SqlStore) -> None:
    """Those that the scheduler put there, under a short or a full name, when they failed of late and are diagnosed."""
    other, first, again = AttemptKey("sft-8b", 1), AttemptKey("sft-70b", 1), AttemptKey("sft-70b", 2)
    await store.jobs.register(Job(KEY.job, nodes=("gpu-003", "gpu-004", "gpu-005")), KEY.number)
    await diagnosed(store, 1_000.0)
    await store.jobs.register(Job("sft-8b", nodes=("gpu-004.hpc.example",)))
    await diagnosed(store, 1_100.0, other)
    await store.jobs.register(Job("sft-70b", rank_nodes={0: "gpu-004"}), 1)
    await diagnosed(store, 1_110.0, first)
    await diagnosed(store, 1_120.0, again)  # nobody told where it ran: where the job did
    assert await store.logs.revisit(LOG, 700.0, 1_200.0) == 4
    claims = await store.work.claim_attempts(1_300.0, TIMING, 60.0, 5)
    assert {claim.attempt.key for claim in claims} == {KEY, other, first, again}


async def test_a_job_that_calls_its_stream_after_a_node_is_not_looked_at_again(store: SqlStore) -> None:
    """Who sends lines may name any node; nor does an earlier launch of the job on the node count for a later one."""
    later = AttemptKey("sft-8b", 2)
    await store.logs.append([append(stream=Stream("stdout", "gpu-004"), at=900.0)])
    await diagnosed(store, 1_000.0)
    await store.jobs.register(Job("sft-8b", nodes=("gpu-004",)), 1)
    await store.jobs.register(Job("sft-8b", nodes=("gpu-014", "xgpu-004", "gpu-0041.hpc.example")), 2)
    await diagnosed(store, 1_100.0, later)
    assert await store.logs.revisit(LOG, 700.0, 1_200.0) == 0


async def test_attempts_elsewhere_or_of_long_ago_are_left_alone(store: SqlStore) -> None:
    """Another node, an end before the time in question, or no diagnosis yet: nothing changes."""
    await store.jobs.register(Job(KEY.job, nodes=("gpu-004",)), KEY.number)
    await diagnosed(store, 1_000.0)
    assert await store.logs.revisit(node_log_id("east", "gpu-00"), 700.0, 1_200.0) == 0
    assert await store.logs.revisit(LOG, 991.0, 1_200.0) == 0
    await store.logs.append([append(AttemptKey("new", 1), fatal=True, at=1_150.0)])
    assert await store.logs.revisit(LOG, 1_100.0, 1_200.0) == 0

"""Contract of the cases that people judged, and of how the rules did on them."""

from dataclasses import replace

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, CaseMark, CaseOutcome, CaseReplay, Judgement
from diagnoser.model.taxonomy import FailureType
from tests.contract.test_feedback import LEARNED, SAID
from tests.contract.test_queries import put

OUTCOME = CaseOutcome(
    "01", AttemptKey("j"), 200.0, FailureType.GPU_LOST, FailureType.UNKNOWN, FailureType.GPU_LOST, True
)
REPLAY = CaseReplay(400.0, "1.0", "ab12", CaseMark(1, 300.0), (OUTCOME,))


async def test_cases_are_what_people_judged(store: SqlStore, second: SqlStore) -> None:
    """In order and in pages; what only a recovery confirmed is none; each further judgement changes the mark."""
    assert await store.cases.mark() == CaseMark()
    for number in range(1, 5):
        await put(store, f"0{number}")
    await store.feedback.add_confirmed_failure(replace(LEARNED, diagnosis="02", by="recovery: plan p"))
    for diagnosis in ("03", "01", "04"):
        said = replace(SAID, id=f"f{diagnosis}", diagnosis=diagnosis)
        await store.feedback.add(said, replace(LEARNED, diagnosis=diagnosis, changed=300.0 + int(diagnosis)))
    first = await second.cases.judged("", 2)
    assert (first, await second.cases.judged(first[-1], 2)) == (["01", "03"], ["04"])
    assert await second.cases.mark() == CaseMark(3, 304.0)
    again = replace(SAID, id="f9", diagnosis="01", comment="a second look")
    await store.feedback.add(again, replace(LEARNED, diagnosis="01", changed=400.0))
    assert await second.cases.mark() == CaseMark(3, 400.0)


async def test_cases_are_numbered_in_the_order_of_their_first_judgement(store: SqlStore, second: SqlStore) -> None:
    """A number stays, whatever is said later; a diagnosis that nobody judged has none."""
    for number in range(1, 4):
        await put(store, f"0{number}")
    for number, diagnosis in enumerate(("03", "01", "03"), 1):
        said = replace(SAID, id=f"f{number}", diagnosis=diagnosis)
        await store.feedback.add(said, replace(LEARNED, diagnosis=diagnosis))
    assert [await second.cases.number(diagnosis) for diagnosis in ("03", "01", "02", "none")] == [1, 2, None, None]


async def test_judgements_tell_what_was_said_and_what_is_known(store: SqlStore, second: SqlStore) -> None:
    """Of verdicts made since a time, those judged last first, in the order of the store and not of clocks; what only a
    recovery confirmed is none of them."""
    for number in range(1, 5):
        await put(store, f"0{number}", created=100.0 * number)
    await store.feedback.add_confirmed_failure(replace(LEARNED, diagnosis="02", changed=900.0, by="recovery: plan p"))
    for diagnosis, changed in (("01", 500.0), ("03", 700.0), ("04", 600.0)):
        learned = replace(LEARNED, diagnosis=diagnosis, changed=changed)
        await store.feedback.add(replace(SAID, id=f"f{diagnosis}", diagnosis=diagnosis), learned)
    found = await second.cases.judgements(200.0, 9)
    assert [(judgement.diagnosis, judgement.time) for judgement in found] == [("04", 400.0), ("03", 300.0)]
    record = await second.diagnoses.find("04")
    assert record is not None
    verdict = record.diagnosis
    assert found[0] == Judgement("04", 400.0, verdict.type, LEARNED.type, verdict.decided_by)
    assert await second.cases.judgements(200.0, 1) == found[:1]


async def test_a_replay_is_kept_once(store: SqlStore, second: SqlStore) -> None:
    """The same software and rules over the same cases count once, whichever replica was faster; the newest first."""
    assert await store.cases.add_replay(REPLAY)
    assert not await second.cases.add_replay(replace(REPLAY, time=401.0))
    later = replace(REPLAY, time=500.0, ruleset="cd34", outcomes=(OUTCOME, replace(OUTCOME, diagnosis="02", root=None)))
    assert await second.cases.add_replay(later)
    assert await store.cases.replays(5) == [later, REPLAY]
    assert await store.cases.replays(1) == [later]
    assert (later.right, later.was_right, later.roots) == (2, 0, (True,))

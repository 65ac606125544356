"""Contract of the cases that people judged, and of how the rules did on them."""

from dataclasses import replace

from diagnoser.model import AttemptKey, CaseMark, CaseOutcome, CaseReplay
from diagnoser.model.taxonomy import FailureType
from diagnoser.ports import Store
from tests.contract.test_feedback import LEARNED, SAID
from tests.contract.test_queries import put

OUTCOME = CaseOutcome(
    "01", AttemptKey("j"), 200.0, FailureType.GPU_LOST, FailureType.UNKNOWN, FailureType.GPU_LOST, True
)
REPLAY = CaseReplay(400.0, "1.0", "ab12", CaseMark(1, 300.0), (OUTCOME,))


async def test_cases_are_what_people_judged(store: Store, second: Store) -> None:
    """In order and in pages; what only a recovery confirmed is none; each further judgement changes the mark."""
    assert await store.case_mark() == CaseMark()
    for number in range(1, 5):
        await put(store, f"0{number}")
    await store.add_confirmed_failure(replace(LEARNED, diagnosis="02", by="recovery: plan p"))
    for diagnosis in ("03", "01", "04"):
        said = replace(SAID, id=f"f{diagnosis}", diagnosis=diagnosis)
        await store.add_feedback(said, replace(LEARNED, diagnosis=diagnosis, changed=300.0 + int(diagnosis)))
    first = await second.judged("", 2)
    assert (first, await second.judged(first[-1], 2)) == (["01", "03"], ["04"])
    assert await second.case_mark() == CaseMark(3, 304.0)
    again = replace(SAID, id="f9", diagnosis="01")
    await store.add_feedback(again, replace(LEARNED, diagnosis="01", changed=400.0))
    assert await second.case_mark() == CaseMark(3, 400.0)


async def test_a_replay_is_kept_once(store: Store, second: Store) -> None:
    """The same software and rules over the same cases count once, whichever replica was faster; the newest first."""
    assert await store.add_replay(REPLAY)
    assert not await second.add_replay(replace(REPLAY, time=401.0))
    later = replace(REPLAY, time=500.0, ruleset="cd34", outcomes=(OUTCOME, replace(OUTCOME, diagnosis="02", root=None)))
    assert await second.add_replay(later)
    assert await store.replays(5) == [later, REPLAY]
    assert await store.replays(1) == [later]
    assert (later.right, later.was_right, later.roots) == (2, 0, (True,))

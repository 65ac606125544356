"""Contract of what people say about diagnoses."""

from dataclasses import replace

import numpy as np
import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import ConfirmedFailure, Event, EventKind, Feedback, FeedbackVerdict, Signature
from diagnoser.model.errors import NotFound
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import FailureType
from tests.contract.records import KEY, TIMING, diagnosis, record
from tests.contract.test_queries import put

SAID = Feedback("f1", "01", 300.0, FeedbackVerdict.CONFIRMED, "maria")
VECTORS = {"hashing-4": np.arange(4, dtype="<f4").tobytes(), "a/b:c": b"\n\0\n\0"}
LEARNED = ConfirmedFailure(
    "01",
    KEY,
    200.0,
    300.0,
    FailureType.GPU_LOST,
    FeedbackVerdict.CONFIRMED,
    "maria",
    Signature("m", "c", "f"),
    vectors=VECTORS,
)


async def test_what_is_said_is_kept_the_newest_first(store: SqlStore, second: SqlStore) -> None:
    """Both words stay, also in lists and for another replica; the confirmed failure is the one of the newest."""
    await put(store, "01")
    later = replace(SAID, id="f2", verdict=FeedbackVerdict.CORRECTED, type=FailureType.ECC_ERROR, node="n", created=301)
    await store.feedback.add(SAID, LEARNED)
    await store.feedback.add(later, replace(LEARNED, type=FailureType.ECC_ERROR, changed=301.0))
    found = await second.diagnoses.find("01")
    assert found is not None and found.feedback == (later, SAID)
    (listed,) = await second.diagnoses.page(DiagnosisFilter(), "", 10)
    assert listed.feedback == (later, SAID)
    assert await second.feedback.confirmed_failures(0.0, "", 10) == [
        replace(LEARNED, type=FailureType.ECC_ERROR, changed=301.0)
    ]


async def test_confirmed_failures_are_read_by_what_changed_in_pages(store: SqlStore) -> None:
    """A reader that asks from a time on gets what changed since, each once; or only the newest."""
    for number in range(4):
        about = f"0{number}"
        await put(store, about)
        said = replace(SAID, id=f"f{number}", diagnosis=about)
        await store.feedback.add(said, replace(LEARNED, diagnosis=about, changed=300.0 + number))
    first = await store.feedback.confirmed_failures(301.0, "", 2)
    rest = await store.feedback.confirmed_failures(301.0, first[-1].diagnosis, 2)
    assert [one.diagnosis for one in first + rest] == ["01", "02", "03"]
    assert await store.feedback.confirmed(2) == ["03", "02"]


async def test_nothing_is_said_about_a_diagnosis_that_is_not_there(store: SqlStore) -> None:
    """Neither the word nor a confirmed failure is stored."""
    with pytest.raises(NotFound):
        await store.feedback.add(SAID, LEARNED)
    assert await store.feedback.confirmed_failures(0.0, "", 10) == []


async def test_a_word_holds_for_later_diagnoses_of_the_attempt(store: SqlStore, second: SqlStore) -> None:
    """A cause that was confirmed stays known when more log makes the machine think again; earlier ones are as said."""
    await put(store, "01")
    await store.feedback.add(SAID, LEARNED)
    key = (await store.diagnoses.page(DiagnosisFilter(), "", 1))[0].attempt
    await store.jobs.add_event(key, Event(EventKind.CHECKPOINT, 400.0))
    (claim,) = await store.work.claim_attempts(1e9, TIMING, 60.0, 10)
    other = replace(diagnosis(), type=FailureType.ECC_ERROR)
    await store.work.save_diagnosis(claim, record("02", claim, other, created=401.0), None, [])
    later, earlier = await second.diagnoses.find("02"), await second.diagnoses.find("01")
    assert later is not None and earlier is not None
    assert earlier.feedback == (SAID,)
    assert later.feedback == (replace(SAID, verdict=FeedbackVerdict.CORRECTED, type=FailureType.GPU_LOST),)
    own = replace(SAID, id="f2", diagnosis="02", created=402.0)
    await store.feedback.add(own, replace(LEARNED, diagnosis="02", type=FailureType.ECC_ERROR))
    again = await second.diagnoses.find("02")
    assert again is not None and again.feedback[0] == own

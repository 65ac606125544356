"""The twins for one process."""

import asyncio

import pytest

from diagnoser.adapters.memory import LocalWakeSignal, RecordingSender, ScriptedModel
from diagnoser.model.errors import DeliveryError, ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest
from tests.contract.records import effect

QUESTION = ModelRequest("system", "user", {}, 100, 0.0)
ANSWER = ModelAnswer("{}", "scripted", 1, 1)


async def test_a_call_ends_the_sleep() -> None:
    """A loop that sleeps wakes up as soon as there is work."""
    wake = LocalWakeSignal()
    sleep = asyncio.create_task(wake.wait(3600.0))
    await asyncio.sleep(0)
    wake.notify()
    await asyncio.wait_for(sleep, 60.0)


async def test_a_call_while_nobody_sleeps_is_kept_once() -> None:
    """Work that came during a round starts the next one at once, and only that one."""
    wake = LocalWakeSignal()
    wake.notify()
    wake.notify()
    await asyncio.wait_for(wake.wait(3600.0), 60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wake.wait(3600.0), 0.01)


async def test_a_sleep_ends_by_itself() -> None:
    """Without a call the loop looks for due rows after its longest sleep."""
    await asyncio.wait_for(LocalWakeSignal().wait(0.001), 60.0)


async def test_a_recording_sender_fails_as_told_and_then_delivers() -> None:
    """Faults are raised in order; what was delivered is on record."""
    fault = DeliveryError("HTTP 503", permanent=False)
    sender = RecordingSender([fault, None])
    with pytest.raises(DeliveryError) as raised:
        await sender.send(effect("a"))
    assert raised.value is fault
    await sender.send(effect("b"))
    await sender.send(effect("c"))
    assert [sent.key for sent in sender.sent] == ["b", "c"]


async def test_a_scripted_model_answers_in_order_and_then_fails() -> None:
    """Answers and failures come as prepared; an empty script is a model that is away."""
    model = ScriptedModel([ANSWER, ModelFailed(ModelFailure.TIMEOUT, "slow")])
    assert await model.ask(QUESTION) == ANSWER
    reasons = []
    for _ in range(2):
        with pytest.raises(ModelFailed) as raised:
            await model.ask(QUESTION)
        reasons.append(raised.value.reason)
    assert reasons == [ModelFailure.TIMEOUT, ModelFailure.UNAVAILABLE]
    assert model.asked == [QUESTION] * 3

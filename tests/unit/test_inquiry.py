"""A question in place: what the model is asked, what it may see, and what becomes of its answer."""

import json
from pathlib import Path

import pytest

from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.inquiry import Inquiries
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.failure_agent.agent import FailureAgent, LLMTrigger
from diagnoser.failure_agent.guarded_model import GuardedModel
from diagnoser.llm.guard import LLMCircuitBreaker, TokenBudget
from diagnoser.model import AttemptKey, LineBlock, RootCause, Stream
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType
from diagnoser.ports import ModelAnswer, ModelSample, ToolCall
from tests import accuracy_bars
from tests.in_memory import ScriptedModel
from tests.serving import HOSTILE, NOW, Web, confirmed_failures, save, serving, shipped_policy, store_log, verdict

KEY = AttemptKey("llm-7b")
LINES = ("step 1 loss 2.1", "gpu-7 sends its shard", "[rank2]: RuntimeError: the seam is torn")
FORM = {"sec-fetch-site": "same-origin"}


def answer(text: str = "", *calls: ToolCall) -> ModelAnswer:
    return ModelAnswer((ModelSample(text, calls),), "scripted", 900, 80)


def said(words: str, quote: str, line: int = 3) -> ModelAnswer:
    return answer(json.dumps({"answer": words, "cited": [{"line": line, "quote": quote, "source": ""}]}))


def inquiries(web: Web, *answers: ModelAnswer | ModelFailed, tokens: int = 100_000) -> tuple[Inquiries, ScriptedModel]:
    scripted = ScriptedModel(answers)
    model = GuardedModel(scripted, TokenBudget(tokens), LLMCircuitBreaker(), lambda: 0.0)
    config = llm_factory.consultation_config(Settings(), llm_factory.QUESTION)
    store, metrics, policy = web.store, web.services.core.metrics, shipped_policy()
    agent = FailureAgent(model, config, policy, metrics, when=LLMTrigger.UNDECIDED, clock=lambda: 0.0)
    knowledge = accuracy_bars.load().knowledge
    stage = LLMStage(agent, confirmed_failures(store), store.cases, knowledge, store.plans)
    return Inquiries(stage, model, config), scripted


async def failed(web: Web) -> str:
    data = "".join(line + "\n" for line in LINES).encode()
    await store_log(web.store, KEY, LineBlock(Stream("stdout"), data, received=NOW - 60))
    root = RootCause(3, LINES[2], 2)
    return (await save(web.store, KEY.job, verdict(FailureType.RUNTIME_ERROR, root_cause=root))).id


async def ask(
    folder: Path, *answers: ModelAnswer | ModelFailed, q: str = "what did it print?", tokens: int = 100_000
) -> tuple[str, ScriptedModel]:
    """The page after a question."""
    async with serving(folder) as bare:
        made, scripted = inquiries(bare, *answers, tokens=tokens)
        async with serving(folder, store=bare.store, inquiries=made) as web:
            page = await web.client.post(f"/diagnoses/{await failed(web)}/ask", data={"q": q}, headers=FORM)
    assert page.status_code == 200, page.text
    return page.text, scripted


async def test_an_answer_cites_lines_that_the_model_looked_at(tmp_path: Path) -> None:
    """A tool first, then the answer: its line leads to the log, and the model's words are text without links."""
    call = ToolCall("search_log", {"pattern": "seam"})
    words = f"Rank 2 said so: {HOSTILE} https://evil.example/x"
    page, scripted = await ask(tmp_path, answer("", call), said(words, "the seam is torn"))
    assert LINES[2] in page and "/log?at=" in page
    assert "&lt;script&gt;" in page and "<img src=x" not in page and "evil.example/x" not in page
    assert "search_log" in page
    assert [request.may_call for request in scripted.asked] == [True, True]
    assert scripted.asked[0].follow_up == "The engineer asks: what did it print?"


async def test_what_no_line_proves_says_so(tmp_path: Path) -> None:
    """A quote that stands nowhere is no citation."""
    page, _ = await ask(tmp_path, said("The fan stopped.", "fan of gpu-9 stopped at noon"))
    assert "The fan stopped." in page and "No line proves this answer." in page


@pytest.mark.parametrize("tokens", [100_000, 10])
async def test_without_an_answer_the_page_offers_the_search(tmp_path: Path, tokens: int) -> None:
    """Where the server fails, and where the budget that consultations use is spent: then it is not asked at all."""
    page, scripted = await ask(tmp_path, ModelFailed(ModelFailure.UNAVAILABLE, "away"), tokens=tokens, q="the seam")
    assert "No answer" in page and "search?q=the%20seam" in page
    assert len(scripted.asked) == (tokens > 10)


async def test_without_a_model_the_words_are_searched(tmp_path: Path) -> None:
    """And the page says that there is none."""
    async with serving(tmp_path) as web:
        made = await failed(web)
        assert "No language model is set up" in (await web.client.get(f"/diagnoses/{made}")).text
        sent = await web.client.post(f"/diagnoses/{made}/ask", data={"q": "seam"}, headers=FORM)
    assert sent.headers["location"] == "/jobs/llm-7b/attempts/1/search?q=seam"

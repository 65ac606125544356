"""One consultation of the model: few calls, few tokens, answers that are checked, and two that agree."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from diagnoser.llm import answer, evidence, question, vote
from diagnoser.llm.evidence import CheckContext, Checked
from diagnoser.llm.prompt import Prompt, tokens_of
from diagnoser.llm.redact import Mask
from diagnoser.llm.view import LogView, disguise
from diagnoser.model import Diagnosis, Evidence, Facts
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest

CALLS_MAX = 5
"""Questions of one consultation, repairs and refusals included."""
TOKENS_MAX = 40_000
"""Tokens of one consultation, read and written."""
VIEW_MIN = 300
"""Tokens of log below which there is nothing to read."""
WAIT_MAX = 5.0
"""Seconds that a busy server may ask to be left alone within one consultation."""
_REPAIRED_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ConsultationInput:
    """What is asked about. view: size in tokens -> what the model may read. incidents: similar ones, in words."""

    diagnosis: Diagnosis
    log: Evidence
    facts: Facts
    view: Callable[[int], LogView]
    incidents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AblationSwitches:
    """Parts that can be left out, to measure what they are worth."""

    vote: bool = True
    check: bool = True


@dataclass(frozen=True, slots=True)
class ConsultationConfig:
    """How a site asks. view_tokens: size of the view at most. token: a new random word each time, for the marker."""

    prompt: Prompt
    mask: Mask
    view_tokens: int
    token: Callable[[], str]
    steps: AblationSwitches = AblationSwitches()


@dataclass(slots=True)
class UsageCounter:
    """What a consultation used so far. pending: tokens that the questions under way may cost."""

    model: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    pending: int = 0


@dataclass(slots=True)
class Consultation:
    model: LanguageModel
    subject: ConsultationInput
    terms: ConsultationConfig
    used: UsageCounter = field(init=False)

    def __post_init__(self) -> None:
        self.used = UsageCounter(self.model.name)

    async def run(self) -> tuple[Checked, ...]:
        """The answers that agree. Raises ModelFailed."""
        room = await self._room()
        try:
            return await self._agree(room)
        except ModelFailed as failure:
            if failure.reason is not ModelFailure.CONTEXT_TOO_SMALL or room // 2 < VIEW_MIN:
                raise
        return await self._agree(room // 2)

    async def _room(self) -> int:
        """Tokens for the view: what is wanted, or what the server has room for beside prompt and answer."""
        context = await self.model.context()
        if context is None:
            return self.terms.view_tokens
        empty, _ = prepare(replace(self.subject, view=lambda _: LogView("", {})), self.terms, 0)
        room = min(self.terms.view_tokens, context - _size(empty))
        if room < VIEW_MIN:
            raise ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, f"the server takes {context} tokens")
        return room

    async def _agree(self, room: int) -> tuple[Checked, ...]:
        request, scene = await asyncio.to_thread(prepare, self.subject, self.terms, room)
        answers: list[Checked] = []
        failures: list[ModelFailed] = []
        asked = 0
        while more := vote.wanted(answers, asked) if self.terms.steps.vote else 1 - asked:
            for found in await asyncio.gather(*(self._sample(request, scene) for _ in range(more))):
                if isinstance(found, Checked):
                    answers.append(found)
                else:
                    failures.append(found)
            asked += more
        if same := vote.agreed(answers) if self.terms.steps.vote else tuple(answers):
            return same
        if len(answers) >= vote.AGREE:
            raise ModelFailed(ModelFailure.NO_AGREEMENT, vote.split(answers))
        raise failures[0]

    async def _sample(self, request: ModelRequest, scene: CheckContext) -> Checked | ModelFailed:
        try:
            said = await self._read(request)
            return evidence.check(said, scene) if self.terms.steps.check else evidence.trusted(said, scene)
        except ModelFailed as failure:
            return failure

    async def _read(self, request: ModelRequest) -> answer.Answer:
        """The answer; when it can not be read the model is told why, once."""
        text = (await self._ask(request)).text
        try:
            return answer.parse(text)
        except ModelFailed as fault:
            told = self.terms.prompt.render_repair(str(fault))
            if not text or not told or self._refusal(request):
                raise
        repaired = await self._ask(replace(request, repair=(text[:_REPAIRED_CHARS], told)))
        return answer.parse(repaired.text)

    async def _ask(self, request: ModelRequest) -> ModelAnswer:
        """One question; again where the server only wants to be asked in another way, or a little later."""
        last: ModelFailed | None = None
        while (refusal := self._refusal(request)) is None:
            try:
                return await self._count(request)
            except ModelFailed as failure:
                if not await _again(failure):
                    raise
                last = failure
        raise last or refusal

    async def _count(self, request: ModelRequest) -> ModelAnswer:
        size = _size(request)
        self.used.calls += 1
        self.used.pending += size
        try:
            reply = await self.model.ask(request)
        except ModelFailed as failure:
            if failure.reason in (ModelFailure.BREAKER_OPEN, ModelFailure.BUDGET_SPENT):
                self.used.calls -= 1  # it was not sent
            raise
        finally:
            self.used.pending -= size
        self.used.model = reply.model
        self.used.tokens_in += reply.tokens_in or size - request.max_tokens
        self.used.tokens_out += reply.tokens_out or tokens_of(reply.text)
        return reply

    def _refusal(self, request: ModelRequest) -> ModelFailed | None:
        """Why nothing more may be asked in this consultation, None while it may."""
        if self.used.calls >= CALLS_MAX:
            return ModelFailed(ModelFailure.NO_AGREEMENT, f"{CALLS_MAX} calls gave no answer that two agree on")
        tokens = self.used.tokens_in + self.used.tokens_out + self.used.pending + _size(request)
        if tokens > TOKENS_MAX:
            return ModelFailed(ModelFailure.BUDGET_SPENT, f"{TOKENS_MAX} tokens gave no verdict")
        return None


def prepare(subject: ConsultationInput, terms: ConsultationConfig, room: int) -> tuple[ModelRequest, CheckContext]:
    """The question, and what its answer is held against. room: tokens for the view."""
    view = subject.view(room)
    nodes, ranks = question.nodes_of(subject.log, subject.facts), question.ranks_of(subject.log, subject.facts)
    hidden = disguise(view.text, nodes, terms.mask)
    marker = f"LOG-{terms.token()}"
    filled = question.variables(subject.diagnosis, subject.facts, view, subject.incidents, hidden, marker)
    system, user = terms.prompt.render(filled)
    meta = terms.prompt.meta
    request = ModelRequest(system, user, answer.schema(), meta.max_tokens, meta.temperature)
    return request, CheckContext(view.lines, nodes, ranks, hidden, system)


def _size(request: ModelRequest) -> int:
    """Tokens that a question may cost with its answer."""
    repair = sum(map(tokens_of, request.repair or ()))
    return tokens_of(request.system) + tokens_of(request.user) + repair + request.max_tokens


async def _again(failure: ModelFailed) -> bool:
    """Whether the same question is worth asking again, after the wait that the server asked for."""
    if failure.reason is ModelFailure.RATE_LIMITED and failure.retry_after is not None:
        if failure.retry_after > WAIT_MAX:
            return False
        await asyncio.sleep(failure.retry_after)
        return True
    return failure.reason is ModelFailure.FORMAT_REFUSED

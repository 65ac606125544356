"""A language model behind its budget and its circuit breaker; itself a language model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from diagnoser.failure_agent.conversation import question_tokens, tokens_written
from diagnoser.llm.guard import LLMCircuitBreaker, TokenBudget
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest

# Failures of the server, not of the question: only these count for the breaker.
_SERVER_FAILURES = frozenset(
    {
        ModelFailure.UNAVAILABLE,
        ModelFailure.TIMEOUT,
        ModelFailure.DENIED,
        ModelFailure.NOT_FOUND,
        ModelFailure.RATE_LIMITED,
    }
)


class RequestObserver(Protocol):
    def __call__(self, seconds: float, *, rests: bool) -> None:
        """rests: whether the server gets a rest now."""


@dataclass(eq=False)
class GuardedModel:
    """clock: monotonic seconds. observe: told of each request that was sent. Everybody who asks the same server shares
    one of these."""

    model: LanguageModel
    budget: TokenBudget
    breaker: LLMCircuitBreaker
    clock: Callable[[], float]
    observe: RequestObserver | None = None

    def __post_init__(self) -> None:
        self.name = self.model.name

    async def context(self) -> int | None:
        return None if self.breaker.rests(self.clock()) else await self.model.context()

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed, also where the guard does not let the request through."""
        size = question_tokens(request)
        entry = self.budget.reserve(self.clock(), size, request.samples * request.max_tokens)
        if entry is None:
            raise ModelFailed(ModelFailure.BUDGET_SPENT, "the hour's tokens are used up")
        if not self.breaker.admits(self.clock()):
            self.budget.charge(entry, 0, 0)
            raise ModelFailed(ModelFailure.BREAKER_OPEN, "the server failed repeatedly and gets a rest")
        began = self.clock()
        try:
            answer = await self.model.ask(request)
        except ModelFailed as failure:
            self.budget.charge(entry, size if failure.reason is ModelFailure.MALFORMED else 0, 0)
            self._record(failure)
            self._report(began)
            raise
        except BaseException:  # cancelled: the server may have done the work, so the reservation stays
            self.breaker.failed(self.clock())
            self._report(began)
            raise
        self.breaker.succeeded()
        self.budget.charge(entry, answer.tokens_in or size, answer.tokens_out or tokens_written(answer))
        self._report(began)
        return answer

    def _report(self, began: float) -> None:
        now = self.clock()
        if self.observe:
            self.observe(now - began, rests=self.breaker.rests(now))

    def _record(self, failure: ModelFailed) -> None:
        if failure.reason in _SERVER_FAILURES:
            self.breaker.failed(self.clock(), failure.retry_after)
        else:
            self.breaker.succeeded()

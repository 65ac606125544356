"""A language model behind its budget and its circuit breaker; itself a language model."""

from collections.abc import Callable
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


class GuardedModel:
    """clock: monotonic seconds. observe: told of each request that was sent. Everybody who asks the same server shares
    one of these."""

    def __init__(
        self,
        model: LanguageModel,
        budget: TokenBudget,
        breaker: LLMCircuitBreaker,
        clock: Callable[[], float],
        observe: RequestObserver | None = None,
    ) -> None:
        self.name = model.name
        self._model = model
        self._budget = budget
        self._breaker = breaker
        self._clock = clock
        self._observe = observe

    async def context(self) -> int | None:
        return None if self._breaker.rests(self._clock()) else await self._model.context()

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed, also where the guard does not let the request through."""
        size = question_tokens(request)
        entry = self._budget.reserve(self._clock(), size, request.samples * request.max_tokens)
        if entry is None:
            raise ModelFailed(ModelFailure.BUDGET_SPENT, "the hour's tokens are used up")
        if not self._breaker.admits(self._clock()):
            self._budget.charge(entry, 0, 0)
            raise ModelFailed(ModelFailure.BREAKER_OPEN, "the server failed repeatedly and gets a rest")
        began = self._clock()
        try:
            answer = await self._model.ask(request)
        except ModelFailed as failure:
            self._budget.charge(entry, size if failure.reason is ModelFailure.MALFORMED else 0, 0)
            self._record(failure)
            self._report(began)
            raise
        except BaseException:  # cancelled: the server may have done the work, so the reservation stays
            self._breaker.failed(self._clock())
            self._report(began)
            raise
        self._breaker.succeeded()
        self._budget.charge(entry, answer.tokens_in or size, answer.tokens_out or tokens_written(answer))
        self._report(began)
        return answer

    def _report(self, began: float) -> None:
        now = self._clock()
        if self._observe:
            self._observe(now - began, rests=self._breaker.rests(now))

    def _record(self, failure: ModelFailed) -> None:
        if failure.reason in _SERVER_FAILURES:
            self._breaker.failed(self._clock(), failure.retry_after)
        else:
            self._breaker.succeeded()

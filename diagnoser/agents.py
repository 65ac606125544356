"""The model stage of a site, put together: the server behind its guards, the prompt, what is masked."""

import secrets
import time

from diagnoser.adapters import files
from diagnoser.adapters.openai import OpenAIModel
from diagnoser.failure_agent import FailureAgent, When
from diagnoser.guarded import GuardedModel
from diagnoser.inquiry import Steps, Terms
from diagnoser.llm import prompt, redact
from diagnoser.llm.guard import Breaker, Budget, Limits
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.redact import Redactor
from diagnoser.ports import LanguageModel
from diagnoser.recovery.policy import Policy
from diagnoser.settings import Settings
from diagnoser.telemetry import Metrics

FAILURE_AGENT = "failure_agent/v1"


def load_prompt(settings: Settings, name: str = FAILURE_AGENT) -> Prompt:
    """name: ``<name>/v<N>``. Raises RuleFaults, BadInput."""
    return prompt.load(name, files.texts((settings.prompts_dir or files.bundled("prompts")) / name, "*"))


def load_mask(settings: Settings) -> Redactor:
    """What this site masks before text leaves it. Raises RuleFaults, BadInput."""
    path = settings.redact_file
    return redact.load(str(path), files.text(path)) if path else redact.redact


def endpoint(settings: Settings) -> OpenAIModel:
    """The configured server. The caller closes it."""
    key, deadline = settings.model_key.get_secret_value(), settings.model_deadline_seconds
    return OpenAIModel(settings.model_url, settings.model_name, key, deadline)


def guarded(settings: Settings, model: LanguageModel) -> GuardedModel:
    """Everybody who asks the server shares the one that this returns: budget and breaker are its."""
    limits = Limits(
        settings.model_tokens_per_hour,
        settings.model_cost_per_hour,
        settings.model_price_in,
        settings.model_price_out,
    )
    breaker = Breaker(settings.model_breaker_failures, settings.model_breaker_seconds)
    return GuardedModel(model, Budget(limits), breaker, time.monotonic)


def failure_agent(
    settings: Settings, model: LanguageModel, policy: Policy, metrics: Metrics, steps: Steps | None = None
) -> FailureAgent:
    """steps: parts that an evaluation leaves out. Raises RuleFaults, BadInput."""
    return FailureAgent(
        model,
        Terms(load_prompt(settings), load_mask(settings), settings.model_view_tokens, _token, steps or Steps()),
        policy,
        metrics,
        when=When(settings.model_when),
        deadline=settings.model_deadline_seconds,
        clock=time.monotonic,
    )


def _token() -> str:
    return secrets.token_hex(8)

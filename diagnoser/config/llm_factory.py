"""Builds the model stage from the settings: the server behind its guards, the prompts, what is masked."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.feedback import FeedbackRepository
from diagnoser.config.folders import prompt_texts
from diagnoser.config.settings import Settings
from diagnoser.config.site_files import load_outbound_redactor, load_redactor
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.inquiry import Inquiries
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.failure_agent.agent import FailureAgent, LLMTrigger
from diagnoser.failure_agent.consultation import ConsultationConfig, ConsultationInput, prepare
from diagnoser.failure_agent.conversation import build_question
from diagnoser.failure_agent.guarded_model import GuardedModel
from diagnoser.failure_agent.tools import SPECS
from diagnoser.learning import rule_context, rule_writer
from diagnoser.learning.log_agent import FilterRegistry, LogAgent
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_lifecycle import RuleLearningConfig, RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.rule_writer import LLMRuleWriter
from diagnoser.llm import prompt
from diagnoser.llm.guard import LLMCircuitBreaker, TokenBudget
from diagnoser.llm.prompt import Prompt
from diagnoser.model import AttemptKey, Diagnosis, Evidence, Facts
from diagnoser.model.errors import BadInput
from diagnoser.model.work import DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import LanguageModel, ModelRequest
from diagnoser.recovery.policy import Policy
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures

if TYPE_CHECKING:
    from diagnoser.accuracy.llm_ablation import AblationCase, AblationResult
    from diagnoser.adapters.openai import OpenAIModel

FAILURE_AGENT = "failure_agent/v4"
RULE_WRITER = "rule_writer/v1"
LOG_AGENT = "log_agent/v2"
QUESTION = "question/v1"
PROMPTS = (FAILURE_AGENT, RULE_WRITER, LOG_AGENT, QUESTION)
LOG_TOKENS = 2500
"""Size of the log that the model is shown: it may look at the rest. Fewer where the server's context is smaller."""
EMBED_SECONDS = 5.0
WRITING_SECONDS = 60.0
"""For writing one rule, which no request waits for."""


def load_prompt(settings: Settings, name: str) -> Prompt:
    """name: ``<name>/v<N>``. Raises RuleFaults, BadInput."""
    return prompt.load(name, prompt_texts(settings, name))


def endpoint(settings: Settings) -> "OpenAIModel":
    """The configured server. The caller closes it."""
    from diagnoser.adapters.openai import OpenAIModel  # a site without a model starts half a second sooner

    key, deadline = settings.llm_api_key.get_secret_value(), settings.llm_deadline_seconds
    return OpenAIModel(settings.llm_url, settings.llm_model, key, deadline, load_redactor(settings))


def connected(settings: Settings, stack: AsyncExitStack) -> "OpenAIModel | None":
    """As ``endpoint``, closed with the stack; None where no model is configured."""
    if not settings.asks_model:
        return None
    model = endpoint(settings)
    stack.push_async_callback(model.close)
    return model


def confirmed_failures(
    settings: Settings,
    store: FeedbackRepository,
    logs: AttemptLogs,
    policy: Policy,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> ConfirmedFailures:
    """The confirmed failures, with the embedding server where one is configured."""
    embedder = None
    if settings.embedding_url:
        from diagnoser.adapters.openai import OpenAIEmbedder  # as in ``endpoint``

        key, redactor = settings.llm_api_key.get_secret_value(), load_outbound_redactor(settings)
        embedder = OpenAIEmbedder(settings.embedding_url, settings.embedding_model, key, EMBED_SECONDS, redactor)
        stack.push_async_callback(embedder.close)
    return ConfirmedFailures(store, logs, policy, metrics, embedder, shared=settings.tenants_learn_together)


def guarded(settings: Settings, model: LanguageModel, metrics: Metrics) -> GuardedModel:
    """All callers of the server must share this one: it holds their budget and breaker."""
    metrics.model_limits.labels("tokens").set(settings.llm_tokens_per_hour)
    return GuardedModel(
        model, TokenBudget(settings.llm_tokens_per_hour), LLMCircuitBreaker(), time.monotonic, metrics.observe_model
    )


def failure_agent(settings: Settings, model: LanguageModel, policy: Policy, metrics: Metrics) -> FailureAgent:
    """Raises RuleFaults, BadInput."""
    config, when = consultation_config(settings), LLMTrigger(settings.llm_trigger)
    return FailureAgent(model, config, policy, metrics, when=when, clock=time.monotonic)


def inquiries(settings: Settings, model: LanguageModel | None, stage: LLMStage | None) -> Inquiries | None:
    """None where no model is configured. Raises RuleFaults, BadInput."""
    if model is None or stage is None:
        return None
    return Inquiries(stage, model, consultation_config(settings, QUESTION))


def consultation_config(settings: Settings, name: str = FAILURE_AGENT) -> ConsultationConfig:
    """Raises RuleFaults, BadInput."""
    return ConsultationConfig(
        load_prompt(settings, name),
        load_redactor(settings),
        LOG_TOKENS,
        _token,
        settings.llm_deadline_seconds,
    )


def rule_lifecycle(
    settings: Settings,
    history: ReplayHistory,
    registry: RuleRegistry,
    model: LanguageModel | None,
    metrics: Metrics,
) -> RuleLifecycle:
    """Learns rules; without a model they are made from the shape of a line. Raises RuleFaults, BadInput."""
    lease = 50 * settings.claim_lease_seconds  # not renewed: a step takes as long as a model writes
    config = RuleLearningConfig(load_redactor(settings), settings.rule_promotion_min_hits, lease)
    return RuleLifecycle(history, registry, time.time, config, metrics, _rule_writer(settings, model, RULE_WRITER))


def log_agent(
    settings: Settings, filters: FilterRegistry, history: ReplayHistory, model: LanguageModel | None
) -> LogAgent:
    """Learns Filter Rules; without a model they are made from the shapes of lines. Raises RuleFaults, BadInput."""
    config = RuleLearningConfig(load_redactor(settings), settings.rule_promotion_min_hits)
    return LogAgent(filters, history, time.time, config, _rule_writer(settings, model, LOG_AGENT))


def _rule_writer(settings: Settings, model: LanguageModel | None, name: str) -> LLMRuleWriter | None:
    """name: of its prompt. Raises RuleFaults, BadInput."""
    return LLMRuleWriter(model, load_prompt(settings, name), _token, WRITING_SECONDS) if model else None


def render_failure_prompt(settings: Settings, prompt: Prompt, subject: ConsultationInput) -> ModelRequest:
    """The first question about a failure, exactly as it would be sent, with its own random marker."""
    config = replace(consultation_config(settings), prompt=prompt)
    return prepare(subject, config, config.log_tokens, SPECS).question.request


def render_rule_prompt(settings: Settings, prompt: Prompt, evidence: Evidence, diagnosis: Diagnosis) -> ModelRequest:
    """The first question for a rule about a failure whose diagnosis is right. Raises BadInput."""
    case = rule_context.LabelledCase(DiagnosisRecord("", AttemptKey(""), 1, 0.0, True, diagnosis), Facts(), evidence)
    root = rule_context.root_of(case)
    if root is None:
        raise BadInput("no line of this log is known to show the cause: there is nothing to write a rule from")
    context = rule_context.from_case(case, root, (), load_redactor(settings))
    return build_question(prompt, rule_writer.variables(context, f"LOG-{_token()}"), rule_writer.RuleAnswer).request


async def run_ablation(
    settings: Settings,
    cases: "Sequence[AblationCase]",
    policy: Policy,
    before_consultation: "Callable[[AblationCase], None]" = lambda _: None,
) -> "list[AblationResult]":
    """What the configured model adds on labelled cases. Has no budget and no breaker, so that every case is asked."""
    from diagnoser.accuracy import llm_ablation

    model = endpoint(settings)
    agent = failure_agent(settings, model, policy, Metrics(CollectorRegistry()))
    try:
        return await llm_ablation.run(cases, agent, policy, time.perf_counter, before_consultation)
    finally:
        await model.close()


def _token() -> str:
    return secrets.token_hex(8)

"""The model stage of a site, put together: the server behind its guards, the prompt, what is masked."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from prometheus_client import CollectorRegistry

from diagnoser import trial
from diagnoser.adapters import files
from diagnoser.adapters.embeddings import OpenAIEmbedder
from diagnoser.adapters.openai import OpenAIModel
from diagnoser.compress import Digest
from diagnoser.errors import BadInput
from diagnoser.failure_agent import FailureAgent, When
from diagnoser.guarded import GuardedModel
from diagnoser.inquiry import Steps, Subject, Terms, prepare
from diagnoser.learning import filter_gates, filter_writer, lesson, segments, writer
from diagnoser.learning.cases import Cases, Store
from diagnoser.learning.filter_writer import Pen as FilterPen
from diagnoser.learning.log_agent import LogAgent
from diagnoser.learning.log_agent import Terms as LogTerms
from diagnoser.learning.school import School
from diagnoser.learning.school import Terms as Schooling
from diagnoser.learning.shelf import Shelf
from diagnoser.learning.writer import Pen
from diagnoser.llm import hosts, prompt, redact
from diagnoser.llm.guard import Breaker, Budget, Limits
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.redact import Mask, Redactor
from diagnoser.model import Anchor, AttemptKey, Diagnosis, Evidence, Facts
from diagnoser.ports import DiagnosisRecord, LanguageModel, ModelRequest
from diagnoser.pulse import Pulse
from diagnoser.reader import Reader
from diagnoser.recovery.policy import Policy
from diagnoser.retrieval.incidents import Incidents
from diagnoser.retrieval.incidents import Store as IncidentStore
from diagnoser.settings import Settings
from diagnoser.telemetry import Metrics
from diagnoser.trial import Case, Outcome

FAILURE_AGENT = "failure_agent/v1"
RULE_WRITER = "rule_writer/v1"
LOG_AGENT, LOG_JUDGE = "log_agent/v1", "log_judge/v1"
EMBED_SECONDS = 5.0
WRITING_SECONDS = 60.0
"""For writing one rule: nobody waits for it."""


def load_prompt(settings: Settings, name: str = FAILURE_AGENT) -> Prompt:
    """name: ``<name>/v<N>``. Raises RuleFaults, BadInput."""
    return prompt.load(name, files.texts((settings.prompts_dir or files.bundled("prompts")) / name, "*"))


def load_mask(settings: Settings) -> Redactor:
    """What this site masks before text leaves it. Raises RuleFaults, BadInput."""
    path = settings.redact_file
    return redact.load(str(path), files.text(path)) if path else redact.redact


def load_outward_mask(settings: Settings) -> Mask:
    """The same for chats and webhooks, where no alias can keep the identity of an address; nodes stay named."""
    mask = load_mask(settings)
    return lambda text: hosts.without_addresses(mask(text))


def endpoint(settings: Settings) -> OpenAIModel:
    """The configured server. The caller closes it."""
    key, deadline = settings.model_key.get_secret_value(), settings.model_deadline_seconds
    return OpenAIModel(settings.model_url, settings.model_name, key, deadline)


def connected(settings: Settings, stack: AsyncExitStack) -> OpenAIModel | None:
    """The same for a service, closed with the stack; None where no model is wanted."""
    if not settings.model_url or settings.model_when == "never":
        return None
    model = endpoint(settings)
    stack.push_async_callback(model.close)
    return model


def pulse(model: OpenAIModel | None, stack: AsyncExitStack) -> dict[str, Pulse]:
    """For readiness. The model's server may be away: then the rules decide alone."""
    if model is None:
        return {}
    found = Pulse(model.ping, time.monotonic)
    stack.push_async_callback(found.close)
    return {"model": found}


def incidents(
    settings: Settings, store: IncidentStore, reader: Reader, metrics: Metrics, stack: AsyncExitStack
) -> Incidents:
    """What people confirmed, with the embedding server where there is one."""
    embedder = None
    if settings.embedding_url:
        key, mask = settings.model_key.get_secret_value(), load_outward_mask(settings)
        embedder = OpenAIEmbedder(settings.embedding_url, settings.embedding_model, key, EMBED_SECONDS, mask)
        stack.push_async_callback(embedder.close)
    return Incidents(store, reader.evidence, reader.knowledge.policy, metrics, embedder)


def guarded(settings: Settings, model: LanguageModel) -> GuardedModel:
    """Everybody who asks the server shares the one that this returns: budget and breaker are its."""
    breaker = Breaker(settings.model_breaker_failures, settings.model_breaker_seconds)
    return GuardedModel(model, Budget(_limits(settings)), breaker, time.monotonic)


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.model_tokens_per_hour,
        settings.model_cost_per_hour,
        settings.model_price_in,
        settings.model_price_out,
    )


def failure_agent(
    settings: Settings, model: LanguageModel, policy: Policy, metrics: Metrics, steps: Steps | None = None
) -> FailureAgent:
    """steps: parts that an evaluation leaves out. Raises RuleFaults, BadInput."""
    return FailureAgent(
        model,
        terms(settings, steps),
        policy,
        metrics,
        when=When(settings.model_when),
        deadline=settings.model_deadline_seconds,
        clock=time.monotonic,
    )


def terms(settings: Settings, steps: Steps | None = None) -> Terms:
    """Raises RuleFaults, BadInput."""
    return Terms(load_prompt(settings), load_mask(settings), settings.model_view_tokens, _token, steps or Steps())


def school(settings: Settings, store: Store, shelf: Shelf, model: LanguageModel | None, metrics: Metrics) -> School:
    """Where rules are learned; without a model they are made from the shape of a line. Raises RuleFaults, BadInput."""
    pen = Pen(model, load_prompt(settings, RULE_WRITER), _token, WRITING_SECONDS) if model else None
    terms = Schooling(load_mask(settings), settings.rules_promote_after, 5 * settings.lease_seconds)
    return School(Cases(store, shelf.base.evidence), shelf, time.time, terms, metrics, pen)


def log_agent(
    settings: Settings, store: Store, shelf: Shelf, model: LanguageModel | None, metrics: Metrics
) -> LogAgent | None:
    """Where Filter Rules are learned, None where a site does not want it. Raises RuleFaults, BadInput."""
    if not settings.log_agent:
        return None
    pen = None
    if model:
        prompts = load_prompt(settings, LOG_AGENT), load_prompt(settings, LOG_JUDGE)
        pen = FilterPen(model, *prompts, _token, WRITING_SECONDS)
    terms = LogTerms(load_mask(settings), settings.filters_promote_after)
    return LogAgent(store, shelf, time.time, terms, metrics, pen)


def rendered(settings: Settings, prompt: Prompt, subject: Subject) -> ModelRequest:
    """The first question about a failure, exactly as it would be sent, with its own random marker."""
    return prepare(subject, replace(terms(settings), prompt=prompt), settings.model_view_tokens)[0]


def rendered_lesson(settings: Settings, prompt: Prompt, evidence: Evidence, diagnosis: Diagnosis) -> ModelRequest:
    """The first question for a rule about a failure whose diagnosis is right. Raises BadInput."""
    case = lesson.Case(DiagnosisRecord("", AttemptKey(""), 1, 0.0, True, diagnosis), Facts(), evidence)
    root = lesson.root_of(case)
    if root is None:
        raise BadInput("no line of this log is known to show the cause: there is nothing to write a rule from")
    return writer.request(prompt, lesson.of(case, root, (), load_mask(settings)), f"LOG-{_token()}")


def rendered_routine(settings: Settings, prompt: Prompt, digest: Digest, anchors: tuple[Anchor, ...]) -> ModelRequest:
    """The question about the first segment of routine that no filter knows. Raises BadInput."""
    found = segments.of(digest.delta, lambda text: filter_gates.carries(anchors, text))
    if not found:
        raise BadInput("every line that this log prints often is known")
    lines, alias = filter_writer.hidden_in(found[0], digest.evidence(), Facts(), load_mask(settings))
    variables = filter_writer.variables(lines, alias, f"LOG-{_token()}")
    return filter_writer.filled(prompt, variables, filter_writer.Proposals)


async def tried(
    settings: Settings, cases: Sequence[Case], policy: Policy, began: Callable[[Case], None] = lambda _: None
) -> list[Outcome]:
    """What the configured model adds on labelled cases. Without budget and breaker: somebody waits for the figures."""
    model, metrics = endpoint(settings), Metrics(CollectorRegistry())

    def agent(steps: Steps) -> FailureAgent:
        return failure_agent(settings, model, policy, metrics, steps)

    try:
        return await trial.run(cases, agent, policy, _limits(settings).cost_of, time.perf_counter, began)
    finally:
        await model.close()


def _token() -> str:
    return secrets.token_hex(8)

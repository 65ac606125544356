"""Asks the configured model about doubtful verdicts of the commands that read log files, as the service does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnoser.compress import AttemptLog
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.model import Diagnosis, Facts

Consult = Callable[[Diagnosis, AttemptLog, Facts], Diagnosis]
"""A verdict -> the verdict with what the model adds; unchanged where the model is not asked."""


@contextmanager
def consulted(settings: Settings, knowledge: RuleKnowledge) -> Iterator[Consult]:
    """One connection, budget and circuit breaker for all files. If the model fails, the rules decide alone.

    Raises RuleFaults, BadInput where the site's prompts or patterns are faulty.
    """
    if not settings.llm_url or settings.llm_trigger == "never":
        yield lambda verdict, log, facts: verdict
        return
    # Here, because the client of the model takes a second to load.
    import asyncio

    from prometheus_client import CollectorRegistry

    from diagnoser.config import llm_factory
    from diagnoser.diagnosis.llm_stage import consultation_input
    from diagnoser.observability import logging
    from diagnoser.observability.metrics import Metrics

    logging.set_up(as_json=False, level="error")
    with asyncio.Runner() as runner:
        endpoint = llm_factory.endpoint(settings)
        metrics = Metrics(CollectorRegistry())
        model = llm_factory.guarded(settings, endpoint, metrics)
        agent = llm_factory.failure_agent(settings, model, knowledge.policy, metrics)

        def consult(verdict: Diagnosis, log: AttemptLog, facts: Facts) -> Diagnosis:
            asked = agent.reasons_to_ask(verdict)
            if not asked:
                return verdict
            try:
                question = consultation_input(verdict, log, facts, knowledge)
                return runner.run(agent.consult(question, asked))
            except Exception as error:
                note = f"the model could not be asked: {type(error).__name__}"
                return replace(verdict, notes=(*verdict.notes, note))

        try:
            yield consult
        finally:
            runner.run(endpoint.close())

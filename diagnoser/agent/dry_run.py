"""Says for each verdict what an agent would do, and why it does not: the plans that nobody hands to an executor."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.cluster import Attempts, Cluster, Done, NextStep, Run, S, Wait
from diagnoser.agent.executor import cordon_step
from diagnoser.model.errors import BadInput, Conflict, DiagnoserError, NotFound, Unavailable
from diagnoser.model.taxonomy import Action
from diagnoser.recovery.plan_states import RUNNABLE

LOOK_SECONDS = 5.0
"""Between two looks at the newest plans."""
PLANS_AT_A_LOOK = 50
NOT_HANDED_OUT = frozenset({"advised", "waiting", "held"})
"""States in which no executor gets a plan. What an executor does with the others, it logs itself."""

log = structlog.get_logger()


@dataclass(slots=True)
class DryRunReporter(Generic[S]):
    """reported: id -> state of the plans that the log has already."""

    client: ApiClient
    cluster: Cluster[S]
    reported: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """For ever. Raises Denied."""
        while True:
            try:
                await self.report_new()
            except (Unavailable, BadInput, NotFound, Conflict) as error:
                log.warning("plans_not_read", why=str(error))
            await self.client.pause(LOOK_SECONDS)

    async def report_new(self) -> None:
        """Log the newest plans that are new, or in another state than before, oldest first."""
        plans = await self.client.newest_plans(PLANS_AT_A_LOOK)
        for plan in reversed(plans):
            if plan["state"] in NOT_HANDED_OUT and self.reported.get(plan["id"]) != plan["state"]:
                await self._report(plan)
        self.reported = {plan["id"]: plan["state"] for plan in plans}

    async def _report(self, plan: Mapping[str, Any]) -> None:
        try:
            spec = self.cluster.spec(plan, "unknown")
        except BadInput:
            return  # a job of another cluster
        would = f"nothing on the cluster: {spec.action} is for a person"
        if spec.action in RUNNABLE:
            would = await self._first_step(plan)
        log.info(
            "dry_run",
            job=plan["job"],
            attempt=plan["attempt"],
            action=plan["action"],
            nodes=plan["nodes"],
            would=would,
            but=why_not(plan),
        )

    async def _first_step(self, plan: Mapping[str, Any]) -> str:
        try:
            verdict = await self.client.diagnosis(plan["diagnosis"])
            spec = self.cluster.spec(plan, str(verdict.get("type", "unknown")))
            nodes, state = await asyncio.gather(self.cluster.nodes(spec.nodes), self.cluster.job(spec))
        except DiagnoserError as error:
            return f"not known: {error}"
        none = Attempts()
        if spec.action is Action.CHECK_AND_RESUBMIT:
            return _in_words(self.cluster.hold(spec, state, none), "check the job's nodes")
        step = cordon_step(self.cluster, spec, nodes, none) or self.cluster.relaunch(spec, state, none)
        return _in_words(step, "")


def _in_words(step: NextStep, otherwise: str) -> str:
    match step:
        case Run():
            return f"run {step.command.line}"
        case Wait():
            return f"wait: {step.reason}"
        case Done():
            return f"nothing: {step.detail}"
    return otherwise


def why_not(plan: Mapping[str, Any]) -> str:
    """Say why no agent gets the plan: in the words of its last change."""
    why = plan["reason"]
    if plan["history"]:
        why = plan["history"][-1]["why"]
    return f"the plan is {plan['state']} ({plan['reason']}): {why}"

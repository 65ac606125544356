"""The groups of services as parameters of routes, each as far as the caller may see.

No handler finds another tenant's rows: whatever reads comes from ``scope_of``. ``Unscoped`` is for the few routes that
nobody has to sign in for.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, Request

from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.planning.plan_service import PlanService
from diagnoser.rules.schema import Rule
from diagnoser.web.http.authentication import Caller
from diagnoser.web.http.services import (
    CoreServices,
    HealthChecks,
    IntakeServices,
    LiveServices,
    LogServices,
    ScopedServices,
    WebServices,
)


async def services_of(request: Request) -> WebServices:
    services: WebServices = request.app.state.services
    return services


_Services = Annotated[WebServices, Depends(services_of)]


async def unscoped(services: _Services) -> ScopedServices:
    return services.scopes.whole


async def unscoped_core(services: _Services) -> CoreServices:
    return services.core


Unscoped = Annotated[ScopedServices, Depends(unscoped)]
UnscopedCore = Annotated[CoreServices, Depends(unscoped_core)]


async def scope_of(services: _Services, caller: Caller) -> ScopedServices:
    return services.scopes.scoped_to(caller.viewer)


Scoped = Annotated[ScopedServices, Depends(scope_of)]


async def core_of(scope: Scoped) -> CoreServices:
    return scope.core


async def logs_of(scope: Scoped) -> LogServices:
    return scope.logs


async def live_of(scope: Scoped) -> LiveServices:
    return scope.live


async def intake_of(services: _Services) -> IntakeServices:
    return services.intake


async def plans_of(services: _Services) -> PlanService:
    return services.plans


async def workbench_of(services: _Services) -> RuleWorkbench:
    return services.workbench


async def shipped_rules_of(services: _Services) -> Callable[[], Sequence[Rule]]:
    return services.shipped_rules


async def health_of(services: _Services) -> HealthChecks:
    return services.health


async def attribution_of(services: _Services, caller: Caller) -> LogAttribution | None:
    """None for the caller of one tenant: it reads any file that it is asked for."""
    if not caller.viewer.sees_all:
        return None
    return services.attribution


Core = Annotated[CoreServices, Depends(core_of)]
Logs = Annotated[LogServices, Depends(logs_of)]
Live = Annotated[LiveServices, Depends(live_of)]
Intake = Annotated[IntakeServices, Depends(intake_of)]
Plans = Annotated[PlanService, Depends(plans_of)]
Workbench = Annotated[RuleWorkbench, Depends(workbench_of)]
ShippedRules = Annotated[Callable[[], Sequence[Rule]], Depends(shipped_rules_of)]
Health = Annotated[HealthChecks, Depends(health_of)]
Attribution = Annotated[LogAttribution | None, Depends(attribution_of)]

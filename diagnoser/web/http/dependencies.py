"""The groups of services as parameters of routes, each as far as the caller may see.

No handler finds another tenant's rows: whatever reads comes from ``scope_of``. ``Unscoped`` is for the few routes that
nobody has to sign in for.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request

from diagnoser.diagnosis.inquiry import Inquiries
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


async def scope_of(services: _Services, caller: Caller) -> ScopedServices:
    return services.scopes.scoped_to(caller.viewer)


Scoped = Annotated[ScopedServices, Depends(scope_of)]


def _of_scope(group: str) -> Any:
    async def part(scope: Scoped) -> object:
        return getattr(scope, group)

    return Depends(part)


def _of_services(group: str) -> Any:
    async def part(services: _Services) -> object:
        return getattr(services, group)

    return Depends(part)


async def attribution_of(services: _Services, caller: Caller) -> LogAttribution | None:
    """None for the caller of one tenant: it reads any file that it is asked for."""
    if not caller.viewer.sees_all:
        return None
    return services.attribution


Unscoped = Annotated[ScopedServices, Depends(unscoped)]
UnscopedCore = Annotated[CoreServices, _of_services("core")]
Core = Annotated[CoreServices, _of_scope("core")]
Logs = Annotated[LogServices, _of_scope("logs")]
Live = Annotated[LiveServices, _of_scope("live")]
Intake = Annotated[IntakeServices, _of_services("intake")]
Plans = Annotated[PlanService, _of_services("plans")]
Workbench = Annotated[RuleWorkbench, _of_services("workbench")]
ShippedRules = Annotated[Callable[[], Sequence[Rule]], _of_services("shipped_rules")]
Questions = Annotated[Inquiries | None, _of_services("inquiries")]
Health = Annotated[HealthChecks, _of_services("health")]
Attribution = Annotated[LogAttribution | None, Depends(attribution_of)]

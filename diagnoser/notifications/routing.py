"""Who is told what, and when: the table of `alerts.yaml`. The first row that applies decides; ``explain`` says why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, StringConstraints, field_validator

from diagnoser.model import yaml_loader
from diagnoser.model.alerts import Alert, AlertKind, Severity
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.model.yaml_loader import StrictModel

EVERYONE = "all"
"""Stands for every receiver that is configured."""
_Clock = Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
_Receiver = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+(:[^\s]{1,80})?$")]


class AlertCondition(StrictModel):
    """Conditions of a row; one that is not given always holds."""

    kinds: tuple[AlertKind, ...] = ()
    categories: tuple[Category, ...] = ()
    types: tuple[FailureType, ...] = ()
    clusters: tuple[str, ...] = ()
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class AlertRow(StrictModel):
    """to: names of receivers, none to stay silent."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    when: AlertCondition = AlertCondition()
    to: tuple[_Receiver, ...]
    severity: Severity = Severity.WARNING


class QuietHours(StrictModel):
    """Alerts to these receivers wait until the end, but for those of ``except_severities``."""

    zone: str
    start: _Clock
    end: _Clock
    to: tuple[_Receiver, ...] = (EVERYONE,)
    except_severities: tuple[Severity, ...] = (Severity.CRITICAL,)

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"no such time zone: {zone[:60]!r}") from None
        return zone


class AlertTable(StrictModel):
    """repeat_minutes: how long further failures of an incident that was told stay silent, where there are no threads
    that they could join."""

    version: Literal[1]
    repeat_minutes: Annotated[float, Field(ge=0)] = 240
    quiet_hours: tuple[QuietHours, ...] = ()
    rows: Annotated[tuple[AlertRow, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Route:
    """Where an alert goes. row: the id of the row that decided, "" where none did."""

    row: str
    receivers: tuple[str, ...] = ()
    severity: Severity = Severity.WARNING


@dataclass(frozen=True)
class AlertRouting:
    """receivers: those that are configured."""

    table: AlertTable
    receivers: tuple[str, ...] = ()

    def route(self, alert: Alert) -> Route:
        """The receivers that are configured, each once."""
        row = next((row for row in self.table.rows if not _why_not(row.when, alert)), None)
        if row is None:
            return Route("")
        names = [name for entry in row.to for name in (self.receivers if entry == EVERYONE else (entry,))]
        configured = [name for name in names if name.partition(":")[0] in self.receivers]
        return Route(row.id, tuple(dict.fromkeys(configured)), row.severity)

    def explain(self, alert: Alert) -> list[tuple[str, str]]:
        """Each row up to the one that applies, with why it does not hold ("" for the one that does)."""
        reasons = []
        for row in self.table.rows:
            why = _why_not(row.when, alert)
            reasons.append((row.id, why))
            if not why:
                break
        return reasons

    def quiet_until(self, receiver: str, severity: Severity, now: float) -> float | None:
        """When the quiet hours of a receiver end; None when it may be told now."""
        ends = [
            end
            for hours in self.table.quiet_hours
            if severity not in hours.except_severities and {EVERYONE, receiver} & set(hours.to)
            if (end := _end(hours, now)) is not None
        ]
        return max(ends, default=None)


def load(path: str, text: str) -> AlertTable:
    """Raises RuleFaults."""
    table, faults = yaml_loader.read(path, text, AlertTable)
    if table is None:
        raise RuleFaults(faults)
    ids = [row.id for row in table.rows]
    faults = [
        Fault(path, yaml_loader.locate(text, "rows", place, "id"), f"row {row.id} is there twice")
        for place, row in enumerate(table.rows)
        if row.id in ids[:place]
    ]
    if faults:
        raise RuleFaults(faults)
    return table


def unknown_receivers(table: AlertTable, receivers: Sequence[str]) -> list[str]:
    """Names that the table uses and nobody configured."""
    named = [name for row in table.rows for name in row.to]
    named += [name for hours in table.quiet_hours for name in hours.to]
    known = {EVERYONE, *receivers}
    return sorted({name for name in named if name.partition(":")[0] not in known})


def _end(hours: QuietHours, now: float) -> float | None:
    """The end of the quiet hours that ``now`` is in, by the clock on the wall of their zone."""
    zone = ZoneInfo(hours.zone)
    local = datetime.fromtimestamp(now, zone)
    start, end = time.fromisoformat(hours.start), time.fromisoformat(hours.end)
    for day in (local.date() - timedelta(days=1), local.date()):
        begun = datetime.combine(day, start, zone)
        over = datetime.combine(day + timedelta(days=1) if end <= start else day, end, zone)
        if begun.timestamp() <= now < over.timestamp():
            return over.timestamp()
    return None


def _why_not(when: AlertCondition, alert: Alert) -> str:
    """Why the row does not apply, "" when it does."""
    tests = (
        ("kind", when.kinds, alert.kind.value),
        ("category", when.categories, alert.category),
        ("type", when.types, alert.type),
        ("cluster", when.clusters, alert.cluster),
        *((f"label {name}", values, alert.labels.get(name, "")) for name, values in when.labels.items()),
    )
    for name, wanted, value in tests:
        if wanted and value not in wanted:
            return f"{name} is {value or 'not known'}, not {' or '.join(wanted)}"
    return ""

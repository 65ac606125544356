"""Who is told what, and when: the table of `alerts.yaml`. The first row that applies decides; ``explain`` says why."""

import re
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
OWNER = "{user}"
"""Stands for the receivers of the user to whom the scheduler says that the job belongs."""
ANY_USER = "*"
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of users that may stand in the name of a receiver."""
_Clock = Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
_Receiver = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+(:[^\s]{1,80})?$")]
_ReceiverOrOwner = Annotated[str, StringConstraints(pattern=r"^(\{user\}|[a-z0-9_-]+(:[^\s]{1,80})?)$")]


class AlertCondition(StrictModel):
    """Conditions of a row; one that is not given always holds."""

    kinds: tuple[AlertKind, ...] = ()
    categories: tuple[Category, ...] = ()
    types: tuple[FailureType, ...] = ()
    clusters: tuple[str, ...] = ()
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class AlertRow(StrictModel):
    """to: names of receivers, none to stay silent; ``{user}`` for those of the job's owner. A row that names nobody
    but an owner whom nobody knows does not apply."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    when: AlertCondition = AlertCondition()
    to: tuple[_ReceiverOrOwner, ...]
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
    that they could join. owners: user -> receivers; those of ``*`` are of everybody else, with the name where they say
    ``{user}``."""

    version: Literal[1]
    owners: dict[str, tuple[_Receiver, ...]] = Field(default_factory=dict)
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
        row = next((row for row in self.table.rows if not self._why_not(row, alert)), None)
        if row is None:
            return Route("")
        names = dict.fromkeys(name for entry in row.to for name in self._receivers_of(entry, alert))
        return Route(row.id, tuple(names), row.severity)

    def _receivers_of(self, entry: str, alert: Alert) -> tuple[str, ...]:
        """Find the configured receivers that an entry of a row names."""
        if entry == EVERYONE:
            return self.receivers
        named = self._of_owner(alert.owner) if entry == OWNER else (entry,)
        return tuple(name for name in named if _channel(name) in self.receivers)

    def is_operators(self, receiver: str) -> bool:
        """Whether those who read it are alerted to failures of anybody: others are of one owner, team or cluster."""
        names = {receiver}
        if receiver in self.receivers:
            names.add(EVERYONE)
        for row in self.table.rows:
            if row.when.labels:
                continue
            if row.when.clusters:
                continue
            if not names.isdisjoint(row.to):
                return True
        return False

    def _of_owner(self, user: str) -> tuple[str, ...]:
        """Find the receivers of a user; none for a name that no receiver can have. Whoever names a user must not choose
        where alerts go."""
        if user != ANY_USER and user in self.table.owners:
            return self.table.owners[user]
        if not _USER.fullmatch(user):
            return ()
        return tuple(name.replace(OWNER, user) for name in self.table.owners.get(ANY_USER, ()))

    def _why_not(self, row: AlertRow, alert: Alert) -> str:
        """Why the row does not apply, "" when it does."""
        if why := _unmet_condition(row.when, alert):
            return why
        if row.to != (OWNER,):
            return ""
        if self._receivers_of(OWNER, alert):
            return ""
        return f"no receiver is known for the user {alert.owner}" if alert.owner else "the job's user is not known"

    def explain(self, alert: Alert) -> list[tuple[str, str]]:
        """Each row up to the one that applies, with why it does not hold ("" for the one that does)."""
        reasons = []
        for row in self.table.rows:
            why = self._why_not(row, alert)
            reasons.append((row.id, why))
            if not why:
                break
        return reasons

    def quiet_until(self, receiver: str, severity: Severity, now: float) -> float | None:
        """When the quiet hours of a receiver end; None when it may be told now."""
        ends = [_end(hours, now) for hours in self.table.quiet_hours if _holds_back(hours, receiver, severity)]
        return max(filter(None, ends), default=None)


def load(path: str, text: str) -> AlertTable:
    """Raises RuleFaults."""
    table, faults = yaml_loader.read(path, text, AlertTable)
    if table is None:
        raise RuleFaults(faults)  # no table of the right form, so that its rows cannot be checked
    seen: set[str] = set()
    for place, row in enumerate(table.rows):
        if row.id in seen:
            line = yaml_loader.locate(text, "rows", place, "id")
            faults.append(Fault(path, line, f"row {row.id} is there twice"))
        seen.add(row.id)
    return yaml_loader.sound(table, faults)


def unknown_receivers(table: AlertTable, receivers: Sequence[str]) -> list[str]:
    """Names that the table uses and nobody configured."""
    known = {EVERYONE, OWNER, *receivers}
    named: set[str] = set()
    for row in table.rows:
        named.update(row.to)
    for names in table.owners.values():
        named.update(names)
    for hours in table.quiet_hours:
        named.update(hours.to)
    return sorted(name for name in named if _channel(name) not in known)


def _channel(name: str) -> str:
    """``slack:#gpu-oncall`` -> ``slack``."""
    return name.partition(":")[0]


def _holds_back(hours: QuietHours, receiver: str, severity: Severity) -> bool:
    """Tell whether these quiet hours hold back an alert of that severity for that receiver."""
    if severity in hours.except_severities:
        return False
    return not {EVERYONE, receiver}.isdisjoint(hours.to)


def _end(hours: QuietHours, now: float) -> float | None:
    """Find the end of the quiet hours that ``now`` is in, by the wall clock of their zone; None outside of them."""
    zone = ZoneInfo(hours.zone)
    local = datetime.fromtimestamp(now, zone)
    start, end = time.fromisoformat(hours.start), time.fromisoformat(hours.end)
    for day in (local.date() - timedelta(days=1), local.date()):
        begun = datetime.combine(day, start, zone)
        last_day = day
        if end <= start:
            last_day += timedelta(days=1)
        over = datetime.combine(last_day, end, zone)
        if begun.timestamp() <= now < over.timestamp():
            return over.timestamp()
    return None


def _spelled(value: str) -> str:
    return value.replace("_", " ")


def _unmet_condition(when: AlertCondition, alert: Alert) -> str:
    """Say which condition does not hold, "" when all do."""
    tests: list[tuple[str, Sequence[str], str]] = [
        ("kind", list(map(_spelled, when.kinds)), _spelled(alert.kind)),
        ("category", when.categories, alert.category),
        ("cause", list(map(_spelled, when.types)), _spelled(alert.type)),
        ("cluster", when.clusters, alert.cluster),
    ]
    for name, values in when.labels.items():
        tests.append((f"label {name}", values, alert.labels.get(name, "")))
    for name, wanted, value in tests:
        if wanted and value not in wanted:
            return f"{name} is {value or 'not known'}, not {' or '.join(wanted)}"
    return ""

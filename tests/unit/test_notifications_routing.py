"""Who is told what, and when."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr

from diagnoser.channels.slack import SlackSettings, operators
from diagnoser.config import alerting, settings
from diagnoser.config.settings import Settings
from diagnoser.model.alerts import Alert, AlertKind, Severity
from diagnoser.model.errors import BadInput, RuleFaults
from diagnoser.notifications import routing
from diagnoser.notifications.routing import AlertRouting

FAILURE = Alert(AlertKind.FAILURE, "i", "llm-7b attempt 1 failed", "llm-7b", 1, category="infrastructure")
SHIPPED = AlertRouting(alerting.load_table(Settings()), ("slack", "pager"))
BERLIN = ZoneInfo("Europe/Berlin")


def table(rows: str, more: str = "") -> str:
    return f"version: 1\n{more}\nrows:\n{rows}"


def test_success_is_not_announced() -> None:
    """By default failures and decisions are told, and a run that ended well is not."""
    ended = replace(FAILURE, category="none")
    assert SHIPPED.route(ended).receivers == ()
    assert SHIPPED.route(FAILURE).receivers == ("slack", "pager")
    assert SHIPPED.route(replace(ended, kind=AlertKind.DECISION)).receivers == ("slack", "pager")


def test_the_first_row_that_applies_decides() -> None:
    """It names receivers and severity, and the way to it can be explained."""
    rows = """
- {id: debug_runs, when: {labels: {qos: [debug]}}, to: []}
- {id: hardware, when: {categories: [infrastructure]}, to: ["slack:#gpu-oncall", pager], severity: critical}
- {id: rest, to: [slack]}
"""
    routes = AlertRouting(routing.load("alerts.yaml", table(rows)), ("slack", "pager"))
    decided = routes.route(FAILURE)
    assert (decided.row, decided.receivers, decided.severity) == (
        "hardware",
        ("slack:#gpu-oncall", "pager"),
        Severity.CRITICAL,
    )
    assert routes.explain(FAILURE) == [("debug_runs", "label qos is not known, not debug"), ("hardware", "")]
    assert routes.route(replace(FAILURE, labels={"qos": "debug"})).receivers == ()
    assert routes.route(replace(FAILURE, category="script")).row == "rest"


def test_faults_of_the_table_are_told_with_their_lines() -> None:
    """Also a row that is there twice, and a time zone that does not exist."""
    with pytest.raises(RuleFaults, match=r"alerts\.yaml:6: row rest is there twice"):
        routing.load("alerts.yaml", table("- {id: rest, to: []}\n\n- {id: rest, to: []}"))
    with pytest.raises(RuleFaults, match="no such time zone"):
        more = 'quiet_hours: [{zone: Europe/Atlantis, start: "22:00", end: "07:00"}]'
        routing.load("alerts.yaml", table("- {id: rest, to: []}", more))


def test_a_receiver_that_nobody_configured_stops_the_start() -> None:
    """Else its alerts would vanish without a word."""
    loaded = routing.load("alerts.yaml", table("- {id: rest, to: [all, pagr, 'slack:#ops']}"))
    assert routing.unknown_receivers(loaded, ("pager", "slack")) == ["pagr"]


@pytest.mark.parametrize(
    ("at", "end"),
    [
        ("2026-03-28 23:30", "2026-03-29 07:00"),  # an hour is missing that night
        ("2026-03-29 06:59", "2026-03-29 07:00"),
        ("2026-03-29 07:00", None),
        ("2026-03-29 21:59", None),
        ("2026-10-24 22:00", "2026-10-25 07:00"),  # an hour is there twice
    ],
)
def test_quiet_hours_go_by_the_clock_on_the_wall(at: str, end: str | None) -> None:
    """Past midnight and through both changes of the clock."""
    more = 'quiet_hours: [{zone: Europe/Berlin, start: "22:00", end: "07:00", to: [slack]}]'
    routes = AlertRouting(routing.load("alerts.yaml", table("- {id: rest, to: [all]}", more)), ("slack", "pager"))
    now = datetime.fromisoformat(at).replace(tzinfo=BERLIN).timestamp()
    expected = datetime.fromisoformat(end).replace(tzinfo=BERLIN).timestamp() if end else None
    assert routes.quiet_until("slack", Severity.WARNING, now) == expected
    assert routes.quiet_until("pager", Severity.WARNING, now) is None
    assert routes.quiet_until("slack", Severity.CRITICAL, now) is None


@pytest.mark.parametrize("urls", ["pager", "slack=json://x", "a=json://x a=json://y", "A=json://x"])
def test_faults_of_apprise_urls_do_not_show_them(urls: str) -> None:
    """They hold secrets."""
    with pytest.raises(BadInput) as error:
        alerting.receiver_names(settings.load({"DIAGNOSER_APPRISE_URLS": urls}))
    assert "json://" not in str(error.value)


def test_buttons_need_a_secret_and_people() -> None:
    """Without a signing secret nobody can prove who pressed, so that nobody may."""
    assert operators(SlackSettings(slack_operators="U1, U2")) == frozenset()
    signed = SlackSettings(slack_operators="U1, U2", slack_signing_secret=SecretStr("s"))
    assert operators(signed) == {"U1", "U2"}


OWNERS = """
owners:
  maria: [slack:U024BE7LH, mail:maria@example.org]
  "*": ["mail:{user}@example.org"]
"""
TO_OWNER = table(
    """
- {id: script_errors, when: {categories: [script]}, to: ["{user}"]}
- {id: rest, to: [slack]}
""",
    OWNERS,
)


@pytest.mark.parametrize(
    ("user", "receivers", "row"),
    [
        ("maria", ("slack:U024BE7LH", "mail:maria@example.org"), "script_errors"),
        ("kai", ("mail:kai@example.org",), "script_errors"),
        ("", ("slack",), "rest"),
        ("kai@elsewhere.org, all", ("slack",), "rest"),
        ("*", ("slack",), "rest"),
    ],
)
def test_the_owner_of_a_job_is_told_instead_of_operators(user: str, receivers: tuple[str, ...], row: str) -> None:
    """By the table's mapping; where nobody is known, or the name is none that a receiver can have, the next row says
    who is told."""
    routes = AlertRouting(routing.load("alerts.yaml", TO_OWNER), ("slack", "mail"))
    decided = routes.route(replace(FAILURE, category="script", owner=user))
    assert (decided.receivers, decided.row) == (receivers, row)


def test_a_label_of_the_job_names_no_owner() -> None:
    """Whoever submits a job writes its labels: only the scheduler says whose it is."""
    routes = AlertRouting(routing.load("alerts.yaml", TO_OWNER), ("slack", "mail"))
    assert routes.route(replace(FAILURE, category="script", labels={"user": "maria"})).row == "rest"


def test_receivers_of_owners_have_to_be_configured() -> None:
    """A name that nobody configured is found at the start, not at the first script error."""
    assert routing.unknown_receivers(routing.load("alerts.yaml", TO_OWNER), ["slack"]) == [
        "mail:maria@example.org",
        "mail:{user}@example.org",
    ]

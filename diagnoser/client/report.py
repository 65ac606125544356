"""The diagnosis, as a person reads it in a terminal."""

from __future__ import annotations

import re
import textwrap
import time
from datetime import datetime
from operator import itemgetter
from typing import Any, Callable, Iterator
from urllib.parse import quote

from diagnoser.client.service import Service, Unreachable, UsageError

POLL_SECONDS = 0.5
LINE_SHOWN = 400
WIDTH = 110
LABEL_WIDTH = 12
GUESS = 0.5
"""Confidence below which an answer is more likely wrong than right."""
COLOURS = {"infrastructure": "31", "framework": "33", "script": "35", "none": "32"}

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


class NoDiagnosis(Exception):
    """Why there is none to show; the message is for a person."""


def wait_for_diagnosis(
    service: Service, job: str, attempt: int | None, since: str, seconds: float, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Wait for the current diagnosis of an attempt. Raises NoDiagnosis.

    attempt: None for any of the job.
    since: ISO 8601, of the service's clock: one that was made earlier is returned only at the end of the wait. "" for
        any time.
    seconds: longest wait.
    is_over: called between two looks; true when nobody wants to wait any longer.
    """
    deadline = time.monotonic() + seconds
    latest: dict[str, Any] | None = None
    while True:
        newest = _newest(service, job, attempt)
        if newest is not None:
            latest = newest
            if not since or _moment(newest["created"]) >= _moment(since):
                return newest
        if time.monotonic() >= deadline or is_over():
            if latest is not None:
                return latest
            raise NoDiagnosis("there is none yet")
        time.sleep(POLL_SECONDS)


def _newest(service: Service, job: str, attempt: int | None) -> dict[str, Any] | None:
    try:
        answer = service.get("/diagnoses", {"job": job, "limit": 20})
    except (Unreachable, UsageError) as error:
        raise NoDiagnosis(str(error)) from None
    if answer.refuses_token:
        raise NoDiagnosis("the token may not read diagnoses ({})".format(answer.detail))
    if answer.status != 200:
        return None
    for item in answer.fields().get("items", ()):
        if attempt in (None, item.get("attempt")):
            return dict(item)
    return None


def page_of(service_url: str, diagnosis: dict[str, Any]) -> str:
    """Address of the page of a diagnosis, as the person who runs this reaches the service."""
    url = _text(diagnosis, "url")
    if "://" in url:
        return url
    return "{}/diagnoses/{}".format(service_url, quote(str(diagnosis.get("id")), safe=""))


def page_of_job(service_url: str, job: str) -> str:
    return "{}/jobs/{}".format(service_url, quote(job, safe=""))


def rendered(diagnosis: dict[str, Any], page: str, width: int, *, colour: bool) -> str:
    """Write a diagnosis for a terminal, with the control characters of the log escaped.

    page: address of its page.
    width: of the terminal, in characters.
    """
    category = str(diagnosis.get("category"))
    kind = _answer(diagnosis)
    sure = "{:.0%} sure".format(float(diagnosis.get("confidence", 0.0)))
    head = "Diagnosis: {}".format(_styled(printable(kind), "1;" + COLOURS.get(category, "0"), colour))
    lines = ["", "{}  ({}, {}, {})".format(head, printable(category), printable(str(diagnosis.get("outcome"))), sure)]
    room = max(30, min(width, WIDTH) - LABEL_WIDTH - 2)
    for label, text in filter(itemgetter(1), _rows(diagnosis, page)):
        parts = [printable(text)]
        if label != "page":  # nobody can press half of an address
            parts = textwrap.wrap(printable(text), room) or [""]
        lines.append("  {}{}".format(_styled(label.ljust(LABEL_WIDTH), "1", colour), parts[0]))
        lines += [" " * (LABEL_WIDTH + 2) + part for part in parts[1:]]
    return "\n".join(lines) + "\n"


def _answer(diagnosis: dict[str, Any]) -> str:
    """The type in words; of an answer that is more likely wrong than right, also what else it could be."""
    kind, sure = str(diagnosis.get("type")), float(diagnosis.get("confidence", 0.0))
    choices = [] if kind == "unknown" else [(kind, sure)]
    choices += [(str(rival["type"]), float(rival["confidence"])) for rival in diagnosis.get("rivals", ())]
    if sure >= GUESS or not choices:
        return kind.replace("_", " ")
    named = ["{} ({:.0%})".format(name.replace("_", " "), share) for name, share in choices]
    return "unknown, most likely {}".format(" or ".join(named))


def printable(text: str) -> str:
    """Escape control characters, which a terminal obeys, and marks that turn the direction of text."""
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 256:
        return "\\x{:02x}".format(number)
    return "\\u{:04x}".format(number)


def _rows(diagnosis: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of each row from top to bottom; a text is "" where the diagnosis does not say it."""
    yield from _root_line(_part(diagnosis, "root_cause"))
    for suspect in diagnosis.get("nodes", [])[:3]:
        yield "suspect", "{} ({:.2f}) {}".format(suspect["node"], suspect["score"], suspect["why"])
    symptoms = len(diagnosis.get("symptoms", ()))
    if symptoms == 1:
        yield "explains", "1 later symptom"
    elif symptoms:
        yield "explains", "{} later symptoms".format(symptoms)
    advice = _part(diagnosis, "recovery")
    yield "action", "{} ({})".format(advice.get("action"), advice.get("reason")).replace("_", " ")
    yield "what to do", _text(diagnosis, "mitigation")
    for note in diagnosis.get("notes", ()):
        yield "note", str(note)
    yield "review", _text(diagnosis, "needs_review")
    yield "decided by", str(diagnosis.get("decided_by"))
    figures = _part(diagnosis, "compression")
    yield "log", "{:,} lines read, {:,} kept".format(figures.get("lines_in", 0), figures.get("lines_out", 0))
    yield "page", page


def _part(diagnosis: dict[str, Any], name: str) -> dict[str, Any]:
    """Read an object within a diagnosis; empty where there is none."""
    return diagnosis.get(name) or {}


def _text(fields: dict[str, Any], name: str) -> str:
    return str(fields.get(name) or "")


def _root_line(root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not root:
        return
    text = _text(root, "text")
    left = len(text) - LINE_SHOWN
    if left > 0:
        text = "{}... ({} more characters)".format(text[:LINE_SHOWN], left)
    if root.get("line"):
        text = "{}: {}".format(root["line"], text)
    yield "root line", text
    for name in ("rank", "node", "gpu"):
        if root.get(name) is not None:
            yield name, str(root[name])


def _styled(text: str, codes: str, colour: bool) -> str:
    if not colour:
        return text
    return "\x1b[{}m{}\x1b[0m".format(codes, text)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))

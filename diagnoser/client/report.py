"""The diagnosis, as a person reads it in a terminal."""

from __future__ import annotations

import re
import textwrap
import time
from datetime import datetime
from typing import Any, Callable
from urllib.parse import quote

from diagnoser.client.service import Service, Unreachable, UsageError

POLL_SECONDS = 0.5
LINE_SHOWN = 400
WIDTH = 110
LABEL_WIDTH = 12
COLOURS = {"infrastructure": "31", "framework": "33", "script": "35", "none": "32"}

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


class NoDiagnosis(Exception):
    """Why there is none to show; the message is for a person."""


def wait_for_diagnosis(
    service: Service, job: str, attempt: int | None, since: str, seconds: float, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """The current diagnosis of the attempt, made after ``since`` (ISO 8601, of the service's clock; "" for any time).

    is_over: asked between two looks; true when nobody wants to wait any longer. Raises NoDiagnosis.
    """
    deadline = time.monotonic() + seconds
    latest: dict[str, Any] | None = None
    while True:
        try:
            answer = service.get("/diagnoses", {"job": job, "limit": 20})
        except (Unreachable, UsageError) as error:
            raise NoDiagnosis(str(error)) from None
        if answer.refuses_token:
            raise NoDiagnosis("the token may not read diagnoses ({})".format(answer.detail))
        body = answer.json() if answer.status == 200 else None
        for item in body.get("items") or [] if isinstance(body, dict) else []:
            if attempt in (None, item.get("attempt")):
                latest = item
                if not since or _moment(item["created"]) >= _moment(since):
                    return latest
                break
        if time.monotonic() >= deadline or is_over():
            if latest is not None:
                return latest
            raise NoDiagnosis("there is none yet")
        time.sleep(POLL_SECONDS)


def page_of(service_url: str, diagnosis: dict[str, Any]) -> str:
    """Address of the page of a diagnosis, as the person who runs this reaches the service."""
    url = str(diagnosis.get("url") or "")
    return url if "://" in url else "{}/diagnoses/{}".format(service_url, quote(str(diagnosis.get("id")), safe=""))


def page_of_job(service_url: str, job: str) -> str:
    return "{}/jobs/{}".format(service_url, quote(job, safe=""))


def rendered(diagnosis: dict[str, Any], page: str, width: int, *, colour: bool) -> str:
    """width: of the terminal, in characters. Whatever comes from the log has its control characters escaped."""
    category = str(diagnosis.get("category"))
    kind = str(diagnosis.get("type")).replace("_", " ")
    sure = "{:.0%} sure".format(float(diagnosis.get("confidence") or 0.0))
    head = "Diagnosis: {}".format(_styled(printable(kind), "1;" + COLOURS.get(category, "0"), colour))
    lines = ["", "{}  ({}, {}, {})".format(head, printable(category), printable(str(diagnosis.get("outcome"))), sure)]
    room = max(30, min(width, WIDTH) - LABEL_WIDTH - 2)
    for label, text in _rows(diagnosis, page):
        parts = [printable(text)] if label == "page" else textwrap.wrap(printable(text), room) or [""]
        lines.append("  {}{}".format(_styled(label.ljust(LABEL_WIDTH), "1", colour), parts[0]))
        lines += [" " * (LABEL_WIDTH + 2) + part for part in parts[1:]]
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """A terminal obeys control characters, and a reader is misled by marks that turn the direction of text: both are
    shown as what they are."""
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return "\\x{:02x}".format(number) if number < 256 else "\\u{:04x}".format(number)


def _rows(diagnosis: dict[str, Any], page: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    root = diagnosis.get("root_cause") or {}
    if root:
        text = str(root.get("text") or "")
        left = len(text) - LINE_SHOWN
        text = text if left <= 0 else "{}... ({} more characters)".format(text[:LINE_SHOWN], left)
        rows.append(("root line", "{}: {}".format(root["line"], text) if root.get("line") else text))
        rows += [(name, str(root[name])) for name in ("rank", "node", "gpu") if root.get(name) is not None]
    for suspect in (diagnosis.get("nodes") or [])[:3]:
        rows.append(("suspect", "{} ({:.2f}) {}".format(suspect["node"], suspect["score"], suspect["why"])))
    symptoms = len(diagnosis.get("symptoms") or [])
    if symptoms:
        rows.append(("explains", "{} later symptom{}".format(symptoms, "s" if symptoms > 1 else "")))
    advice = diagnosis.get("recovery") or {}
    rows.append(("action", "{} ({})".format(str(advice.get("action")).replace("_", " "), advice.get("reason"))))
    rows.append(("what to do", str(diagnosis.get("mitigation") or "")))
    rows += [("note", str(note)) for note in diagnosis.get("notes") or []]
    if diagnosis.get("needs_review"):
        rows.append(("review", str(diagnosis["needs_review"])))
    rows.append(("decided by", str(diagnosis.get("decided_by"))))
    figures = diagnosis.get("compression") or {}
    rows.append(("log", "{:,} lines read, {:,} kept".format(figures.get("lines_in", 0), figures.get("lines_out", 0))))
    rows.append(("page", page))
    return [(label, text) for label, text in rows if text]


def _styled(text: str, codes: str, colour: bool) -> str:
    return "\x1b[{}m{}\x1b[0m".format(codes, text) if colour else text


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))

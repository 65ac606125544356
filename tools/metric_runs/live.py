"""Runs that diverge, sent step by step to the real service: ``python -m tools.metric_runs.live [FIRST LAST]``.

For each run: after how many steps behind the moment from which it is certain (by the pure code) its verdict was there,
and what the service says at its end, 300 steps later, with exit code 0. Before that, healthy runs are sent, quickly.
"""

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import typer

from diagnoser.model import MetricEventKind
from tests.e2e.service import service
from tools.metric_runs.__main__ import points_of, watched
from tools.metric_runs.recipes import DIVERGENT_FORMS, HEALTHY, Divergence, divergence

STEP_SECONDS, PATIENCE, HEALTHY_STEPS = 3.0, 30, 1200
_TEXT = {"Content-Type": "text/plain"}


def send(client: httpx.Client, job: str, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    client.post("/api/v1/logs", params={"job": job}, content=text, headers=_TEXT).raise_for_status()


def verdict(client: httpx.Client, job: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = client.get("/api/v1/diagnoses", params={"job": job}).json()["items"]
    return items[0] if items else {}


def follow(url: str, job: str, run: Divergence) -> str:
    """Send a run, and say when it was seen."""
    certain = 0
    for line, event in watched(points_of([line for _, _, line in run.lines])):
        if event.kind is MetricEventKind.DIVERGED:
            certain = run.lines[line - 1][1]
    lines = [line for _, _, line in run.lines]
    with httpx.Client(base_url=url, timeout=120) as client:
        send(client, job, lines[: run.at - 1])
        time.sleep(STEP_SECONDS)
        step, seen = run.at - 1, 0
        while step < certain + PATIENCE and not seen:
            send(client, job, lines[step : step + 1])
            step += 1
            time.sleep(STEP_SECONDS)
            if verdict(client, job).get("type") == "loss_divergence":
                seen = step
        live = verdict(client, job)
        send(client, job, lines[step : step + 300])
        client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 0}).raise_for_status()
        time.sleep(10)
        end = verdict(client, job)
        late = seen - certain if seen else "missed"
        root = (end.get("root_cause") or {}).get("line")
        plan = (live.get("plan") or {}).get("state")
        seen_late = f"{job:24} at {run.at} certain {certain} late {late} plan {plan}"
        return f"{seen_late} end {end.get('type')} root {root}"


def replay(url: str, name: str) -> None:
    """Send a healthy run, twenty lines at a time."""
    lines = [line for _, line in HEALTHY[name](random.Random(f"live-{name}"), HEALTHY_STEPS)]
    with httpx.Client(base_url=url, timeout=120) as client:
        for start in range(0, len(lines), 20):
            send(client, name, lines[start : start + 20])
            time.sleep(0.5)


def main(first: int, last: int) -> None:
    """first, last: seeds of the runs that diverge."""
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as process:
        process.start()
        with ThreadPoolExecutor(48) as pool:
            list(pool.map(lambda name: replay(process.url, name), HEALTHY))
            events = (Path(folder) / "service.log").read_text().count("metric_event")
            typer.echo(f"{len(HEALTHY)} healthy runs sent, {events} events")
            seeds = range(first, last)
            runs = [(f"{form}-{seed}", divergence(seed, form)) for form in DIVERGENT_FORMS for seed in seeds]
            for said in pool.map(lambda entry: follow(process.url, *entry), runs):
                typer.echo(said)
        events = (Path(folder) / "service.log").read_text().count("metric_event")
        typer.echo(f"{events} events")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (0, 2)))

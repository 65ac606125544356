"""How the service learns: a model names a failure that no rule knows, a person confirms it, a rule knows it from then.

make demo-llm           keeps serving, so that the pages can be looked at, until Ctrl-C
make demo-llm EXIT=1    ends after the loop

Asks the server in DIAGNOSER_LLM_URL and DIAGNOSER_LLM_MODEL. Without one a scripted model answers, over real HTTP.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from waits import console, end_on_sigterm, until

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.service import send, service
from tests.integration.model_server import Reply, model_server
from tests.integration.scripted import answer, question

# A reader that a site wrote itself, whose messages no rule of anybody else can know.
CAUSE = "dataset_loading_error"
LINE = "tokenmix: shard {shard} of mix code-v7 ends at offset {end}, its index says {index}: reader stops"
RULE = {
    "title": "A shard of the token mix is shorter than its index",
    "anchors": ["tokenmix: shard"],
    "patterns": [r"tokenmix: shard \d+ of mix \S+ ends at offset \d+, its index says \d+"],
    "unless": [],
}
RUNS = (
    {"job": "mixtral-a", "rank": 3, "shard": 7, "end": 4194304, "index": 4718592},
    {"job": "mixtral-b", "rank": 6, "shard": 31, "end": 1048576, "index": 4718592},
    {"job": "mixtral-c", "rank": 1, "shard": 112, "end": 2097152, "index": 4718592},
)
DONE = ["0: training completed, final checkpoint saved at step 240"]
OOM = ["5: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has 79.10 GiB in all"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after the loop")
    args = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as folder, model() as (site, is_script):
        told = "a script that answers over HTTP" if is_script else site.get("DIAGNOSER_LLM_MODEL", "")
        console.print(f"The model is {told}.")
        with service(Path(folder), **site) as running:
            try:
                loop(running.start(), running.url)
                if not args.exit:
                    console.print(f"Look at {running.url}/rules until Ctrl-C.")
                    while True:
                        time.sleep(1)
            except KeyboardInterrupt:
                console.print("Stopping.")


def loop(client: httpx.Client, url: str) -> None:
    """Diagnosed, confirmed, learned, tried in shadow, promoted, decided."""
    console.rule("0. What the service has seen: a run that completed, and one that ran out of memory", align="left")
    for job, end, code in (("llama-7b", DONE, 0), ("llama-13b", OOM, 1)):
        found = run(client, job, end, code)
        console.print(f"{job}: {found['type']}, decided by {found['decided_by']}")

    console.rule("1. No rule knows this failure: the model is asked", align="left")
    first = fail(client, RUNS[0], after_model=True)
    show(first, calls(client), url)
    asked = calls(client)

    console.rule("2. A person confirms it, and a rule is written and tested", align="left")
    rule = learned(client, say(client, first))
    show_rule(rule, calls(client) - asked)

    console.rule("3. It happens again: what you said decides, and the rule in shadow agrees", align="left")
    asked = calls(client)
    again = fail(client, RUNS[1])
    show(again, calls(client) - asked, url)
    told = until(lambda: hit(client, rule["id"]), "the rule in shadow has a hit")
    console.print(f"{rule['id']} is in {told['state']}; attempts it would have decided: {told['counts']['hits']}.")

    console.rule("4. A person promotes it; from now on the rule decides, and nobody is asked", align="left")
    promotion = {"comment": "seen twice"}
    client.post(f"/api/v1/rules/{rule['id']}/promote", json=promotion).raise_for_status()
    asked = calls(client)
    last = fail(client, RUNS[2])
    show(last, calls(client) - asked, url)
    if last["decided_by"] != f"rule:{rule['id']}" or calls(client) != asked:
        raise SystemExit(f"the learned rule did not decide: {last['decided_by']}, {calls(client) - asked:g} questions")
    if last["recovery"]["action"] != first["recovery"]["action"]:
        raise SystemExit(f"the rule asks for less than the model: {last['recovery']['action']}")


def fail(client: httpx.Client, given: dict[str, Any], *, after_model: bool = False) -> dict[str, Any]:
    """A job that fails in the same way each time, on another rank and with other numbers: its diagnosis."""
    end = [f"{given['rank']}: " + LINE.format(**given), "srun: job step done, 8 tasks"]
    return run(client, given["job"], end, 1, first=given["shard"], after_model=after_model)


def run(
    client: httpx.Client, job: str, end: list[str], code: int, *, first: int = 0, after_model: bool = False
) -> dict[str, Any]:
    """Eight ranks that train for a while and end: the diagnosis. first: number of the first node."""
    steps = [
        f"{rank}: step {step:>4} | loss {2.9 - step / 400:.4f} | grad norm 0.{step % 7}{rank} | 412.{rank} ms"
        for step in range(200, 240)
        for rank in range(8)
    ]
    lines = [f"{line}\n".encode() for line in steps + end]
    nodes = {str(rank): f"gpu-{first + rank:03d}" for rank in range(8)}
    registered = {"id": job, "nodes": sorted(nodes.values()), "rank_nodes": nodes}
    client.post("/api/v1/jobs", json=registered).raise_for_status()
    send(client, lines, 0, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": code}).raise_for_status()
    return until(lambda: diagnosis(client, job, after_model), f"{job} has a diagnosis")


def diagnosis(client: httpx.Client, job: str, after_model: bool) -> dict[str, Any] | None:
    items = client.get("/api/v1/diagnoses", params={"job": job}).raise_for_status().json()["items"]
    found = client.get(f"/api/v1/diagnoses/{items[0]['id']}").raise_for_status().json() if items else None
    return found if found and (found["model"] or not after_model) else None


def say(client: httpx.Client, found: dict[str, Any]) -> str:
    """Confirm the verdict, or correct it where the model did not see the cause."""
    text = "write the shard that the line names again, then its index"
    word: dict[str, Any] = {"verdict": "confirmed", "comment": text}
    if found["type"] != CAUSE or not found["root_cause"]:
        word |= {"verdict": "corrected", "type": CAUSE, "root_line": 321}
    client.post(f"/api/v1/diagnoses/{found['id']}/feedback", json=word).raise_for_status()
    console.print(f"You said: {word['verdict']} {CAUSE}.")
    return str(found["id"])


def learned(client: httpx.Client, source: str) -> dict[str, Any]:
    """The rule that is learned from a diagnosis, once it was tested."""

    def tested() -> dict[str, Any] | None:
        rules = client.get("/api/v1/rules").raise_for_status().json()["items"]
        return next((one for one in rules if one["source"] == source and one["state"] != "proposed"), None)

    rule = until(tested, "the rule is tested")
    if rule["state"] != "shadow":
        show_rule(rule, 0)
        raise SystemExit(f"the rule was {rule['state']}: {rule['history'][-1]['why']}")
    return rule


def hit(client: httpx.Client, rule: str) -> dict[str, Any] | None:
    """The rule once it was counted; that is done when the verdict is published."""
    told = client.get(f"/api/v1/rules/{rule}").raise_for_status().json()
    return told if told["counts"]["hits"] else None


def calls(client: httpx.Client) -> float:
    """Questions that the service has sent so far, as it counts them itself."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("diagnoser_llm_requests_total "))


def show(found: dict[str, Any], asked: float, url: str) -> None:
    root, use = found["root_cause"] or {}, found["model"] or {}
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    tokens = f", {use['tokens_in'] + use['tokens_out']} tokens" if use else ""
    for name, value in (
        ("Type", f"{found['type']}  ({found['category']}, {found['confidence']:.0%} sure)"),
        ("Root line", f"{root['line']}: {root['text']}" if root else "-"),
        ("Rules said", use["before"]["type"] if use.get("before") else "-"),
        ("Decided by", found["decided_by"]),
        ("Looked at", "; ".join(tool["call"] for tool in use.get("tools", ())) or "-"),
        ("Questions", f"{asked:g}{tokens}"),
        ("Action", f"{found['recovery']['action']}  ({found['recovery']['reason']})"),
        ("What to do", found["mitigation"] or "-"),
        ("Page", f"{url}/diagnoses/{found['id']}"),
    ):
        rows.add_row(name, Text(str(value)))
    console.print(Panel(rows, title=f"Diagnosis of {found['job']}", title_align="left"))


def show_rule(rule: dict[str, Any], asked: float) -> None:
    table = Table("test", "", "what was found", box=None, header_style="bold")
    for gate in rule["gates"]:
        table.add_row(gate["name"].replace("_", " "), "passed" if gate["passed"] else "FAILED", Text(gate["reason"]))
    author = rule["author"]
    by = "the shape of the line" if author["name"] == "template" else f"{author['name']} with {author['prompt']}"
    console.print(f"Written by {by}; questions: {asked:g}.{' ' + author['failure'] if author['failure'] else ''}")
    console.print(Panel(Syntax(rule["text"].strip(), "yaml", word_wrap=True), title=rule["path"], title_align="left"))
    console.print(table)
    console.print(f"The rule is in {rule['state']}.")


@contextmanager
def model() -> Iterator[tuple[dict[str, str], bool]]:
    """Settings of the model that is asked, and whether it is the scripted one."""
    given = {name: value for name, value in os.environ.items() if name.startswith("DIAGNOSER_LLM_")}
    if given.get("DIAGNOSER_LLM_URL"):
        yield given, False
        return
    with model_server(scripted) as server:
        yield {"DIAGNOSER_LLM_URL": server.url, "DIAGNOSER_LLM_MODEL": "scripted"}, True


def scripted(asked: dict[str, Any]) -> Reply:
    """Reads what it is sent, as a model would: it looks around, cites the odd line, or writes a rule for it."""
    told = question(asked)
    if told.system.startswith("You write one rule"):
        return Reply(json.dumps(RULE))
    number, text = next(((n, line) for n, line in told.lines.items() if "tokenmix: shard" in line), (0, ""))
    if not number:
        return answer("unknown", {})
    if len(asked["messages"]) == 2 and asked.get("tool_choice") == "auto":
        return Reply(calls=[("search_log", json.dumps({"pattern": "(?i)tokenmix|shard"}))])
    pair = {"alternative": "filesystem_error", "tells_apart": "Whether other files of that mount are cut as well."}
    return answer(CAUSE, {number: text}, mitigation="Write that shard and its index again.", fault="user_error", **pair)


if __name__ == "__main__":
    main()

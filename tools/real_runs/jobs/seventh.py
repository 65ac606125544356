"""The seventh generation: frameworks and launchers as they are installed, unmodified, with their own logging.

``python -m tools.real_runs.jobs.seventh DEV HELD_OUT``: families, launchers and faults stand in ``seventh.yaml``, the
programs in ``../trainers/shops.py``; those of ten further families (first_sight.csv) are no more. Needs root, pdsh,
clustershell, parallel, supervisor, s6, moreutils and ninja-build of apt, concurrently of npm, and in $SHOPS the
environments venv-hf (trl, datasets) and venv-flow (submitit, prefect, kedro, hydra-joblib-launcher, honcho).
"""

import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.environments import TORCH
from tests.ports import free_port
from tools.real_runs import environments, runner
from tools.real_runs.cases import Case, NoRootLine, label
from tools.real_runs.scenarios import Truth

TRAINERS = Path(__file__).parents[1] / "trainers"
SITES = Path(os.environ.get("SHOPS", environments.FOLDER))
TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "seventh.yaml").read_text())
FAMILIES, LAUNCHERS, ENDS = (TABLES[name] for name in ("families", "launchers", "ends"))
FAULTS = {**TABLES["faults"], **ENDS}
_LIMIT_S, _EVENT_S, _QUIET_S = 110.0, 22.0, 9.0
_RAISES = re.compile(r"^[^\"']*\b(raise|assert|print) ?\w|^\W*\d* *[│❱]|\^\^\^")
_RANKED = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]:")
_PIPED = r"^(?:\w{3} \d\d [\d:]{8} |[\d-]{10} [\d:.]{18} +|@[0-9a-f]{24} |OUTER )?"
"""What a pipe has put before each line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One case to be. struck: the ranks that meet the fault."""

    id: str
    family: str
    launcher: str
    logger: str
    pipe: str
    fault: str
    struck: tuple[int, ...]
    nodes: tuple[str, ...]
    world: int
    seed: int
    held_out: bool

    @property
    def outer(self) -> str:
        """Where the launcher runs."""
        return self.nodes[0] if len(self.nodes) == 1 and FAMILIES[self.family]["kind"] != "pool" else "login01"

    def node_of(self, rank: int) -> str:
        return self.nodes[rank * len(self.nodes) // self.world]


def plans() -> Iterator[Plan]:
    """The cases of the tables: halves share no family, launcher or pipe."""
    for family, row in FAMILIES.items():
        for number, (launcher, fault) in enumerate(row["cases"]):
            chance, on, pool = random.Random(f"{family}-{number}"), LAUNCHERS[launcher], row["kind"] == "pool"
            world = 1 if pool else 4 if "pairs" in on else chance.choice((2, 3))
            hosts = 2 if "pairs" in on else 1 if "one_node" in on else world
            stem, numbers = chance.choice(("nid00{}", "gpu-{}", "hgx{}")), sorted(chance.sample(range(11, 99), hosts))
            struck: tuple[int, ...] = tuple(range(4 if pool else world))
            if FAULTS[fault].get("where") != "all":
                struck = (0,) if FAULTS[fault].get("at") == "boot" else (chance.choice(struck),)
            logger, pipe = chance.choice(row["loggers"]), chance.choice(["", *row["pipes"]])
            name = re.sub(r"[^a-z0-9]+", "-", f"{family} {launcher} {fault} 7{number:02d}")
            nodes = tuple(stem.format(number) for number in numbers)
            yield Plan(name, family, launcher, logger, pipe, fault, struck, nodes, world, number, row["held_out"])


def _command(plan: Plan, folder: Path, port: int) -> str:
    """The command of the run, whose files are laid into the folder."""
    row, launcher, event = FAULTS[plan.fault], LAUNCHERS[plan.launcher], plan.fault in ENDS
    settings = {
        "place": row.get("at", "never"), "struck": plan.struck, "strike": 6 + plan.seed,
        "steps": 30, "pause": 0.6 if event else 0.05, "logger": plan.logger, "message": row.get("message", ""),
        "lines": () if event else row.get("lines", ()), "seed": plan.seed, "minutes": row.get("minutes", 5),
        "code": f"FAMILY = {plan.family!r}\n\n\ndef on_event(on):\n    {row.get('code', 'pass')}\n",
    }  # fmt: skip
    words = {
        "world": plan.world, "port": port, "first": plan.nodes[0], "program": f"{TRAINERS}/shops.py {plan.family}",
        "nodes": ",".join(plan.nodes), "listed": " ".join(plan.nodes), "numbers": " ".join(map(str, range(plan.world))),
        "targets": " ".join(f"rank-{rank}" for rank in range(plan.world)),
        "names": ",".join(f"{plan.node_of(rank)}/{rank}" for rank in range(plan.world)),
        "quoted": " ".join(f"'sh rank.sh {plan.node_of(rank)} {rank}'" for rank in range(plan.world)),
    }  # fmt: skip
    hosts = enumerate(("localhost", *{plan.outer, *plan.nodes}), 1)
    files = {name: text.format_map(words) for name, text in TABLES["files"].items()}
    files["hosts"] = "".join(f"127.0.0.{number} {name}\n" for number, name in hosts)
    files["run.json"] = json.dumps(settings)
    if "file" in launcher:
        name, head, each = launcher["file"]
        ranks = [each.format(rank=rank, node=plan.node_of(rank)) for rank in range(plan.world)]
        files[name] = "\n".join([head.format_map(words), *ranks, ""])
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "full").mkdir()
    command = f"{launcher['words'].format_map(words)} 2>&1"
    return f"{command} | {plan.pipe}" if plan.pipe else command


def run(plan: Plan, folder: Path) -> tuple[list[str], int]:
    """Lines of the log, and the exit code of the launcher."""
    command, site = _command(plan, folder, free_port()), SITES / f"venv-{FAMILIES[plan.family]['site']}"
    environment = {
        **TABLES["environment"], "PATH": f"{site}/bin:{SITES}/venv-flow/bin:/usr/bin:/bin:/usr/sbin:/usr/local/bin",
        "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(TRAINERS), "RUN_FILE": f"{folder}/run.json",
    }  # fmt: skip
    mounts = f"mount --bind {folder}/hosts /etc/hosts && mount -t tmpfs -o size=64k none {folder}/full"
    setup = f"{mounts} && hostname {plan.outer} && ulimit -c 0 -v 60000000 && set -o pipefail; {command}"
    process = subprocess.Popen(
        ["nice", "-n", "10", "unshare", "--uts", "--mount", "bash", "-c", setup], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        lines = _collect(plan, process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        runner.end_left_over(folder)
    return lines, process.wait()


def _collect(plan: Plan, process: "subprocess.Popen[bytes]") -> list[str]:
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        for raw in process.stdout or ():
            arrived.put(raw)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    lines, row, waits = list[str](), FAULTS[plan.fault], plan.fault in ENDS
    began = last = time.time()
    while time.time() < began + _LIMIT_S:
        with suppress(queue.Empty):
            raw = arrived.get(timeout=0.3)
            if raw is None:
                break
            lines.append(raw.rstrip(b"\n").decode(errors="replace"))
            last = time.time()
        if waits and row["signal"] and time.time() > began + _EVENT_S:
            lines += [line.format(first=plan.nodes[0]) for line in row.get("lines", ())]
            _signal(process, row["signal"])
            waits = False
        quiet = "ends" in LAUNCHERS[plan.launcher] and time.time() > max(began + 55, last + _QUIET_S)
        if quiet or time.time() > began + _LIMIT_S - 15:
            _signal(process, signal.SIGTERM)
            last = time.time()
    return lines


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """As a terminal or a batch system does it: to all of the group but what only passes lines on."""
    table = subprocess.run(["ps", "-eo", "pid,pgid,comm"], capture_output=True, text=True, check=True).stdout
    for pid, group, name in (line.split(None, 2) for line in table.splitlines()[1:]):
        if group == str(process.pid) and name not in ("bash", "ts", "s6-log", "tee", "sed"):
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)


def make_case(plan: Plan, lines: Sequence[str], code: int, folder: Path) -> Case:
    """Raises NoRootLine when it did not go as planned."""
    row, log, well = {**FAULTS[plan.fault]}, list(lines), FAULTS[plan.fault]["type"] == "completed"
    places: dict[object, str] = {folder: "/scratch/run", TRAINERS: "/workspace/train", TORCH.folder: "/opt/torch"}
    for real, name in {**places, SITES: "/opt", sys.base_prefix: "/usr", "127.0.0.1": "10.4.7.11"}.items():
        log = [line.replace(str(real), name) for line in log]
    if well and (code not in (0, -15, 143) or not any("done" in line for line in log)):
        raise NoRootLine(f"ended with {code}: {log[-8:]}")
    if plan.fault in ENDS and "marker" not in row:
        row["marker"] = "|".join(re.escape(line.split("{first}")[0]) for line in row["lines"])
    root = _root_lines(plan, row, log)
    if not root and not well:
        raise NoRootLine(f"no {row['marker']} ({code}): {log[-8:]}")
    rank, node = _place(plan, row, log, root)
    also, recovery, outcome = tuple(row.get("also", ())), row.get("recovery", ""), row.get("outcome", "failed")
    truth = Truth(row["type"], plan.fault, outcome=outcome, also=also, recovery=recovery)
    marked = [n for n, line in enumerate(log, 1) if row.get("marker") and re.search(row["marker"], line)]
    more: dict[str, Any] = {"event_lines": [n for n in marked if n not in root], "framework": plan.family}
    more |= {"logger": f"{plan.logger} {plan.pipe}".strip(), "imitation": "imitated" in row, "launcher": plan.launcher}
    more |= {"scenario": plan.fault, "ranks": plan.world, "exit_code": code}
    return Case(log, label(plan.id, truth, log, root, node, rank, **more))


def _whose(plan: Plan, line: str) -> tuple[int | None, str | None]:
    """The rank and the node that the head of a line names."""
    form = LAUNCHERS[plan.launcher].get("head", "^$").removeprefix("^")
    ranked, headed = _RANKED.search(line), re.match(_PIPED.replace("OUTER", plan.outer) + form, line)
    found = {**(ranked.groupdict() if ranked else {}), **(headed.groupdict() if headed else {})}
    rank, node = found.get("rank"), found.get("node")
    if rank is None and node in plan.nodes and len(plan.nodes) == plan.world:
        rank = str(plan.nodes.index(node))
    return int(rank) if rank else None, node


def _root_lines(plan: Plan, row: Mapping[str, Any], log: Sequence[str]) -> list[int]:
    """Numbers (from 1) of the lines that show the cause; of the struck rank only, where ranks are told apart."""
    found = [n for n, line in enumerate(log, 1) if row.get("marker") and re.search(row["marker"], line)]
    found = [n for n in found if not _RAISES.search(log[n - 1])]
    anyone = plan.fault in ENDS or FAMILIES[plan.family]["kind"] == "pool" or len(plan.struck) > 1
    return found if anyone else [n for n in found if _whose(plan, log[n - 1])[0] in (None, *plan.struck)]


def _place(
    plan: Plan, row: Mapping[str, Any], log: Sequence[str], root: Sequence[int]
) -> tuple[int | None, str | None]:
    """The rank and node of the struck process, where a line about its end names them; a pool has no ranks."""
    if plan.fault in ENDS or row["type"] == "completed" or row.get("where") == "all":
        return None, None
    pool = FAMILIES[plan.family]["kind"] == "pool"
    rank = 0 if pool else plan.struck[0]
    node, told = plan.node_of(rank), LAUNCHERS[plan.launcher].get("told", "^$x")
    ended = [line for line in log if re.search(told.replace("{rank}", r"\d+").replace("{node}", r"[\w-]+"), line)]
    words = told.replace("{rank}", str(rank)).replace("{node}", node)
    said = [line for line in ended[:1] if re.search(words, line)]  # others end after the first, and because of it
    hosts = [log[n] for n in range(len(log) - 2) if re.search(rf"\brank +: {rank} \(", log[n + 1]) and "host" in log[n]]
    about = [*(log[n - 1] for n in root), *said, *hosts]
    heads = [_whose(plan, line) for line in about]
    named = re.compile(rf"\b[Rr]ank[ =:]*{rank}\b|\brank[-_]?{rank}\b|\[rank{rank}\]|task_{rank}\b")
    ranked = bool(hosts or (said and "{rank}" in told)) or any(number == rank for number, _ in heads)
    ranked = ranked or any(named.search(line) for line in about)
    by_words = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w-])")
    shown = any(name == node for _, name in heads) or any(by_words.search(line) for line in about)
    return rank if ranked and not pool else None, node if shown else None


def _make(plan: Plan, folder: Path) -> str:
    """Write the case; returns why there is none."""
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        try:
            make_case(plan, *run(plan, Path(name)), Path(name)).write(folder)
        except (NoRootLine, OSError) as error:
            return f"not labelled: {error}"
    return "made"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:3]]
    drawn = sorted(plans(), key=lambda plan: plan.seed)
    waiting = [plan for plan in drawn if not (folders[plan.held_out] / f"{plan.id}.log").exists()]
    with ThreadPoolExecutor(2) as pool:
        for plan, error in zip(
            waiting, pool.map(lambda plan: _make(plan, folders[plan.held_out]), waiting), strict=True
        ):
            print(plan.id, error, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

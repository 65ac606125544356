"""Frameworks and launchers as they are installed, unmodified, with their own logging.

``python -m tools.real_runs.jobs DEV HELD_OUT [--generation 8]``: families, launchers and faults stand in
``seventh.yaml`` and ``eighth.yaml``, the programs in ``../trainers/shops.py`` and ``labs.py``. Needs root; of apt pdsh,
clustershell, parallel, supervisor, s6, moreutils, ninja-build, and for the eighth slurm, munge, ruby-foreman, dsh, jq
and gawk; of npm concurrently and npm-run-all; and in $SHOPS the environments venv-hf (trl, datasets), venv-flow
(submitit, prefect, kedro, hydra-joblib-launcher, honcho), venv-lab (what ``labs.py`` imports, torchx) and
venv-ops (ansible-core, doit, dvc, mpich).
"""

import argparse
import json
import os
import queue
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.environments import TORCH
from tests.integration.slurm import cluster
from tests.ports import free_port
from tools.real_runs import environments, runner
from tools.real_runs.cases import Case, NoRootLine, label
from tools.real_runs.scenarios import Truth

TRAINERS = Path(__file__).parents[1] / "trainers"
SITES = Path(os.environ.get("SHOPS", environments.FOLDER))
_READ = [yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text()) for name in ("seventh", "eighth")]
NPM = SITES / "npm/node_modules/.bin"
TABLES: dict[str, dict[str, Any]] = {name: {**_READ[0][name], **_READ[1].get(name, {})} for name in _READ[0]}
FAMILIES, LAUNCHERS, ENDS = (TABLES[name] for name in ("families", "launchers", "ends"))
FAULTS = {**TABLES["faults"], **ENDS}
SLURM: dict[str, str] = {}
"""Variables that lead to the cluster, while there is one."""
TOOLS = (SITES / "venv-flow/bin", SITES / "venv-ops/bin", NPM, "/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin")
_LIMIT_S, _EVENT_S, _QUIET_S = 110.0, 22.0, 9.0
_RAISES = re.compile(r"^[^\"']*\b(raise|assert|print) ?\w|^\W*\d* *[│❱]|\^\^\^")
_RANKED = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]:")
_PIPED = r"^(?:\w{3} \d\d [\d:]{8} |[\d-]{10} [\d:.]{18} +|@[0-9a-f]{24} |OUTER |[\dT:-]{19}\S* (?:std\w+ F )?"
_PIPED += r'|\{"log":")?'
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
    generation: int

    @property
    def kind(self) -> str:
        """ranks, pool, or one process."""
        return str(FAMILIES[self.family]["kind"])

    @property
    def outer(self) -> str:
        """Where the launcher runs."""
        alone = len(self.nodes) == 1 and self.kind != "pool"
        return self.nodes[0] if alone or "one_node" in LAUNCHERS[self.launcher] else "login01"

    def node_of(self, rank: int) -> str:
        return self.nodes[rank * len(self.nodes) // self.world]


def plans() -> Iterator[Plan]:
    """The cases of the tables: halves share no family, launcher or pipe."""
    for family, row in FAMILIES.items():
        for number, (launcher, fault) in enumerate(row["cases"]):
            chance, on, pool = random.Random(f"{family}-{number}"), LAUNCHERS[launcher], row["kind"] == "pool"
            generation = row.get("generation", 7)
            world = 1 if pool else _world(on, generation, chance)
            hosts = _hosts(on, world)
            stem, numbers = chance.choice(("nid00{}", "gpu-{}", "hgx{}")), sorted(chance.sample(range(11, 99), hosts))
            stem = "gpu-{:02}" if "slurm" in on else stem
            struck: tuple[int, ...] = tuple(range(4 if pool else world))
            if FAULTS[fault].get("where") != "all":
                struck = (0,) if FAULTS[fault].get("at") == "boot" else (chance.choice(struck),)
            logger, pipe = chance.choice(row["loggers"]), chance.choice(["", *row["pipes"]])
            name = re.sub(r"[^a-z0-9]+", "-", f"{family} {launcher} {fault} {generation}{number:02d}")
            nodes = tuple(stem.format(number) for number in (range(1, hosts + 1) if "slurm" in on else numbers))
            held_out = row["held_out"]
            yield Plan(name, family, launcher, logger, pipe, fault, struck, nodes, world, number, held_out, generation)


def _world(launcher: Mapping[str, Any], generation: int, chance: random.Random) -> int:
    """The ranks of a run."""
    if "alone" in launcher:
        return 1
    if "pairs" in launcher:
        return 4
    if generation == 8:
        return chance.choice((2, 2, 3))
    return chance.choice((2, 3))


def _hosts(launcher: Mapping[str, Any], world: int) -> int:
    """The machines on which a run's ranks are."""
    if "pairs" in launcher:
        return 2
    if "one_node" in launcher:
        return 1
    return world


def _pause(plan: Plan) -> float:
    """Seconds after a step: long enough for an end to come before the last one."""
    if plan.fault not in ENDS:
        return 0.05
    if plan.generation == 7:
        return 0.6
    return 5.0 if "slurm_words" in ENDS[plan.fault] else 1.5


def _command(plan: Plan, folder: Path, port: int) -> str:
    """The command of the run, whose files are laid into the folder."""
    row, launcher, event = FAULTS[plan.fault], LAUNCHERS[plan.launcher], plan.fault in ENDS
    settings = {
        "place": row.get("at", "never"), "struck": plan.struck, "strike": 6 + plan.seed,
        "steps": 30, "pause": _pause(plan), "logger": plan.logger, "message": row.get("message", ""),
        "lines": () if event else row.get("lines", ()), "seed": plan.seed, "minutes": row.get("minutes", 5),
        "code": f"FAMILY = {plan.family!r}\n\n\ndef on_event(on):\n    {row.get('code', 'pass')}\n",
    }  # fmt: skip
    script = f"{TRAINERS}/{'shops' if plan.generation == 7 else 'labs'}.py"
    words = {
        "world": plan.world, "port": port, "first": plan.nodes[0], "program": f"{script} {plan.family}",
        "script": script, "family": plan.family, "hosts": len(plan.nodes), "more": row.get("slurm_words", ""),
        "lines": "\n".join(plan.nodes), "name": plan.family,
        "pairs": " ".join(f"{plan.node_of(rank)}/{rank}" for rank in range(plan.world)),
        "scripts": " ".join(f"{plan.node_of(rank)}:{rank}" for rank in range(plan.world)),
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
    if "package" in launcher:
        scripts = {
            f"{plan.node_of(rank)}:{rank}": f"sh rank.sh {plan.node_of(rank)} {rank}" for rank in range(plan.world)
        }
        files["package.json"] = json.dumps({"name": "pretrain", "scripts": scripts})
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "full-device").symlink_to("/dev/full")
    (folder / "full").mkdir()
    command = f"{launcher['words'].format_map(words)} 2>&1"
    return f"{command} | {plan.pipe}" if plan.pipe else command


def run(plan: Plan, folder: Path) -> tuple[list[str], int]:
    """Lines of the log, and the exit code of the launcher."""
    port = free_port()
    command, site = _command(plan, folder, port), SITES / f"venv-{FAMILIES[plan.family]['site']}"
    environment = {
        **TABLES["environment"], **SLURM, "PATH": ":".join(map(str, (site / "bin", *TOOLS))), "MASTER_PORT": str(port),
        "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(TRAINERS), "RUN_FILE": f"{folder}/run.json",
    }  # fmt: skip
    mounts = f"mount --bind {folder}/hosts /etc/hosts && mount -t tmpfs -o size=64k none {folder}/full"
    setup = f"{mounts} && hostname {plan.outer} && ulimit -c 0 -v 60000000 && set -o pipefail; {command}"
    process = subprocess.Popen(
        ["nice", "-n", "10", "env", "--default-signal=INT", "unshare", "--uts", "--mount", "bash", "-c", setup],
        cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        lines = _collect(plan, process, folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        runner.end_left_over(folder)
    return lines, process.wait()


def _collect(plan: Plan, process: "subprocess.Popen[bytes]", folder: Path) -> list[str]:
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
        due = time.time() > began + _EVENT_S if plan.generation == 7 else (folder / "run.json.stepped").exists()
        if waits and due and "slurm" in LAUNCHERS[plan.launcher]:
            subprocess.run(shlex.split(row["slurm"]), env={**os.environ, **SLURM}, check=True, capture_output=True)
            waits = False
        if waits and due and row["signal"]:
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
    if plan.fault in ENDS and "slurm" in LAUNCHERS[plan.launcher]:
        row["marker"] = r"\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT"
    elif plan.fault in ENDS and "marker" not in row:
        row["marker"] = "|".join(re.escape(line.split("{first}")[0]) for line in row["lines"])
    root = _root_lines(plan, row, log)
    if not root and not well:
        raise NoRootLine(f"no {row['marker']} ({code}): {log[-8:]}")
    rank, node = _place(plan, row, log, root)
    also, recovery, outcome = (
        tuple(row.get("also", ())),
        row.get("recovery", ""),
        row.get("outcome", "completed" if well else "failed"),
    )
    truth = Truth(row["type"], plan.fault, outcome=outcome, also=also, recovery=recovery)
    marked = [n for n, line in enumerate(log, 1) if row.get("marker") and re.search(row["marker"], line)]
    more: dict[str, Any] = {"event_lines": [n for n in marked if n not in root], "framework": plan.family}
    more |= {"logger": f"{plan.logger} {plan.pipe}".strip(), "imitation": "imitated" in row, "launcher": plan.launcher}
    more |= {"scenario": plan.fault, "ranks": plan.world, "exit_code": code}
    return Case(log, label(plan.id, truth, log, root, node, rank, **more))


def _owners(plan: Plan, log: Sequence[str]) -> list[tuple[int | None, str | None]]:
    """The rank and the node that the head of each line names, or else that of its section."""
    section, owners = LAUNCHERS[plan.launcher].get("section", "^$x"), list[tuple[int | None, str | None]]()
    current: re.Match[str] | None = None
    for line in log:
        current = re.search(section, _bare(plan, line)) or current
        owner = _whose(plan, line)
        owners.append(owner if owner[1] or not current else _of_head(plan, current, owner[0]))
    return owners


def _bare(plan: Plan, line: str) -> str:
    return re.sub(_PIPED.replace("OUTER", plan.outer), "", line)


def _whose(plan: Plan, line: str) -> tuple[int | None, str | None]:
    form = LAUNCHERS[plan.launcher].get("head", "^$x")
    ranked = _RANKED.search(line)
    return _of_head(plan, re.match(form, _bare(plan, line)), int(ranked["rank"]) if ranked else None)


def _of_head(plan: Plan, head: re.Match[str] | None, said: int | None) -> tuple[int | None, str | None]:
    """said: the rank that the line itself names."""
    found = head.groupdict() if head else {}
    rank, node = found.get("rank") or said, found.get("node")
    if rank is None and plan.generation == 7 and node in plan.nodes and len(plan.nodes) == plan.world:
        rank = str(plan.nodes.index(node))
    return None if rank is None else int(rank), node


def _root_lines(plan: Plan, row: Mapping[str, Any], log: Sequence[str]) -> list[int]:
    """Numbers (from 1) of the lines that show the cause; of the struck rank only, where ranks are told apart."""
    found = [n for n, line in enumerate(log, 1) if row.get("marker") and re.search(row["marker"], line)]
    found = [n for n in found if not _RAISES.search(log[n - 1].removeprefix('{"log":"'))]
    anyone = plan.fault in ENDS or plan.kind == "pool" or len(plan.struck) > 1
    owners = _owners(plan, log)
    return found if anyone else [n for n in found if owners[n - 1][0] in (None, *plan.struck)]


def _place(
    plan: Plan, row: Mapping[str, Any], log: Sequence[str], root: Sequence[int]
) -> tuple[int | None, str | None]:
    """The rank and node of the struck process, where a line about its end names them; a pool has no ranks."""
    if plan.fault in ENDS or row["type"] == "completed" or row.get("where") == "all":
        return None, None
    pool, owners = plan.kind != "ranks", _owners(plan, log)
    rank = 0 if pool else plan.struck[0]
    node, told = plan.node_of(rank), LAUNCHERS[plan.launcher].get("told", "^$x")
    ended = [line for line in log if re.search(told.replace("{rank}", r"\d+").replace("{node}", r"[\w-]+"), line)]
    words = told.replace("{rank}", str(rank)).replace("{node}", node)
    known = any(owners[n - 1][0] == rank for n in root)
    said = [
        line for line in (ended if known else ended[:1]) if re.search(words, line)
    ]  # the first to end ends the others
    hosts = [log[n] for n in range(len(log) - 2) if re.search(rf"\brank +: {rank} \(", log[n + 1]) and "host" in log[n]]
    about = [*(log[n - 1] for n in root), *said, *hosts]
    heads = [*(owners[n - 1] for n in root), *(_whose(plan, line) for line in [*said, *hosts])]
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
        except (NoRootLine, OSError, subprocess.SubprocessError) as error:
            return f"not labelled: {error}"
    return "made"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.real_runs.jobs")
    parser.add_argument("dev", type=Path, help="folder for the logs of the families to develop on")
    parser.add_argument("held_out", type=Path, help="folder for the logs of the families that are only measured")
    parser.add_argument("--generation", type=int, default=8)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="cases with one of the words in their id"
    )
    asked = parser.parse_args()
    folders = (asked.dev, asked.held_out)
    drawn = [plan for plan in plans() if plan.generation == asked.generation]
    waiting = [plan for plan in drawn if not (folders[plan.held_out] / f"{plan.id}.log").exists()]
    waiting = [plan for plan in waiting if any(word in plan.id for word in asked.only)]
    on_slurm = [plan for plan in waiting if "slurm" in LAUNCHERS[plan.launcher]]
    others = sorted((plan for plan in waiting if plan not in on_slurm), key=lambda plan: plan.seed)

    def make(plan: Plan) -> None:
        print(plan.id, _make(plan, folders[plan.held_out]), flush=True)  # noqa: T201

    with ExitStack() as stack:
        if on_slurm:
            settings = (
                "PreemptType=preempt/partition_prio",
                "PreemptMode=CANCEL",
                "PartitionName=urgent Nodes=ALL PriorityTier=9",
            )
            started = stack.enter_context(cluster.running("lab", 4, cpus=8, settings=settings))
            SLURM.update(SLURM_CONF=started.environment["SLURM_CONF"])
        pool = stack.enter_context(ThreadPoolExecutor(2))
        pool.submit(lambda: list(map(make, on_slurm)))  # one at a time: one would preempt the other
        list(pool.map(make, others))


if __name__ == "__main__":
    main()

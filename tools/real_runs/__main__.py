"""Makes labelled logs out of runs that were made to fail: ``python -m tools.real_runs DEV HELD_OUT``.

With ``--count N``, N cases for each half are drawn from the product of the families: trainer, launcher, logger, fault
and end. Without it, the frameworks of ``frameworks.py`` go through all their scenarios in turn.

Each framework gets an environment of its own under a cache folder (REAL_RUNS_FOLDER), installed on first use from
``requirements/``. Runs are small (some seconds), limited in time and stay on this machine's loopback.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from types import FrameType
from typing import cast

from tools.real_runs import draw, environments, families, family_cases, runner
from tools.real_runs.carriers import LAUNCHED, ONE_PROCESS, SEVERAL
from tools.real_runs.cases import Case, NoRootLine, make_case
from tools.real_runs.draw import Combination
from tools.real_runs.frameworks import FRAMEWORKS, NODES, Framework
from tools.real_runs.scenarios import Scenario, Truth

_IN_TURN = {"python": ONE_PROCESS, "processes": SEVERAL}
_BAR = 30
_POLL_SECONDS, _END_SECONDS = 0.3, 20.0


def main() -> int:
    arguments = _arguments()
    if arguments.count:
        return _families(arguments)
    signal.signal(signal.SIGTERM, _leave)  # what was started and mounted goes, too
    missed = 0
    for framework in FRAMEWORKS:
        if arguments.framework and framework.name not in arguments.framework:
            continue
        environments.install(framework.environment)
        folder = arguments.held_out if framework.held_out else arguments.dev
        for number, (scenario, truth) in enumerate(framework.scenarios()):
            if not arguments.scenario or scenario.name in arguments.scenario:
                missed += not _write(framework, scenario, truth, number, folder)
    return 1 if missed else 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _families(arguments: argparse.Namespace) -> int:
    """Draws and makes the cases of both halves, several at a time. Those that did not fail as they should are named."""
    drawn = [
        combination
        for held_out in (False, True)
        for combination in draw.combinations(
            arguments.seed, arguments.count, held_out, arguments.families or (), arguments.generation
        )
        if not arguments.scenario or combination.scenario.name in arguments.scenario
    ]
    if arguments.list:
        for combination in drawn:
            print(combination.held_out, combination.slug, sep="\t")  # noqa: T201
        return 0
    signal.signal(signal.SIGTERM, runner.note_signal)
    missing = _install(drawn)
    cases = [combination for combination in drawn if combination.trainer.environment not in missing]
    bar, missed = _Progress(len(cases), arguments.json), 0
    try:
        with closing(_made(cases, arguments.jobs)) as made:
            for combination, case, error in made:
                missed += case is None
                if case is not None:
                    case.write(arguments.held_out if combination.held_out else arguments.dev)
                bar.show(combination, case, error)
    except KeyboardInterrupt:
        bar.end(missed)
        return 130
    bar.end(missed)
    return 1 if missed else 0


def _install(cases: Sequence[Combination]) -> set[str]:
    """Installs what the cases need; returns the environments that cannot be had."""
    missing = set()
    for environment in sorted({case.trainer.environment for case in cases} - {""}):
        try:
            environments.install(environment)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"no environment {environment}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            missing.add(environment)
    return missing


def _made(cases: Sequence[Combination], jobs: int) -> Generator[tuple[Combination, Case | None, str], None, None]:
    """Each combination with its case, or with the reason why there is none, in the order in which they end.

    A case is made by a process of its own: a fork, as no scenario can be pickled.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(cases)), dict[Connection, _Maker]()
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                maker = _start(context, waiting.pop())
                running[maker.answer] = maker
            runner.leave_after_signal()
            for answer in wait(list(running), _POLL_SECONDS):
                maker = running.pop(cast(Connection, answer))
                case, error = _received(maker)
                yield maker.combination, case, error
    finally:
        _end(list(running.values()))


@dataclass(frozen=True, slots=True)
class _Maker:
    """A process that makes one case, and where its answer comes from."""

    combination: Combination
    process: ForkProcess
    answer: Connection


def _start(context: ForkContext, combination: Combination) -> _Maker:
    answer, send = context.Pipe(duplex=False)
    process = context.Process(target=_make, args=(combination, send))
    process.start()
    send.close()
    return _Maker(combination, process, answer)


def _make(combination: Combination, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    signal.signal(signal.SIGTERM, runner.note_signal)
    try:
        answer.send((family_cases.make(combination), ""))
    except (NoRootLine, RuntimeError, OSError, subprocess.SubprocessError) as error:
        answer.send((None, str(error)))


def _received(maker: _Maker) -> tuple[Case | None, str]:
    try:
        case, error = maker.answer.recv()
    except EOFError:
        case, error = None, f"{maker.combination.slug}: the process that made it died"
    maker.answer.close()
    maker.process.join()
    return case, error


def _end(makers: Sequence[_Maker]) -> None:
    """Ends them by SIGTERM: each ends what it has started and unmounts what it has mounted."""
    for maker in makers:
        maker.process.terminate()
    for maker in makers:
        maker.process.join(_END_SECONDS)
        maker.process.kill()
        maker.process.join()


class _Progress:
    """A bar on a terminal, a line a case elsewhere, or one JSON object a case."""

    def __init__(self, total: int, as_json: bool) -> None:
        self._total, self._json, self._done, self._began = total, as_json, 0, time.monotonic()
        self._bar = sys.stderr.isatty() and not as_json

    def show(self, combination: Combination, case: Case | None, error: str) -> None:
        self._done += 1
        if self._json:
            state = {"id": combination.slug, "held_out": combination.held_out, "done": self._done, "total": self._total}
            outcome = {"error": error} if case is None else {"label": case.label, "lines": len(case.log)}
            print(json.dumps(state | outcome, ensure_ascii=False), flush=True)  # noqa: T201
            return
        if self._bar:
            filled = _BAR * self._done // self._total
            text = f"\r\x1b[K[{'#' * filled:<{_BAR}}] {self._done}/{self._total} {combination.slug}"
            print(text, end="", file=sys.stderr, flush=True)  # noqa: T201
        if case is None:
            print(f"\nnot labelled: {error}", file=sys.stderr, flush=True)  # noqa: T201
        elif not self._bar:
            print(f"{self._done}/{self._total} {combination.slug}: {case.label['type']}", flush=True)  # noqa: T201

    def end(self, missed: int) -> None:
        seconds = time.monotonic() - self._began
        made = self._done - missed
        text = f"{made} of {self._total} cases in {seconds:.0f} s, {missed} did not fail as they should have"
        print(("\n" if self._bar else "") + text, file=sys.stderr, flush=True)  # noqa: T201


def _write(framework: Framework, scenario: Scenario, truth: Truth, number: int, folder: Path) -> bool:
    try:
        case = one_case(framework, scenario, truth, number)
    except (NoRootLine, RuntimeError) as error:
        print(f"not labelled: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return False
    case.write(folder)
    label = case.label
    print(f"{label['id']}: {label['type']} at {label['root_lines'][:3]} of {len(case.log)}", flush=True)  # noqa: T201
    return True


def one_case(framework: Framework, scenario: Scenario, truth: Truth, number: int) -> Case:
    """Runs the scenario and labels it. ``number`` picks carrier, log style and language in turn."""
    with tempfile.TemporaryDirectory(prefix="real-run-") as name:
        folder = Path(name) / "run"
        folder.mkdir()
        Path(name).chmod(0o755)
        output = runner.run(framework, scenario, number, folder)
        lines = runner.shown(output.lines, folder, f"{framework.slug}-{number:02d}", NODES[0])
    if output.expired:
        raise NoRootLine(f"{framework.name} {scenario.name}: still running after {runner.LIMIT_SECONDS} s")
    if truth.healthy and any(output.returncodes):
        raise NoRootLine(f"{framework.name} {scenario.name}: a healthy run ended with {output.returncodes}")
    in_turn = _IN_TURN.get(framework.launcher, LAUNCHED)
    try:
        return make_case(framework, scenario, truth, lines, in_turn[number % len(in_turn)])
    except NoRootLine as error:
        tail = "\n    ".join(line.text[:200] for line in lines[-12:])
        raise NoRootLine(f"{error}\n    {tail}") from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.real_runs", description=__doc__)
    parser.add_argument("dev", type=Path, help="folder for the logs of the frameworks to develop on")
    parser.add_argument("held_out", type=Path, help="folder for the logs of the frameworks that are only measured")
    names = ", ".join(framework.name for framework in FRAMEWORKS)
    parser.add_argument("--framework", action="append", help=f"only this one (repeatable): {names}")
    parser.add_argument("--scenario", action="append", help="only this one (repeatable)")
    parser.add_argument("--count", type=int, default=0, help="draw this many cases of the families for each half")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1): another seed gives other cases")
    parser.add_argument(
        "--generation", type=int, choices=families.GENERATIONS, default=1, help="of the families (default 1)"
    )
    parser.add_argument("--list", action="store_true", help="name the cases that --count draws, and make none")
    trainers = ", ".join(trainer.name for trainer in families.TRAINERS)
    parser.add_argument("--families", nargs="+", metavar="NAME", help=f"only these trainers: {trainers}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")
    parser.add_argument("--json", action="store_true", help="one JSON object a case on standard output")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

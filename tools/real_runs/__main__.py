"""Makes labelled logs out of runs that were made to fail: ``python -m tools.real_runs DEV HELD_OUT``.

Each framework gets an environment of its own under a cache folder (REAL_RUNS_FOLDER), installed on first use from
``requirements/``. Runs are small (some seconds), limited in time and stay on this machine's loopback.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tools.real_runs import environments, runner
from tools.real_runs.carriers import LAUNCHED, ONE_PROCESS, SEVERAL
from tools.real_runs.cases import NODES, Case, NoRootLine, make_case
from tools.real_runs.frameworks import FRAMEWORKS, Framework
from tools.real_runs.scenarios import Scenario, Truth

_IN_TURN = {"python": ONE_PROCESS, "processes": SEVERAL}


def main() -> int:
    arguments = _arguments()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # what was started and mounted goes, too
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

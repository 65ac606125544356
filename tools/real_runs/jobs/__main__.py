"""Makes the labelled logs of the jobs of several nodes: ``python -m tools.real_runs.jobs DEV HELD_OUT``."""

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tools.real_runs.cases import NoRootLine
from tools.real_runs.jobs.draw import FAMILIES, Plan, plans
from tools.real_runs.jobs.log import make_case
from tools.real_runs.jobs.run import run


def main() -> int:
    arguments = _arguments()
    drawn = [plan for plan in plans(arguments.seed, arguments.count) if _asked(plan, arguments)]
    if arguments.list:
        print("\n".join(f"{plan.held_out}\t{plan.id}\t{plan.logger}" for plan in drawn))  # noqa: T201
        return 0
    missed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        made = {pool.submit(_make, plan, _folder(plan, arguments)): plan for plan in drawn}
        for number, future in enumerate(as_completed(made), 1):
            error = future.result()
            missed += bool(error)
            print(f"{number}/{len(drawn)} {made[future].id} {error}", flush=True)  # noqa: T201
    return 1 if missed else 0


def _asked(plan: Plan, arguments: argparse.Namespace) -> bool:
    words = arguments.only or [""]
    if arguments.missing and (_folder(plan, arguments) / f"{plan.id}.log").exists():
        return False
    return plan.family in arguments.families and any(word in plan.id for word in words)


def _folder(plan: Plan, arguments: argparse.Namespace) -> Path:
    return Path(arguments.held_out if plan.held_out else arguments.dev)


def _make(plan: Plan, folder: Path) -> str:
    """Write the case; returns why there is none."""
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as name:
        try:
            make_case(plan, run(plan, Path(name)), Path(name)).write(folder)
        except (NoRootLine, OSError, RuntimeError) as error:
            return f"not labelled: {error}"
    return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.real_runs.jobs", description=__doc__)
    parser.add_argument("dev", type=Path, help="folder for the logs of the families to develop on")
    parser.add_argument("held_out", type=Path, help="folder for the logs of the families that are only measured")
    parser.add_argument("--count", type=int, default=9, help="cases of each family (default 9)")
    parser.add_argument("--seed", type=int, default=6, help="of the draw (default 6): another one gives other cases")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="NAME", help="only these")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only cases with one of the words in their id")
    parser.add_argument("--missing", action="store_true", help="only cases that are not there yet")
    parser.add_argument("--list", action="store_true", help="name the cases and make none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

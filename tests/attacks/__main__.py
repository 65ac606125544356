"""Runs attacks, all or some of them: ``python -m tests.attacks --setting tokens --count 300``.

Exit code 1 when one of them succeeds, or a control does not act.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import structlog

from tests.attacks import run
from tests.attacks.lies import lies
from tests.attacks.run import Attack, Control, Result
from tests.attacks.site import Setting, running
from tests.attacks.ways import ways

SHOWN, CALL_LENGTH = 5, 400


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    results, controls = dict[Setting, list[Result]](), dict[Setting, list[Control]]()
    for setting in options.setting or get_args(Setting):
        results[setting], controls[setting] = asyncio.run(_run(setting, _chosen(setting, options), options))
    if options.json:
        _say(json.dumps({setting: _as_json(results[setting], controls[setting]) for setting in results}))
    else:
        _say("\n".join(_text(setting, results[setting], controls[setting]) for setting in results))
    failed = any(result.successes for found in results.values() for result in found)
    return int(failed or not all(control.ok for found in controls.values() for control in found))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--setting", action="append", choices=get_args(Setting), help="both by default")
    parser.add_argument("--way", default="", help="name of a way, or its beginning")
    parser.add_argument("--lie", default="", help="name of a lie")
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--count", type=int, default=1_000, help="attacks of each setting, at most")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--list", action="store_true", help="print the names of ways and lies, and end")
    options = parser.parse_args()
    if options.list:
        _say("\n".join([*(f"way {name}" for name in ways()), *(f"lie {lie.surface} {lie.name}" for lie in lies())]))
        sys.exit()
    return options


def _chosen(setting: Setting, options: argparse.Namespace) -> Sequence[Attack]:
    if not (options.way or options.lie):
        return run.attacks(setting, options.count, options.seed)
    every = run.attacks(setting, sys.maxsize, options.seed)
    named = [attack for attack in every if attack.way.name.startswith(options.way)]
    return [attack for attack in named if not options.lie or attack.lie.name == options.lie][: options.count]


async def _run(
    setting: Setting, chosen: Sequence[Attack], options: argparse.Namespace
) -> tuple[list[Result], list[Control]]:
    def show(done: int) -> None:
        if sys.stderr.isatty() or not options.json:
            sys.stderr.write(f"\r{setting}: {done} of {len(chosen)} attacks")
            sys.stderr.flush()

    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), setting) as site:
            controls = await run.controls(site)
            results = await run.carry_out(site, chosen, show)
    sys.stderr.write("\n")
    return results, controls


def _as_json(results: Sequence[Result], controls: Sequence[Control]) -> dict[str, object]:
    return {
        "attacks": len(results),
        "controls": [{"name": c.name, "ok": c.ok, "seconds": round(c.seconds, 2), "why": c.why} for c in controls],
        "successes": [
            {
                "way": result.attack.way.name,
                "lie": result.attack.lie.name,
                "seed": result.attack.seed,
                "breaches": [[success.breach.name, success.why] for success in result.successes],
                "done": result.done,
            }
            for result in results
            if result.successes
        ],
    }


def _text(setting: Setting, results: Sequence[Result], controls: Sequence[Control]) -> str:
    """For people: what succeeds, by kind, and the first ones in full."""
    won = [result for result in results if result.successes]
    lines = [f"{setting}: {len(won)} of {len(results)} attacks succeed"]
    for control in controls:
        acts = "acts" if control.ok else "DOES NOT ACT"
        lines.append(f"  control {control.name}: {acts}, {control.seconds:.1f} s, {control.why}")
    tried = Counter(result.attack.lie.surface for result in results)
    for surface, count in Counter(result.attack.lie.surface for result in won).most_common():
        lines.append(f"  {surface}: {count} of {tried[surface]}")
    breaches = Counter(breach for result in won for breach in {success.breach for success in result.successes})
    lines += [f"  {breach}: {count}" for breach, count in breaches.most_common()]
    for result in won[:SHOWN]:
        lines += ["", result.attack.command(setting)]
        lines += [f"  {success.breach}: {success.why}" for success in result.successes]
        lines += [f"    {call[:CALL_LENGTH]}" for call in result.done]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

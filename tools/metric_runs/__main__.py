"""Replay logs through the live watch of metrics: ``python -m tools.metric_runs [SEEDS]``.

Runs that diverge, that become slow, that never learn, and healthy ones, all from recipes.
"""

import random
import sys
from collections.abc import Iterator, Sequence

import typer

from diagnoser.compress import AttemptLog, Compressor
from diagnoser.compress.limits import CompressorLimits
from diagnoser.localize.metric_watch import MetricHistory
from diagnoser.model import LineBlock, MetricEvent, MetricEventKind, Progress, Stream
from tools.metric_runs.forms import FORMS
from tools.metric_runs.recipes import DIVERGENT_FORMS, HEALTHY, divergence, plateau, slowdown

_ALL = CompressorLimits(first=10**6, last=10**6, spread=10**6, latest=10**6, series=4096)
STEPS, DIVERGENCES = 4000, 10
SHARES, VOCABULARIES = (0.8, 0.7, 0.5), (8192, 50_257, 256_000)


def points_of(lines: Sequence[str], arrivals: Sequence[float] = ()) -> list[Progress]:
    """Every point of a log, unsampled. arrivals: seconds since the epoch, a line each, where they matter."""
    compressor = Compressor(limits=_ALL)
    data = "".join(f"{line}\n" for line in lines).encode()
    compressor.feed(LineBlock(Stream(), data, arrivals=tuple(enumerate(arrivals, 1))))
    return sorted(AttemptLog(compressor.take()).digest.progress, key=lambda point: point.line)


def watched(points: Sequence[Progress]) -> Iterator[tuple[int, MetricEvent]]:
    """The first event of each kind, with the line after which it was seen."""
    history, seen = MetricHistory(), set[MetricEventKind]()
    for point in points:
        history.add([point])
        for event in history.events():
            if event.kind not in seen:
                seen.add(event.kind)
                yield point.line, event
        if MetricEventKind.DIVERGED in seen:
            return


def healthy(seeds: int, steps: int) -> tuple[float, int]:
    """Hours of log, and false alarms."""
    seconds, alarms = 0.0, 0
    for name, recipe in HEALTHY.items():
        read = hours = 0.0
        for seed in range(seeds):
            lines = list(recipe(random.Random(f"{name}-{seed}"), steps))
            points = points_of([line for _, line in lines])
            hours += lines[-1][0] / 3600
            read += len(points) / len(lines)
            for line, event in watched(points):
                alarms += 1
                typer.echo(f"FALSE {name} seed {seed} line {line}: {event.kind} {event.why} {event.picture}")
        typer.echo(f"{name:24} {hours:6.1f} h, {read / seeds:.0%} of the lines are points")
        seconds += 3600 * hours
    return seconds / 3600, alarms


def divergences(seeds: int) -> None:
    """How many are seen, and after how many steps."""
    for form in DIVERGENT_FORMS:
        delays = []
        for seed in range(seeds):
            run = divergence(seed, form)
            points = points_of([line for _, _, line in run.lines])
            seen = {event.kind: line for line, event in watched(points)}
            line = seen.get(MetricEventKind.DIVERGED)
            delays.append(f"{run.kind}:{run.lines[line - 1][1] - run.at + 1 if line else 'missed'}")
        typer.echo(f"{form:10} {' '.join(delays)}")


def lasting_changes(seeds: int) -> None:
    """How many falls of the throughput and plateaus are seen, by form of log; not all forms print a speed."""
    for form in FORMS:
        slow = [slowdown(seed, form, share) for share in SHARES for seed in range(seeds)]
        flat = [plateau(seed, form, size) for size in VOCABULARIES for seed in range(seeds)]
        slower, stuck = _seen(slow, MetricEventKind.SLOWER), _seen(flat, MetricEventKind.STUCK)
        typer.echo(f"{form:10} slower {slower} of {len(slow)}, stuck {stuck} of {len(flat)}")


def _seen(runs: Sequence[Sequence[str]], kind: MetricEventKind) -> int:
    """How many runs show an event of a kind, and nothing else."""
    return sum([event.kind for _, event in watched(points_of(lines))] == [kind] for lines in runs)


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    divergences(DIVERGENCES)
    lasting_changes(seeds)
    hours, alarms = healthy(seeds, STEPS)
    typer.echo(f"{hours:.0f} hours of healthy log, {alarms} false alarms")

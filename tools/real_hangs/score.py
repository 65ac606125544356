"""Scores the hang analysis on runs with labels, and what a service made of them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import orjson

from diagnoser.hang import report
from diagnoser.hang.report import HangReport
from tools.real_hangs.runs import LABEL, HangLabel

VERDICT = "verdict.json"


@dataclass(frozen=True, slots=True)
class ServiceVerdict:
    """What a service that watched the run made of it. seconds: from the run's last line to the verdict that names the
    culprit, or to where nobody waited for it longer; again: to where the job ran again without a person, None where it
    did not. plans: action and state of each. drained: nodes."""

    outcome: str
    type: str
    rank: int | None
    node: str | None
    seconds: float
    plans: list[str]
    drained: list[str]
    again: float | None = None

    def write(self, folder: Path) -> None:
        (folder / VERDICT).write_bytes(orjson.dumps(asdict(self)))


@dataclass(frozen=True, slots=True)
class HangScore:
    """One run. first: whether the culprit is the first suspect. wrong: suspects that are not the culprit. verdict: of
    a service, where one watched it."""

    name: str
    label: HangLabel
    result: HangReport
    verdict: ServiceVerdict | None = None

    @property
    def first(self) -> bool:
        return [suspect.rank for suspect in self.result.suspects[:1]] == [self.label.culprit]

    @property
    def wrong(self) -> tuple[int, ...]:
        return tuple(suspect.rank for suspect in self.result.suspects if suspect.rank != self.label.culprit)

    @property
    def node_is_right(self) -> bool:
        """Of a run whose ranks were placed by a scheduler."""
        return self.first and self.result.suspects[0].node == self.label.nodes.get(self.label.culprit, "")

    @property
    def is_named(self) -> bool:
        """Whether the service's verdict names the culprit, and its node."""
        found, culprit = self.verdict, self.label.culprit
        return found is not None and (found.rank, found.node) == (culprit, self.label.nodes[culprit])


def score(folder: Path) -> HangScore:
    """The evidence in the folder of one run."""
    label = HangLabel.read(folder)
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir()) if _is_evidence(path)]
    result = report.analyze(report.read(files), label.nodes, label.ranks)
    path = folder / VERDICT
    verdict = ServiceVerdict(**orjson.loads(path.read_bytes())) if path.exists() else None
    return HangScore(folder.name, label, result, verdict)


def _is_evidence(path: Path) -> bool:
    return path.name.startswith("_dump_") or (path.name.startswith("stack_") and path.suffix == ".txt")


def scores(folder: Path) -> list[HangScore]:
    return [score(path.parent) for path in sorted(folder.glob(f"*/{LABEL}"))]


def table(found: Iterable[HangScore]) -> str:
    """Kind by kind, in Markdown; then the runs in which something is wrong."""
    every = list(found)
    by_kind: dict[str, list[HangScore]] = defaultdict(list)
    for run in every:
        by_kind[run.label.kind].append(run)
    watched = any(run.verdict for run in every)
    header = ["kind", "runs", "evidence shows it", "culprit first", "wrong suspects"]
    seconds = "seconds after the last line: median, p95"
    header += ["named by the service", seconds, "running again: runs, the same", "nodes taken out"] if watched else []
    rows = [header, ["---"] * len(header)]
    for kind, own in (*by_kind.items(), ("all", every)):
        shown = [run for run in own if run.label.shown]
        counts = (len(own), len(shown), sum(run.first for run in shown), sum(len(run.wrong) for run in own))
        rows.append([kind, *map(str, counts), *(_of_service(own) if watched else ())])
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *map(_sentence, filter(_is_odd, every))])


def _of_service(own: Iterable[HangScore]) -> tuple[str, ...]:
    """Verdicts of runs that ended in no error of their own."""
    watched, drained = 0, 0
    silent, again = list[float](), list[float]()
    for run in own:
        if run.verdict is None:
            continue
        watched += 1
        drained += len(run.verdict.drained)
        if run.is_named and run.verdict.outcome == "hung":
            silent.append(run.verdict.seconds)
        if run.verdict.again is not None:
            again.append(run.verdict.again)
    named = f"{sum(run.is_named for run in own)} of {watched}"
    return named, _spread(silent), f"{len(again)}; {_spread(again)}", str(drained)


def _spread(seconds: list[float]) -> str:
    """Median and 95th percentile."""
    if len(seconds) < 2:
        return ""
    return f"{median(seconds):.1f}, {quantiles(seconds, n=20, method='inclusive')[-1]:.1f}"


def _is_odd(run: HangScore) -> bool:
    return bool(run.wrong) or (run.label.shown and not run.first) or bool(run.verdict and not run.is_named)


def _sentence(run: HangScore) -> str:
    suspects = (f"{suspect.rank} {suspect.kind} {suspect.score}: {suspect.why}" for suspect in run.result.suspects[:3])
    said = f"; the service: {run.verdict}" if run.verdict else ""
    return f"{run.name}: culprit {run.label.culprit}, suspects {'; '.join(suspects) or 'none'}{said}"

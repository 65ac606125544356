"""One run, carried by many: rewrites a log line by line into the form that other launchers and collectors give it.

What a run says may not depend on who carried it, so a rewritten log must get the verdict of the plain one, with the
same line numbers. ``python -m tests.carriers FOLDER [CASES]`` scores labelled logs plain and in every carrier.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from diagnoser.accuracy import scoring
from diagnoser.compress import AttemptLog, to_bytes
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Facts, LineBlock, Stream

_START = datetime(2026, 11, 20, 19, 30, tzinfo=UTC)
_TASK = re.compile(r" {0,3}(\d{1,5}): ")
_LOCAL = re.compile(r"\[default(\d+)\]: ?")
_HEAD_NODE = "login-1"


@dataclass(frozen=True)
class SpokenLine:
    """A line of a run. whole: as the run's own launcher carried it. text: without its label. rank, node: of the process
    that printed it, None where the line is the launcher's. pod: index of the pod that the process runs in."""

    whole: str
    text: str
    rank: int | None
    node: str | None
    at: datetime
    stream: str = "stderr"
    pod: int = 0


@dataclass(frozen=True)
class Carrier:
    """write: a line as it is carried. names_rank, names_node: what it puts in front tells them where the line's own
    launcher does not."""

    write: Callable[[SpokenLine], str]
    names_rank: bool = False
    names_node: bool = False


def spoken_lines(log: str, rank_nodes: Mapping[int, str], launcher: str) -> list[SpokenLine]:
    """launcher: as in the labels of the injected runs (``srun+label``, ``srun_torchrun+tee+label``, ...)."""
    nodes = list(dict.fromkeys(node for _, node in sorted(rank_nodes.items())))
    per_node = max(1, len(rank_nodes) // max(1, len(nodes)))
    return [_spoken(line, number, rank_nodes, nodes, per_node, launcher) for number, line in enumerate(log.split("\n"))]


def _spoken(
    line: str, number: int, rank_nodes: Mapping[int, str], nodes: Sequence[str], per_node: int, launcher: str
) -> SpokenLine:
    text, agent = line, 0
    rank = node = None
    if "label" in launcher and (task := _TASK.match(line)):
        text, agent = line[task.end() :], int(task[1])
        if "torchrun" in launcher:
            node = nodes[agent] if agent < len(nodes) else None
        else:
            rank = agent
    if "tee" in launcher and (local := _LOCAL.match(text)):
        text, rank = text[local.end() :], agent * per_node + int(local[1])
    if rank is not None:
        node = rank_nodes.get(rank, node)
    elif len(nodes) == 1:
        node = nodes[0]
    return spoken(line, text, rank, node, number)


def spoken(whole: str, text: str, rank: int | None, node: str | None, number: int) -> SpokenLine:
    """A line of stderr. Two ranks share a pod, and pods are placed without regard to the numbers in names of nodes."""
    at = _START + timedelta(milliseconds=137 * number)
    return SpokenLine(whole, text, rank, node, at, pod=(rank or 0) // 2)


def _iso(line: SpokenLine) -> str:
    return line.at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "417Z"


def _clock(line: SpokenLine) -> str:
    return f"{line.at:%Y-%m-%d %H:%M:%S},{line.at.microsecond // 1000:03d}"


def _docker(line: SpokenLine) -> str:
    return json.dumps({"log": line.whole + "\n", "stream": line.stream, "time": _iso(line)}, ensure_ascii=False)


def _cri(line: SpokenLine) -> str:
    return f"{_iso(line)} {line.stream} F {line.whole}"


def _syslog(line: SpokenLine) -> str:
    return f"{line.at:%b %e %H:%M:%S} {line.node or _HEAD_NODE} trainer[{4000 + (line.rank or 0)}]: {line.whole}"


def _syslog_iso(line: SpokenLine) -> str:
    stamp = f"{line.at:%Y-%m-%dT%H:%M:%S.%f}+00:00"
    return f"{stamp} {line.node or _HEAD_NODE} trainer[{4000 + (line.rank or 0)}]: {line.whole}"


def _logger(line: SpokenLine) -> str:
    return f"{_clock(line)} - launcher - INFO - {line.whole}"


def _short_logger(line: SpokenLine) -> str:
    return f"{_clock(line)} INFO launcher: {line.whole}"


def _bracketed_logger(line: SpokenLine) -> str:
    return f"[{_clock(line)}] [INFO] [runner.py:571:main] {line.whole}"


def _stamp(line: SpokenLine) -> str:
    return f"{line.at:%Y-%m-%dT%H:%M:%S.%f}Z {line.whole}"


def _tabs(line: SpokenLine) -> str:
    return f"{line.at:%Y-%m-%dT%H:%M:%S.%f}Z\t{line.stream}\t{line.whole}"


def _pod(line: SpokenLine) -> str:
    return f"[pod/run-worker-{line.pod}/trainer] {line.whole}"


def _bare_pod(line: SpokenLine) -> str:
    return f"run-worker-{line.pod} {line.whole}"


def _ranked(line: SpokenLine) -> str:
    """The text as torch's own logging marks it."""
    return line.text if line.rank is None or "[rank" in line.text[:12] else f"[rank{line.rank}]: {line.text}"


def _pdsh(line: SpokenLine) -> str:
    return f"{line.node}: {line.whole}" if line.node else line.whole


def _pdsh_ranked(line: SpokenLine) -> str:
    return f"{line.node}: {_ranked(line)}" if line.node else line.whole


def _bare_syslog(line: SpokenLine) -> str:
    """Only host and process tell who speaks."""
    return f"{line.at:%b %e %H:%M:%S} {line.node or _HEAD_NODE} trainer[{4000 + (line.rank or 0)}]: {line.text}"


def _bare_ray(line: SpokenLine) -> str:
    return line.whole if line.rank is None else f"(Worker pid={7000 + line.rank}, ip={line.node}) {line.text}"


def _mpirun(line: SpokenLine) -> str:
    return line.whole if line.rank is None else f"[1,{line.rank}]<stderr>:{line.text}"


def _ray(line: SpokenLine) -> str:
    if line.rank is None:
        return line.whole
    address = f"10.1.0.{int(re.sub(r'[^0-9]', '', line.node or '') or 0) + 20}"
    return f"(RayTrainWorker pid={7000 + line.rank}, ip={address}) {_ranked(line)}"


def _ray_named(line: SpokenLine) -> str:
    return line.whole if line.rank is None else f"(Worker pid={7000 + line.rank}, ip={line.node}) {_ranked(line)}"


def _srun(line: SpokenLine) -> str:
    return line.whole if line.rank is None else f"{line.rank:2d}: {line.text}"


PLAIN = Carrier(lambda line: line.whole)
CARRIERS: Mapping[str, Carrier] = {
    "docker": Carrier(_docker),
    "cri": Carrier(_cri),
    "syslog": Carrier(_syslog, names_node=True),
    "syslog, ISO": Carrier(_syslog_iso, names_node=True),
    "logger": Carrier(_logger),
    "logger, short": Carrier(_short_logger),
    "logger, brackets": Carrier(_bracketed_logger),
    "iso": Carrier(_stamp),
    "tabs": Carrier(_tabs),
    "pod": Carrier(_pod, names_rank=True),
    "pod, bare": Carrier(_bare_pod, names_rank=True),
    "pdsh": Carrier(_pdsh, names_node=True),
    "pdsh, ranks": Carrier(_pdsh_ranked, names_rank=True, names_node=True),
    "mpirun": Carrier(_mpirun, names_rank=True),
    "Ray": Carrier(_ray),
    "Ray, named": Carrier(_ray_named, names_node=True),
    "srun": Carrier(_srun, names_rank=True),
    "syslog, no label": Carrier(_bare_syslog, names_node=True),
    "Ray, no label": Carrier(_bare_ray, names_node=True),
}
"""Name -> who carries. A pod names its rank where each pod runs one."""


def rewritten(lines: Iterable[SpokenLine], carrier: Carrier) -> bytes:
    return "\n".join(carrier.write(line) for line in lines).encode()


@dataclass(frozen=True)
class LabelledRun:
    label: scoring.Label
    lines: tuple[SpokenLine, ...]


def runs(folder: Path, most: int = 10_000) -> list[LabelledRun]:
    """The labelled logs of a folder whose labels say where the ranks ran."""
    found = []
    for text in (folder / "labels.jsonl").read_text("utf-8").splitlines()[:most]:
        data: dict[str, Any] = json.loads(text)
        log = (folder / f"{data['id']}.log").read_bytes().decode("utf-8", "replace").removesuffix("\n")
        rank_nodes = {int(rank): node for rank, node in (data.get("rank_nodes") or {}).items()}
        lines = spoken_lines(log, rank_nodes, data.get("launcher") or "")
        found.append(LabelledRun(scoring.label_of(data), tuple(lines)))
    return found


def verdict(analyzer: LogAnalyzer, label: scoring.Label, log: bytes) -> scoring.ScoredVerdict:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), log))
    evidence = AttemptLog.from_deltas([to_bytes(compressor.take())]).evidence
    return scoring.score_case(label, analyzer.diagnose_with_node_logs(evidence, Facts()))


SHARES = ("type", "root_line", "rank", "node")
COUNTS = ("false_cordon", "wrong_node_cordon", "false_alarm", "false_stop")


def main() -> None:
    from tests import accuracy_bars

    analyzer, chosen = accuracy_bars.load(), runs(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
    show = len(sys.argv) > 3
    plain: dict[str, scoring.ScoredVerdict] = {}
    for name, carrier in {"plain": PLAIN, **CARRIERS}.items():
        if show and name != "plain" and sys.argv[3] not in name:
            continue
        verdicts = [verdict(analyzer, run.label, rewritten(run.lines, carrier)) for run in chosen]
        report = scoring.report(verdicts, {})
        shares = "  ".join(f"{key} {report.shares[key] or 0:.3f}" for key in SHARES)
        sys.stdout.write(f"{name:18s}{shares}  {[report.counts[key] for key in COUNTS]}\n")
        sys.stdout.flush()
        if name == "plain":
            plain = {case.label.id: case for case in verdicts}
        for case in verdicts if show else ():
            before = plain[case.label.id]
            lost = [key for key in ("type", "root", "rank", "node") if getattr(before, key) and not getattr(case, key)]
            if lost or case.wrong_node_cordon or case.false_cordon:
                sys.stdout.write(
                    f"    {case.label.id} {case.label.type} -> {case.said_type} {case.decided_by} {lost}\n"
                )


if __name__ == "__main__":
    main()

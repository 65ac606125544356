"""`python -m tests.rank_split`: the labelled logs with ranks, shipped as one file a rank instead of one log for all.

A log whose lines name their ranks is split by rank, each rank's lines go without their prefix into a file of its own,
and the files are shipped in bodies of 10 to 200 lines, in an order that is drawn by the seed and without times of their
records. ``--undated`` also takes the times out of the lines. It counts in how many cases type, root line and rank are
those of the log read as one file.
"""

import argparse
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from io import BytesIO

from diagnoser.compress import AttemptLog
from diagnoser.compress.lines import body_of
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Facts, Stream
from tests import accuracy_bars, rank_streams
from tests.corpus import CORPUS

_STAMP = re.compile(
    rb"\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\]?"
    rb"|(?<=[IWEF])\d{4} \d\d:\d\d:\d\d(?:\.\d{1,9})?"
)
"""The usual stamps: of logging, glog, c10."""
_HEAD = 200
"""Bytes of a line in which its prefix stands."""
MEASURES = ("type", "root", "rank")


@dataclass(frozen=True)
class SplitLog:
    """lines: of each rank, and of the launcher, which is -1."""

    lines: dict[int, tuple[bytes, ...]]

    @property
    def ranks(self) -> list[int]:
        return sorted(rank for rank in self.lines if rank >= 0)


def split(log: bytes, *, undated: bool = False) -> SplitLog:
    """The lines of a log by the rank that their prefix names; without one, those of the launcher."""
    lines: dict[int, list[bytes]] = {}
    for line in log.removesuffix(b"\n").split(b"\n"):
        head = line[:_HEAD]
        prefix, body = body_of(head)
        text = line[len(head) - len(body) :] if prefix.rank >= 0 else line
        lines.setdefault(prefix.rank, []).append(_STAMP.sub(b"", text) if undated else text)
    return SplitLog({rank: tuple(own) for rank, own in lines.items()})


def diagnose_split(analyzer: LogAnalyzer, log: SplitLog, seed: int) -> Diagnosis:
    """The verdict on the files of the ranks."""
    compressor = analyzer.compressor()
    files = {_stream(rank): lines for rank, lines in log.lines.items()}
    for block in rank_streams.shipped(files, random.Random(seed)):
        compressor.feed(block)
    return pipeline.diagnose(AttemptLog(compressor.take()).evidence, Facts(), analyzer.knowledge)


def _stream(rank: int) -> Stream:
    return rank_streams.stream_of(rank) if rank >= 0 else Stream("/logs/launcher.log")


def same(one: Diagnosis, other: Diagnosis) -> dict[str, bool]:
    """In what two verdicts agree; root lines by their message, for a prefix is gone and a number is another."""
    roots, ranks = zip(*((_message(d), d.root_cause.rank if d.root_cause else None) for d in (one, other)), strict=True)
    return {"type": one.type is other.type, "root": roots[0] == roots[1], "rank": ranks[0] == ranks[1]}


def _message(diagnosis: Diagnosis) -> bytes:
    text = diagnosis.root_cause.text.encode() if diagnosis.root_cause else b""
    return _STAMP.sub(b"", body_of(text)[1]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="orders of arrival tried for each log")
    parser.add_argument("--undated", action="store_true", help="take the times out of the lines as well")
    parser.add_argument("--show", action="store_true", help="print the logs that differ")
    options = parser.parse_args()
    analyzer, counts = accuracy_bars.load(), Counter[str]()
    for folder in accuracy_bars.FOLDERS:
        for label in accuracy_bars.labels(folder):
            text = (CORPUS / folder / f"{label.id}.log").read_bytes()
            log = split(text, undated=options.undated)
            if len(log.ranks) < 2:
                continue
            counts["logs"] += 1
            whole = pipeline.diagnose(analyzer.read(BytesIO(text)).evidence, Facts(), analyzer.knowledge)
            for seed in range(options.seeds):
                verdict = diagnose_split(analyzer, log, seed)
                agrees = same(whole, verdict)
                counts.update(name for name in MEASURES if agrees[name])
                counts["all"] += all(agrees.values())
                counts["tries"] += 1
                if options.show and not all(agrees.values()):
                    sys.stdout.write(f"{folder}/{label.id} seed {seed}: {_shown(whole)} became {_shown(verdict)}\n")
    shares = " ".join(f"{name} {counts[name] / max(1, counts['tries']):.3f}" for name in (*MEASURES, "all"))
    sys.stdout.write(f"{counts['logs']} logs, {counts['tries']} orders: the same {shares}\n")


def _shown(diagnosis: Diagnosis) -> str:
    root = diagnosis.root_cause
    return f"{diagnosis.outcome} {diagnosis.type} rank {root.rank if root else None} {root.text[:80] if root else ''!r}"


if __name__ == "__main__":
    main()

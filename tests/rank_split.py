"""`python -m tests.rank_split`: the labelled logs with ranks, shipped as many streams instead of one log for all.

A log whose lines name their ranks is split: by rank, where each rank's lines go without their prefix into a file of its
own, or by node, where the lines of some ranks stand with their prefixes in one file. The files are shipped in bodies of
10 to 200 lines, in an order that is drawn by the seed and without times of their records; in another way one file,
which is drawn as well, arrives when all others have ended. Some bodies are stored as they came and others as
deltas, and all are merged as the worker merges them. ``undated`` takes the times out of the lines.

It counts in how many cases type, root line, rank and node are those of the log read as one file, both with and without
an exit event. Another root is as good where the label has it, or the same text; another rank or node only where it is
the label's, or where the label has none and several ranks fail alike.
"""

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product, starmap
from typing import Literal

from diagnoser import compress
from diagnoser.accuracy.scoring import Label
from diagnoser.compress import AttemptLog, pack
from diagnoser.compress.lines import body_of
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Event, EventKind, Facts, Job, LineBlock, Rejected, Stream
from diagnoser.model.taxonomy import Outcome
from diagnoser.rules.candidate_set import RejectionReason
from tests import accuracy_bars, rank_streams
from tests.corpus import CORPUS

_STAMP = re.compile(
    rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,\d]{0,10}Z?: |\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\]?"
    rb"|(?<=[IWEF])\d{4} \d\d:\d\d:\d\d(?:\.\d{1,9})?"
)
"""The usual stamps: of logging, glog, c10."""
_HEAD = 200
"""Bytes of a line in which its prefix stands."""
_STAMPED = 80
"""Bytes of a line in which its own stamp stands; another may be what it tells."""
_NODE_RANKS = 2
"""Ranks of a node in a split by node, where the lines name no nodes."""
MEASURES = ("type", "root", "rank", "node")
Files = Mapping[Stream, Sequence[bytes]]


@dataclass(frozen=True)
class Shipping:
    """How the lines of a log travel."""

    layout: Literal["rank", "node"] = "rank"
    arrival: Literal["mixed", "late"] = "mixed"
    times: Literal["dated", "undated"] = "dated"

    def __str__(self) -> str:
        return f"a file a {self.layout}, {self.arrival}, {self.times}"


SHIPPINGS = tuple(starmap(Shipping, product(("rank", "node"), ("mixed", "late"), ("dated", "undated"))))


def split(log: bytes, shipping: Shipping) -> Files:
    """The lines of a log by rank or by node; those without a rank are the launcher's, or of the first node."""
    files: dict[Stream, list[bytes]] = {}
    for _, stream, text in placed(log, shipping):
        files.setdefault(stream, []).append(text)
    return files


def numbers(log: bytes, shipping: Shipping) -> dict[str, list[int]]:
    """Of each file, the numbers that its lines have in the log."""
    files: dict[str, list[int]] = {}
    for number, stream, _ in placed(log, shipping):
        files.setdefault(stream.source, []).append(number)
    return files


def placed(log: bytes, shipping: Shipping) -> Iterator[tuple[int, Stream, bytes]]:
    """Number in the log, stream, and text of each line."""
    nodes = _nodes(log)
    for number, line in enumerate(log.removesuffix(b"\n").split(b"\n"), start=1):
        head = line[:_HEAD]
        prefix, body = body_of(head)
        text = line
        if shipping.layout == "node":
            stream = Stream(f"/logs/{_file_of_node(prefix.rank, nodes)}.log")
        elif prefix.rank >= 0:
            stream, text = replace(rank_streams.stream_of(prefix.rank), node=nodes.get(prefix.rank, "")), line
            text = line[len(head) - len(body) :]
        else:
            stream = Stream("/logs/launcher.log")
        yield number, stream, _undated(text) if shipping.times == "undated" else text


def _undated(line: bytes) -> bytes:
    """The line without the stamp at its head."""
    return _STAMP.sub(b"", line[:_STAMPED], count=1) + line[_STAMPED:]


def _nodes(log: bytes) -> dict[int, str]:
    """The nodes that the prefixes of ranks name."""
    prefixes = [body_of(line[:_HEAD])[0] for line in log.split(b"\n")]
    return {prefix.rank: prefix.node for prefix in prefixes if prefix.rank >= 0 and prefix.node}


def _file_of_node(rank: int, nodes: Mapping[int, str]) -> str:
    return nodes.get(rank, f"node{max(rank, 0) // _NODE_RANKS}")


def ranks_of(log: bytes) -> set[int]:
    return {body_of(line[:_HEAD])[0].rank for line in log.split(b"\n")} - {-1}


def bodies(files: Files, shipping: Shipping, draw: random.Random, start: float = rank_streams.START) -> list[LineBlock]:
    """What arrives, in order of arrival. start: when the first does, which is after all that is printed."""
    late = {draw.choice(sorted(files))} if shipping.arrival == "late" else set()
    early = rank_streams.shipped({s: lines for s, lines in files.items() if s not in late}, draw, start)
    after = max((block.received for block in early), default=start)
    return early + rank_streams.shipped({stream: files[stream] for stream in late}, draw, after + draw.choice((1, 300)))


def stored(analyzer: LogAnalyzer, blocks: Sequence[LineBlock], draw: random.Random) -> AttemptLog:
    """The log as the worker reads it: commits of a few bodies, of which some have been made deltas."""
    pieces, at = list[bytes](), 0
    while at < len(blocks):
        commit = blocks[at : at + draw.randint(1, 8)]
        at += len(commit)
        pieces.append(pack(commit))
        if draw.random() < 0.5:
            pieces[-1] = compress.to_bytes(compress.read_pieces(pieces[-1:], analyzer.compressor))
    return AttemptLog(compress.read_pieces(pieces, analyzer.compressor))


def facts_of(newest: float, code: int | None) -> Facts:
    """Of a job whose newest line came then. code: of its exit event; None without one."""
    events = () if code is None else (Event(EventKind.EXIT, newest + 1, code=code),)
    return Facts(Job("run"), 1, events, {}, (newest, newest), last_line=newest)


@dataclass(frozen=True)
class Truth:
    """What is right for a log. events: texts of the root without numbers. alike: ranks that print it."""

    label: Label
    events: frozenset[bytes]
    alike: frozenset[int]

    def allows_root(self, line: int | None, text: bytes) -> bool:
        return line in (*self.label.root_lines, *self.label.event_lines) or text in self.events

    def allows_rank(self, rank: int | None, by_file: int | None) -> bool:
        if self.label.rank is not None:
            return rank == self.label.rank
        return None not in (rank, by_file) and self.alike.issuperset({rank, by_file})

    def allows_node(self, node: str | None, *, rank: bool) -> bool:
        """rank: whether the rank that is named is right."""
        return rank if self.label.node is None else node == self.label.node


@dataclass(frozen=True)
class Comparison:
    """What is diagnosed of a log as one file and as streams, with or without an exit event. line: number that the root
    line of the streams has in the log."""

    shipping: Shipping
    exits: bool
    whole: Diagnosis
    streams: Diagnosis
    truth: Truth
    line: int | None

    def same(self) -> dict[str, bool]:
        """In what the two agree, or the streams' answer is the label's."""
        whole, streams = self.whole, self.streams
        ranks = _rank(whole), _rank(streams)
        rank = ranks[0] == ranks[1] or self.truth.allows_rank(ranks[1], ranks[0])
        text = _event(_message(streams))
        return {
            "type": whole.type is streams.type,
            "root": self.line == _line(whole) or self.truth.allows_root(self.line, text),
            "rank": rank,
            "node": _node(whole) == _node(streams) or self.truth.allows_node(_node(streams), rank=rank),
            "order": ranks[0] == ranks[1],
        }


def _line(diagnosis: Diagnosis) -> int | None:
    return diagnosis.root_cause.line if diagnosis.root_cause else None


def _rank(diagnosis: Diagnosis) -> int | None:
    return diagnosis.root_cause.rank if diagnosis.root_cause else None


def _node(diagnosis: Diagnosis) -> str | None:
    return diagnosis.root_cause.node if diagnosis.root_cause else None


def _message(diagnosis: Diagnosis) -> bytes:
    text = diagnosis.root_cause.text.encode() if diagnosis.root_cause else b""
    return _STAMP.sub(b"", body_of(text)[1]).strip()


_NUMBERS = re.compile(rb"0x[0-9a-f]+|\d+")


def truth_of(label: Label, log: bytes, by_file: Diagnosis) -> Truth:
    """By the label and, where it names no root or no rank, by what is printed of the event that is found by file: the
    root's message, but for its numbers and the time, and the lines that the diagnosis calls the same failure."""
    lines = log.removesuffix(b"\n").split(b"\n")
    root, labelled = by_file.root_cause, (*label.root_lines, *label.event_lines)
    same = [line.line for line in by_file.rejected if _is_repeated(line, by_file)]
    found = {_event(lines[number - 1]) for number in [*same, *([root.line] if root else [])]} - {b""}
    alike = {prefix.rank for prefix, body in map(body_of, lines) if prefix.rank >= 0 and _event(body) in found}
    events = {_event(lines[number - 1]) for number in labelled} - {b""}
    return Truth(label, frozenset(events if labelled else found), frozenset(alike))


def _is_repeated(line: Rejected, by_file: Diagnosis) -> bool:
    return line.why == RejectionReason.REPEATED and line.type is by_file.type


def _event(line: bytes) -> bytes:
    return _NUMBERS.sub(b"", _STAMP.sub(b"", body_of(line)[1]).strip())


def compared(
    analyzer: LogAnalyzer, label: Label, log: bytes, shippings: Sequence[Shipping], seed: int
) -> Iterator[Comparison]:
    """For each way of shipping, without and with an exit event."""
    whole = analyzer.read(BytesIO(log))
    alone = analyzer.analyze(whole, Facts())
    code = int(alone.outcome is not Outcome.COMPLETED)
    start = max(rank_streams.START, whole.evidence.newest_time)
    ended = analyzer.analyze(whole, facts_of(start, code))
    truth = truth_of(label, log, alone)
    for shipping in shippings:
        places = numbers(log, shipping)
        draw = random.Random(f"{seed} {shipping}")
        blocks = bodies(split(log, shipping), shipping, draw, start)
        newest = max(block.received for block in blocks)
        streams = stored(analyzer, blocks, draw)
        for by_file, exits in ((alone, None), (ended, code)):
            verdict = analyzer.analyze(streams, facts_of(newest, exits), newest + 10)
            root = verdict.root_cause
            line = places[root.source][root.line - 1] if root and root.source in places else None
            yield Comparison(shipping, exits is not None, by_file, verdict, truth, line)


def logs() -> Iterator[tuple[str, Label, bytes]]:
    """The labelled logs in which at least two ranks speak, by name."""
    for folder in accuracy_bars.FOLDERS:
        for label in accuracy_bars.labels(folder):
            log = (CORPUS / folder / f"{label.id}.log").read_bytes()
            if len(ranks_of(log)) > 1:
                yield f"{folder}/{label.id}", label, log


def measure(
    analyzer: LogAnalyzer,
    shippings: Sequence[Shipping],
    seeds: int,
    on_other: Callable[[str], object] = lambda _: None,
    part: float = 1.0,
) -> dict[tuple[Shipping, bool], Counter[str]]:
    """(way, exit event) -> tries, and in how many both agree in what. on_other: called with those that differ.
    part: share of the ways, drawn for each log."""
    counts: dict[tuple[Shipping, bool], Counter[str]] = {}
    for (name, label, log), seed in product(logs(), range(seeds)):
        draw = random.Random(f"{seed} {name}")
        chosen = draw.sample(shippings, max(1, round(len(shippings) * part)))
        for pair in compared(analyzer, label, log, chosen, seed):
            agrees = pair.same()
            count = counts.setdefault((pair.shipping, pair.exits), Counter(tries=0))
            count.update(name for name, equal in agrees.items() if equal)
            every = all(agrees[measure] for measure in MEASURES)
            count.update({"all": every, "tries": 1})
            if not every:
                way = f"{pair.shipping}, exit {int(pair.exits)}"
                on_other(f"{name} seed {seed}, {way}: {_shown(pair.whole)} -> {_shown(pair.streams)}")
    return counts


def table(counts: Mapping[tuple[Shipping, bool], Counter[str]]) -> Iterator[str]:
    """The shares by way of shipping. order: the very rank that is named by file."""
    for (shipping, exits), count in sorted(counts.items(), key=str):
        shares = " ".join(f"{name} {count[name] / count['tries']:.3f}" for name in (*MEASURES, "all", "order"))
        yield f"{f'{shipping}, exit {int(exits)}'.ljust(40)} {count['tries']:4} tries: {shares}"


def totals(counts: Mapping[tuple[Shipping, bool], Counter[str]]) -> dict[str, float]:
    """The shares of all tries together."""
    total = sum(counts.values(), Counter[str]())
    return {name: total[name] / max(1, total["tries"]) for name in (*MEASURES, "all")}


def _shown(diagnosis: Diagnosis) -> str:
    root = diagnosis.root_cause
    text = root.text[:80] if root else ""
    return f"{diagnosis.outcome} {diagnosis.type} rank {_rank(diagnosis)} {_node(diagnosis)} {text!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="orders of arrival tried for each log")
    parser.add_argument("--only", default="", help="ways of shipping whose names contain this")
    parser.add_argument("--show", action="store_true", help="print the logs that differ")
    options = parser.parse_args()
    shippings = [shipping for shipping in SHIPPINGS if options.only in str(shipping)]
    on_other = print if options.show else str
    counts = measure(accuracy_bars.load(), shippings, options.seeds, on_other)
    sys.stdout.write("".join(f"{line}\n" for line in table(counts)))


if __name__ == "__main__":
    main()

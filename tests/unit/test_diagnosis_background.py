"""What a model is told beside the log, and what its view of the log must hold."""

from dataclasses import replace

import pytest

from diagnoser.compress import AttemptLog
from diagnoser.compress.render import tokens
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.background import background, pinned
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import Diagnosis, Facts, Job, LineBlock, Rejected, Stream
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate_set import RejectionReason
from tests import accuracy_bars

NCCL = "".join(
    f"gpu-{n % 8}:{4000 + n % 64}:{5000 + n} [{n % 8}] NCCL INFO Channel {n % 32}/0 : {n} -> {n + 1} via P2P/{n % 7}\n"
    for n in range(6000)
)
"""Lines of many shapes, as they stand before every failure on a large job."""
ROOT = "OSError: the quilt of shard 12 does not fit the manifest"
TRACE = f'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in read\n    fit(quilt)\n{ROOT}\n'
END = "srun: error: gpu-5: task 40: Exited with exit code 1\n"


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def read(analyzer: LogAnalyzer, log: str) -> tuple[AttemptLog, Diagnosis]:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), log.encode()))
    attempt = AttemptLog(compressor.take())
    return attempt, analyzer.analyze(attempt, Facts())


@pytest.mark.parametrize("size", [500, 2000, 6000])
def test_the_rules_candidates_and_the_last_lines_are_in_every_view(analyzer: LogAnalyzer, size: int) -> None:
    """Behind thousands of other lines, and however small the view is; it keeps its size."""
    log, diagnosis = read(analyzer, NCCL + TRACE + NCCL[: len(NCCL) // 3] + END)
    view = consultation_input(diagnosis, log, Facts(), analyzer.knowledge).view(size)
    assert diagnosis.root_cause is not None and diagnosis.root_cause.text == ROOT
    assert f"6004| {ROOT}" in view.text
    assert END.strip() in view.text
    assert tokens(view.text) <= size


def test_pins_go_by_their_weight(analyzer: LogAnalyzer) -> None:
    """First the root, then what the rules weighed, the last lines, and what stands around the root; noise is left
    out."""
    log, diagnosis = read(analyzer, "step 1\nstep 2\n" + TRACE + "hub: retrying\n" + "bye\n" * 20 + END)
    weighed = [
        Rejected(7, "hub: retrying", FailureType.CONNECTION_ERROR, RejectionReason.LATER),
        Rejected(8, "bye", FailureType.CANCELLED, RejectionReason.TEARDOWN),
    ]
    pins = pinned(replace(diagnosis, rejected=tuple(weighed)), log.digest.lines)
    numbers = [number for number, _ in pins]
    assert numbers[:2] == [6, 7]
    assert {28, 27, 14} < set(numbers) and not {1, 10} & set(numbers)
    assert numbers[-1] in (4, 5, 8)


def test_a_line_that_was_printed_once_beside_the_root_can_be_cited(analyzer: LogAnalyzer) -> None:
    """The compressor keeps no line that looks like routine; one that it counted once is shown as printed."""
    steps = "".join(f"[INFO trainer] step={n} loss=0.{n} lr=0.05\n" for n in range(100, 400))
    panic = "thread 'main' (31264) panicked at /srv/app/train.rs:73:49:\nbound check: the len is 17 but the key is 20\n"
    log, diagnosis = read(analyzer, steps + panic + steps)
    view = consultation_input(diagnosis, log, Facts(), analyzer.knowledge).view(2000)
    assert 302 not in [line.number for line in log.digest.lines]
    assert "\n302| bound check: the len is 17 but the key is 20\n" in view.text
    assert view.lines[302].text == "bound check: the len is 17 but the key is 20"


def test_findings_are_told_by_name(analyzer: LogAnalyzer) -> None:
    """Where ranks run, who is silent, what launchers report, and the rules' own notes."""
    log, diagnosis = read(analyzer, "".join(f"[rank{n}]: step 1 done\n" for n in range(3)) + TRACE + END)
    facts = Facts(Job("j", rank_nodes={0: "gpu-1", 1: "gpu-1", 2: "gpu-2", 3: "gpu-2"}))
    evidence = replace(log.evidence, exits=analyzer.knowledge.exits.read(log.evidence.lines))
    told = background(replace(diagnosis, notes=("an earlier attempt failed",)), evidence, facts)
    assert {section.title: section.lines for section in told.sections} == {
        "The scheduler's last word": ("nothing was reported",),
        "Where the ranks run": ("gpu-1: ranks 0-1", "gpu-2: ranks 2-3"),
        "Silence": ("never printed a line: ranks 3",),
        "What launchers report about ended processes": (END.strip(),),
        "Notes of the rules": ("an earlier attempt failed",),
    }

"""Filter Rules: the same discipline as diagnosis rules, and never a cause hidden."""

import json
import math
from pathlib import Path

import pytest

from diagnoser.compress import Compressor, FilterSet, Prefilter, digest, parse_filters
from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import clean
from diagnoser.compress.template_cache import TemplateCache
from diagnoser.model import LineBlock, Mark, Stage, Stream
from diagnoser.model.errors import RuleFaults
from tests.corpus import CORPUS, needs_corpus

FOLDER = Path(__file__).resolve().parents[2] / "rules" / "filters"
GOOD = """\
family: own
filters:
  - id: beat
    title: Heartbeats
    patterns: ['^heartbeat \\d+']
    examples:
      match: ["heartbeat 7"]
      no_match: ["no heartbeat"]
"""


def project() -> FilterSet:
    return parse_filters({path.name: path.read_text() for path in FOLDER.glob("*.yaml")})


def test_the_filters_of_the_project_prove_themselves() -> None:
    """Every filter matches its own examples and nothing of what it must not."""
    assert len(project().patterns) > 50


@pytest.mark.parametrize(
    ("line", "family"),
    [
        (
            " iteration       12/  500 | consumed samples: 6144 | elapsed time per iteration (ms): 2410.7 | "
            "lm loss: 6.1E+00 |",
            "megatron_lm",
        ),
        (
            "[2026-03-01 10:00:00,001] [INFO] [logging.py:128:log_dist] [Rank 0] step=12, skipped=0, lr=[1e-05]",
            "deepspeed",
        ),
        ("{'loss': 1.92, 'grad_norm': 0.42, 'learning_rate': 2e-05, 'epoch': 0.31}", "hf_trainer"),
        ("\t`--num_processes` was set to a value of `8`", "accelerate"),
        ("GPU available: True (cuda), used: True", "lightning"),
        ("[NeMo I 2026-03-01 10:00:00 exp_manager:396] Experiments will be logged at /results", "nemo"),
        (
            "[rank0]:[titan] 2026-03-01 10:00:00,221 - root - INFO - step: 20  loss:  6.91  "
            "memory: 41.02GiB  tps: 9,120",
            "torchtitan",
        ),
        (
            "completed step: 41, seconds: 5.218, TFLOP/s/device: 181.2, Tokens/s/device: 3140.1, "
            "total_weights: 65536, loss: 7.012",
            "maxtext_jax",
        ),
        ("2026-03-01 10:00:00 | INFO | fairseq_cli.train | training on 16 devices (GPUs/TPUs)", "fairseq"),
        ("2026-03-01 10:00:00 | INFO | metaseq.trainer | begin training epoch 2", "fairseq"),
        (
            "2026-03-01 10:00:00,000\tINFO launch.py:228 in launch -- Distributed environment is "
            "initialized, data parallel size: 2",
            "internevo",
        ),
        ("[extension] Compiling the JIT cpu_adam_x86 kernel during runtime now", "colossalai"),
        (
            ':::MLLOG {"namespace": "", "time_ms": 1772366409500, "event_type": "INTERVAL_START", '
            '"key": "epoch_start", "value": null, "metadata": {"file": "x.py", "lineno": 3}}',
            "mllog",
        ),
        ("+ export NCCL_DEBUG=WARN", "slurm"),
        ("Trial status: 2 RUNNING", "ray"),
        ("gpu-4:77:92 [3] NCCL INFO Channel 03/0 : 3[3] -> 4[4] via P2P/IPC/read", "nccl"),
    ],
)
def test_the_routine_of_every_family_is_known(line: str, family: str) -> None:
    """A line of each named framework, with other numbers than in its file, is named as its routine."""
    compressor = Compressor(Prefilter(), project())
    compressor.feed(LineBlock(Stream(), line.encode() + b"\n"))
    (template,) = digest(compressor.take()).templates
    assert template.filtered_by.split("/")[0] == family


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("title: Heartbeats", "titel: Heartbeats", 4, "unknown key"),
        ("'^heartbeat \\d+'", "'^heartbeat (\\d+'", 5, "not an RE2 expression"),
        ('["heartbeat 7"]', '["silence"]', 7, "must match"),
        ('["no heartbeat"]', '["heartbeat 8"]', 8, "must not match"),
        ('match: ["heartbeat 7"]', "match: []", 7, "at least 1"),
        ("id: beat", "id: Beat!", 3, "pattern"),
        ("filters:", "progress:", 5, "name groups among step"),
        ("filters:", "filters: []\nspare:", 3, "unknown key"),
    ],
)
def test_a_fault_is_told_with_path_and_line(before: str, after: str, line: int, message: str) -> None:
    """Each kind of mistake names its file, its line and what is wrong."""
    with pytest.raises(RuleFaults) as caught:
        parse_filters({"own.yaml": GOOD.replace(before, after)})
    assert any(f.path == "own.yaml" and f.line == line and message in f.message for f in caught.value.faults)


def test_a_filter_cannot_tell_numbers_apart() -> None:
    """All lines that differ in numbers are judged alike, so a filter that wants one number only is a mistake."""
    faulty = GOOD.replace("heartbeat \\\\d+", "heartbeat 7").replace("no heartbeat", "heartbeat 8")
    with pytest.raises(RuleFaults, match="whatever its numbers"):
        parse_filters({"own.yaml": faulty})


def test_all_faults_of_all_files_come_at_once() -> None:
    """Two faulty files and a name taken twice are told in one go."""
    faulty = GOOD.replace('["heartbeat 7"]', '["silence"]')
    with pytest.raises(RuleFaults) as caught:
        parse_filters({"a.yaml": faulty, "b.yaml": GOOD, "c.yaml": "family: 7"})
    assert {fault.path for fault in caught.value.faults} == {"a.yaml", "b.yaml", "c.yaml"}


def test_a_filter_names_the_template_and_silences_the_word() -> None:
    """A known routine line is counted under its filter even if it says error; the next one is not."""
    compressor = Compressor(Prefilter(), parse_filters({"own.yaml": GOOD}))
    compressor.feed(LineBlock(Stream(), b"".join(b"heartbeat %d error count 0\n" % n for n in range(999))))
    view = digest(compressor.take())
    assert [one.filtered_by for one in view.templates] == ["own/beat"]
    assert all(line.mark < Mark.SEVERITY for line in view.lines)


def test_a_file_without_anything_in_it_is_a_fault() -> None:
    """A family that says nothing is a mistake."""
    with pytest.raises(RuleFaults, match="neither filters nor progress"):
        parse_filters({"own.yaml": "family: own\n"})


def test_a_site_reads_progress_of_its_own() -> None:
    """A pattern with named groups makes a series of lines that no known dialect reads."""
    own = (
        GOOD
        + """\
progress:
  - id: updates
    title: Updates of our trainer
    patterns: ['^upd (?P<step>[\\d,]+) obj (?P<loss>\\S+) kept (?P<checkpoint>\\S+)$']
    examples:
      match: ["upd 7 obj 2.5 kept /c/7"]
      no_match: ["upd failed"]
"""
    )
    compressor = Compressor(Prefilter(), parse_filters({"own.yaml": own}))
    compressor.feed(LineBlock(Stream(), b"upd 1,207 obj 2.25 kept /c/9\nupd 1,208 obj bad kept /c/9\n"))
    first, second = digest(compressor.take()).progress
    assert (first.step, first.loss, first.checkpoint, first.stage) == (1207, 2.25, "/c/9", Stage.TRAIN)
    assert second.loss is not None and math.isnan(second.loss)


@needs_corpus
def test_no_filter_hides_a_known_root_line() -> None:
    """Each labelled root-cause line is, to the compressor, no routine of any framework."""
    shapes, hidden = TemplateCache(Prefilter(), project()), []
    for name in ("dev", "dev-full", "injected-dev"):
        for text in (CORPUS / name / "labels.jsonl").read_text().splitlines():
            label = json.loads(text)
            lines = clean((CORPUS / name / f"{label['id']}.log").read_bytes()).lines
            roots = [lines[number - 1] for number in label["root_lines"]]
            hidden += [label["id"] for shape in shapes.of(map(blurred, roots)).values() if shape.filtered]
    assert hidden == []

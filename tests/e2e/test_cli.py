"""The command line: contract, exit codes, and what it says when something is wrong, where that counts as a process."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from diagnoser.model.taxonomy import FailureType
from tests import preloaded
from tests.command_line import invoke
from tests.e2e.service import DEMO_LOG

DIAGNOSER = str(Path(sys.executable).with_name("diagnoser"))
CONTRACT = {
    "file": str,
    "outcome": str,
    "category": str,
    "type": str,
    "confidence": float,
    "decided_by": str,
    "root_cause": dict,
    "evidence": list,
    "symptoms": list,
    "nodes": list,
    "recovery": dict,
    "mitigation": str,
    "left_out": dict,
    "compression": dict,
}


def installed(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """What pip put on the path, started as a shell does."""
    return subprocess.run([DIAGNOSER, *map(str, arguments)], capture_output=True)


def piped(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """As a process that finds its code loaded, with real pipes."""
    program = preloaded.program_folder() / "diagnoser"
    return subprocess.run([program, *map(str, arguments)], input=stdin, capture_output=True)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As a process that finds its code loaded."""
    return preloaded.run(arguments)


def verdicts(*arguments: str | Path) -> list[dict[str, Any]]:
    done = invoke("diagnose", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_json_contract() -> None:
    """One object a file, on one line, with every key of the contract in its place."""
    done = installed("diagnose", "--json", DEMO_LOG)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    for key, kind in CONTRACT.items():
        assert isinstance(found[key], kind), key
    assert found["root_cause"]["line"] == 237
    assert set(found["root_cause"]) >= {"line", "text", "rank", "node", "gpu"}
    assert set(found["evidence"][0]) >= {"line", "text", "why"}
    assert set(found["symptoms"][0]) >= {"line", "text", "type"}
    assert set(found["nodes"][0]) >= {"node", "score", "why"}
    assert set(found["recovery"]) == {"action", "reason"}
    assert set(found["compression"]) == {"lines_in", "bytes_in", "lines_out", "bytes_out"}
    assert found["compression"]["lines_in"] == 290


def test_compressed_files_and_standard_input_read_alike(tmp_path: Path) -> None:
    """gzip, zstd and a pipe give the verdict of the plain file."""
    data = DEMO_LOG.read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.zst").write_bytes(zstandard.compress(data))
    plain, gz, zst = verdicts(DEMO_LOG, tmp_path / "a.gz", tmp_path / "a.zst")
    pipe = json.loads(piped("diagnose", "--json", "-", stdin=data).stdout)
    for found in (plain, gz, zst, pipe):
        found.pop("file")
    assert plain == gz == zst == pipe


def test_of_a_damaged_file_what_can_be_unpacked_is_read(tmp_path: Path) -> None:
    """Cut off, with a wrong checksum, or followed by something else: the verdict says so; zeros are nothing."""
    data = DEMO_LOG.read_bytes()
    packed, zst = gzip.compress(data), zstandard.compress(data) + zstandard.compress(data)
    damaged = [packed[:-8], packed[:-8] + bytes(8), packed + b"more", zst[:-3]]
    whole = [packed + packed, packed + bytes(4096), zst]
    for number, content in enumerate([*damaged, *whole]):
        (tmp_path / f"{number}").write_bytes(content)
    found = verdicts(*(tmp_path / f"{number}" for number in range(len(damaged) + len(whole))))
    assert len({each["type"] for each in found}) == 1
    notes = [" ".join(each["notes"]) for each in found]
    assert ["bytes of text, which were read" in note for note in notes] == [True] * len(damaged) + [False] * len(whole)


def test_a_file_that_shows_nothing_gets_no_cause(tmp_path: Path) -> None:
    """Meaningless files are read without an error and without an invented cause."""
    odd = [b"\n\n", bytes(range(128, 256)) * 50, b"\r" * 10_000, b"x" * 1_000_000]
    for number, data in enumerate(odd):
        (tmp_path / f"{number}.log").write_bytes(data)
    read = verdicts(*(tmp_path / f"{number}.log" for number in range(len(odd))))
    shown = [(found["root_cause"], found["category"], found["nodes"]) for found in read]
    assert shown == [(None, "unknown", [])] * len(odd)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("empty.log", b"", "is empty"),
        ("core", b"\x7fELF\x02\x01\x01" + bytes(5000), "is no text"),
        ("utf16.log", "RuntimeError: lost\n".encode("utf-16"), "UTF-16"),
        ("run.log.xz", b"\xfd7zXZ\x00" + b"abc" * 9, "packed with xz"),
        ("cut.log.gz", gzip.compress(b"RuntimeError: lost\n" * 9, mtime=0)[:10], "cannot read"),
        ("logs.tar", b"rank-0.log".ljust(257, b"1") + b"ustar\0" + b"step 1 loss 2.5\n" * 99, "archive"),
    ],
)
def test_what_is_no_log_is_told(name: str, data: bytes, told: str, tmp_path: Path) -> None:
    """One clear line for each file that is empty, no text, packed or cut; exit code 1, and no verdict."""
    path = tmp_path / name
    path.write_bytes(data)
    done = invoke("diagnose", "--json", path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{path}" in done.stderr
    assert told in done.stderr


def test_zeros_in_front_of_a_log_are_none_of_it(tmp_path: Path) -> None:
    """A log that was truncated under a writer that goes on at its place is read from behind the hole."""
    (tmp_path / "a.log").write_bytes(bytes(100_000) + DEMO_LOG.read_bytes())
    hole, plain = verdicts(tmp_path / "a.log", DEMO_LOG)
    assert hole["root_cause"] == plain["root_cause"]


def test_a_name_may_lie_about_compression(tmp_path: Path) -> None:
    """Plain text in a file named .gz is read, with a word on it; gzip on standard input is unpacked."""
    path = tmp_path / "plain.log.gz"
    path.write_bytes(DEMO_LOG.read_bytes())
    named = invoke("diagnose", "--json", path)
    assert "is not compressed" in named.stderr
    packed = piped("diagnose", "--json", "-", stdin=gzip.compress(DEMO_LOG.read_bytes()))
    assert json.loads(packed.stdout)["root_cause"] == json.loads(named.stdout)["root_cause"]


def test_empty_standard_input_is_told() -> None:
    """A pipe that brought nothing is no healthy log."""
    done = piped("diagnose", "-")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"standard input is empty" in done.stderr


def test_a_table_in_a_pipe_is_whole() -> None:
    """A program that reads a table gets each id uncut; a person who reads a verdict gets long lines clipped."""
    listed = run("rules", "list").stdout
    assert "cuda_ecc_uncorrectable " in listed
    assert "…" not in listed


def test_long_lines_are_clipped_for_people(tmp_path: Path) -> None:
    """A cited line of 100 kB takes a few rows of the terminal; `--json` has all of it."""
    path = tmp_path / "long.log"
    path.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered " + "x" * 20_000 + "\n")
    shown = invoke("diagnose", path).stdout
    assert "more characters)" in shown
    assert len(shown) < 8_000
    whole = json.loads(invoke("diagnose", "--json", path).stdout)
    assert len(whole["root_cause"]["text"]) > 1_000


def test_the_version_is_an_option_too() -> None:
    """`--version` prints what `version` prints."""
    assert piped("--version").stdout == piped("version").stdout != b""


def test_a_missing_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    """Exit code 1, one clear line, and the verdict of the file that could be read."""
    done = run("diagnose", "--json", tmp_path / "absent.log", DEMO_LOG)
    assert done.returncode == 1
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_compress_prints_a_view_and_figures() -> None:
    """The view holds the root line; --json holds the contract's figures, seconds and templates."""
    view = invoke("compress", DEMO_LOG)
    assert "uncorrectable ECC error" in view.stdout
    figures = json.loads(invoke("compress", "--json", DEMO_LOG).stdout)
    assert set(figures) == {"lines_in", "bytes_in", "lines_out", "bytes_out", "seconds", "templates"}


def test_a_rule_is_listed_for_every_failure_type() -> None:
    """That `rules test` holds for all that ship is held where the docs show it, in test_readme_commands."""
    listed = [json.loads(line) for line in invoke("rules", "list", "--json").stdout.splitlines()]
    assert {rule["type"] for rule in listed} == set(FailureType) - {"unknown"}


def test_a_faulty_rule_folder_tells_every_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown key and invalid pattern of two files are told together, with path and line, and nothing starts."""
    for name, text in (("a", "id: a\ncolour: red\n"), ("b", "id: b\npatterns: ['(']\n")):
        path = tmp_path / "script" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("DIAGNOSER_RULES_DIR", str(tmp_path))
    done = run("rules", "list")
    assert done.returncode == 1
    assert "script/a.yaml:2: colour: unknown key" in done.stderr
    assert "script/b.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_clean_logs_show_what_is_new(tmp_path: Path) -> None:
    """`--baseline` takes files and folders; a log that shows a failure is named and left out."""
    clean, failed = tmp_path / "clean", tmp_path / "failed.log"
    clean.mkdir()
    for number in (1, 2):
        (clean / f"{number}.log").write_text("loading the tokenizer of the mix\nmounted the shards of the mix\n")
    (clean / "3.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    failed.write_text("loading the tokenizer of the mix\nthe sampler took the slow path\n")
    told = invoke("explain", "--baseline", clean, failed)
    assert "+ 2 the sampler took the slow path" in told.stdout and "in none of 2 clean runs" in told.stdout
    assert "3.log is no clean run" in told.stderr
    (found,) = verdicts("--baseline", clean / "1.log", failed)
    assert [one["line"] for one in found["new_lines"]] == [2]
    nothing = run("diagnose", "--baseline", clean / "3.log", failed)
    assert nothing.returncode == 1 and "--baseline names no clean run" in nothing.stderr


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A full disk, or a folder that does not exist, is told without a traceback."""
    with Path("/dev/full").open("wb") as full:
        read = subprocess.run([DIAGNOSER, "diagnose", str(DEMO_LOG)], stdout=full, stderr=subprocess.PIPE, check=False)
    wrote = installed("bundle", tmp_path / "none" / "bundle.json")
    assert (read.returncode, read.stderr.count(b"\n")) == (1, 1)
    assert (wrote.returncode, wrote.stderr.count(b"\n")) == (1, 1)

"""Checkpoints with manifests: what counts, what never does, and what the service hears of it."""

import ast
import hashlib
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diagnoser.client import cli
from diagnoser.client.checkpoints import (
    Checkpointer,
    JustInTime,
    NoCheckpoint,
    SaveFailed,
    TwoWriters,
    find,
    latest,
    resume,
    verify,
)
from diagnoser.client.checkpoints.checksums import PIECE_BYTES, file_sums
from diagnoser.client.checkpoints.manifest import (
    CLAIM,
    COMPLETE,
    MANIFEST,
    Writer,
    read_manifest,
    write_completion,
    write_manifest,
)
from diagnoser.client.checkpoints.report_spool import PendingReport, ReportSpool, unreported
from diagnoser.client.checkpoints.reporter import Reporter, deliver
from diagnoser.client.checkpoints.verification import State, prunable, remove
from diagnoser.client.service import Service, TokenSource
from tests.checkpoint_kills import kills
from tests.receiver import Receiver, running

ROOT = Path(__file__).resolve().parents[2]
NONE_SUCH = 1 << 30


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher and no service are there."""
    for name in list(os.environ):
        if name.startswith(("DIAGNOSER_", "SLURM_", "TORCHELASTIC_", "OMPI_", "PMI")):
            monkeypatch.delenv(name)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with running(server):
        yield server


def state(path: str) -> None:
    (Path(path) / "model.bin").write_bytes(b"weights" * 1000)


def shard(rank: int, path: str) -> None:
    (Path(path) / f"__{rank}_0.distcp").write_bytes(b"weights")


def saved(folder: Path, step: int, loss: float | None = 1.0, **options: Any) -> str:
    with Checkpointer(folder) as checkpointer:
        return checkpointer.save(step, state, loss=loss, **options).result().path


def bodies(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in receiver.requests]


def command(*words: str | Path) -> int:
    return cli.main(["checkpoint", *map(str, words)], {})


def test_what_was_saved_verifies(tmp_path: Path) -> None:
    """Every file is named with its size and checksum, and the run's own words are kept."""
    with Checkpointer(tmp_path, parameters={"lr": 0.1}) as checkpointer:
        found = checkpointer.save(7, state, loss=2.5).result()
    assert found.state is State.VERIFIED
    assert found.completion is not None
    assert (found.completion.size, found.completion.about.step, found.completion.about.loss) == (7000, 7, 2.5)
    assert found.completion.about.parameters == {"lr": 0.1}


def test_a_save_function_may_run_in_the_background(tmp_path: Path) -> None:
    """The caller goes on before the function ends."""
    go_on = threading.Event()

    def save(path: str) -> None:
        assert go_on.wait(60)
        state(path)

    with Checkpointer(tmp_path) as checkpointer:
        pending = checkpointer.save(1, save, background=True)
        assert not pending.outcome.done()
        go_on.set()
        assert pending.result().state is State.VERIFIED


def test_damage_in_a_large_file_has_a_place(tmp_path: Path) -> None:
    """One changed byte is found, and the piece that it is in is named."""

    def save(path: str) -> None:
        with (Path(path) / "big").open("wb") as file:
            file.truncate(2 * PIECE_BYTES + 5)

    with Checkpointer(tmp_path) as checkpointer:
        path = checkpointer.save(1, save).result().path
    with (Path(path) / "big").open("r+b") as file:
        file.seek(PIECE_BYTES + 3)
        file.write(b"\1")
    damaged = verify(path)
    assert damaged.state is State.DAMAGED
    assert f"{PIECE_BYTES:,} to {2 * PIECE_BYTES:,}" in damaged.why


def test_a_save_that_raises_never_counts(tmp_path: Path) -> None:
    """The caller gets its own exception; a background save fails in its result and nowhere else."""

    def broken(path: str) -> None:
        state(path)
        raise OSError(28, "No space left on device")

    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(OSError, match="No space left"):
            checkpointer.save(1, broken)
        with pytest.raises(SaveFailed, match="No space left"):
            checkpointer.save(2, broken, background=True).result()
        assert checkpointer.save(3, state).result().state is State.VERIFIED
    assert [found.state for found in find(str(tmp_path))] == [State.COMPLETE, State.INCOMPLETE, State.INCOMPLETE]


def test_a_full_disk_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """Whatever file the space ends at, and the newest that was whole stays the one to use."""
    good = saved(tmp_path, 1)
    code = """
import resource, signal, sys
from pathlib import Path
from diagnoser.client.checkpoints import Checkpointer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
with Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(2, lambda path: (Path(path) / "a").write_bytes(bytes(150)), background=True)
"""
    for limit in (100, 120, 160, 400):  # the writer's name, a file of the checkpoint, the manifest
        ended = subprocess.run(
            [sys.executable, "-S", "-c", code, tmp_path, str(limit)], cwd=ROOT, capture_output=True, check=False
        )
        assert b"File too large" in ended.stderr, (limit, ended.stderr)
        found = latest(str(tmp_path))
        assert found is not None
        assert found.path == good


def test_a_rank_that_writes_no_manifest_is_named(tmp_path: Path) -> None:
    """Rank 0 waits for it for a while, and the checkpoint never counts."""
    with (
        Checkpointer(tmp_path, rank=0, ranks=3, run="r", ranks_seconds=0.2) as checkpointer,
        pytest.raises(SaveFailed, match="ranks 1, 2"),
    ):
        checkpointer.save(1, state).result()
    assert latest(str(tmp_path)) is None


def test_ranks_meet_in_the_directory(tmp_path: Path) -> None:
    """Torch's shards are in the manifests of their ranks, all else in that of rank 0; one infinite loss is enough."""
    pending = []
    ranks = [Checkpointer(tmp_path, rank=rank, ranks=2, run="r", ranks_seconds=60) for rank in range(2)]
    for checkpointer, loss in zip(ranks, (1.0, float("inf")), strict=True):
        pending.append(checkpointer.save(4, partial(shard, checkpointer.rank), loss=loss))
    found = pending[0].result()
    for checkpointer in ranks:
        checkpointer.close()
    assert found.completion is not None
    assert (found.state, found.completion.about.finite) == (State.VERIFIED, False)
    files = [json.loads((Path(found.path) / MANIFEST.format(rank)).read_text())["files"] for rank in range(2)]
    assert [[file["name"] for file in each] for each in files] == [["__0_0.distcp"], ["__1_0.distcp"]]


def test_two_writers_to_one_directory_are_detected(tmp_path: Path) -> None:
    """A second process with the same run is refused, while the first writes and when it has completed."""
    (tmp_path / "framework").mkdir()
    state(str(tmp_path / "framework"))
    other = Writer("other", "another-host", 1, "boot", "1")
    (tmp_path / "framework" / CLAIM.format(0)).write_text(json.dumps(other.__dict__))
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(TwoWriters, match="another-host"):
        checkpointer.seal(tmp_path / "framework", 1)
    with Checkpointer(tmp_path, rank=0, ranks=1, run="same") as first:
        first.save(1, state).result()
    with Checkpointer(tmp_path, rank=0, ranks=1, run="same") as second, pytest.raises(TwoWriters, match="complete"):
        second.save(1, state)


def test_a_claim_that_is_lost_while_saving_stops_the_save(tmp_path: Path) -> None:
    """Somebody else took the directory over: this process does not complete it."""

    def save(path: str) -> None:
        state(path)
        other = Writer("other", "another-host", 1, "boot", "1")
        (Path(path) / CLAIM.format(0)).write_text(json.dumps(other.__dict__))

    with Checkpointer(tmp_path) as checkpointer, pytest.raises(SaveFailed, match="another-host"):
        checkpointer.save(1, save).result()
    assert latest(str(tmp_path)) is None


def test_the_directory_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    """A framework that writes the same directory after a restart is not refused, and its old seal is gone first."""
    path = tmp_path / "checkpoint-100"
    path.mkdir()
    state(str(path))
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.seal(path, 100).result()
        owner = json.loads((path / CLAIM.format(0)).read_text())
    (path / CLAIM.format(0)).write_text(json.dumps({**owner, "pid": NONE_SUCH}))
    (path / "model.bin").write_bytes(b"other weights")
    assert verify(str(path)).state is State.DAMAGED
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.seal(path, 100).result().state is State.VERIFIED
        (path / "model.bin").write_bytes(b"and others")
        assert checkpointer.seal(path, 100).result().state is State.VERIFIED


def test_the_newest_that_may_be_used(tmp_path: Path) -> None:
    """It was completed last, is of an earlier step than asked, its loss was finite, and it is what was saved."""
    first = saved(tmp_path, 3000)
    second = saved(tmp_path, 600)  # the run went back
    saved(tmp_path, 700, float("nan"))
    damaged = saved(tmp_path, 650)
    os.truncate(Path(damaged) / "model.bin", 6999)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "COMPLETE.json").write_bytes(b"[" * 100_000)  # too deep to be parsed
    for before, path in ((None, second), (600, None), (601, second)):
        found = latest(str(tmp_path), before)
        assert (found.path if found else None) == path
    assert first in [found.path for found in find(str(tmp_path))]


def test_a_just_in_time_save_is_read_before_it_is_chosen(tmp_path: Path) -> None:
    """Also where verification was not asked for."""
    good, late = saved(tmp_path, 1), saved(tmp_path, 2, just_in_time=True)
    chosen = latest(str(tmp_path), verified=False)
    assert chosen is not None
    assert chosen.path == late
    (Path(late) / "model.bin").write_bytes(b"weighty" * 1000)
    chosen = latest(str(tmp_path), verified=False)
    assert chosen is not None
    assert chosen.path == good


def test_a_launch_goes_on_from_what_the_plan_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the damage that is newer. What it saves then goes first when it is launched again with the same
    variables; a later plan, to the same checkpoint, leaves that behind, too."""
    good = saved(tmp_path, 10)
    saved(tmp_path, 20)

    def chosen() -> str:
        found = resume(str(tmp_path))
        assert found is not None
        return found.path

    assert chosen() != good
    monkeypatch.setenv("DIAGNOSER_CHECKPOINT", good)
    monkeypatch.setenv("DIAGNOSER_CHECKPOINT_STEP", "10")
    monkeypatch.setenv("DIAGNOSER_SKIP_TO", "25")
    assert chosen() == good
    went_on = saved(tmp_path, 15)
    assert chosen() == went_on
    monkeypatch.setenv("DIAGNOSER_SKIP_TO", "35")
    assert chosen() == good


def test_a_planned_checkpoint_is_read_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is damaged meanwhile, an earlier one is used, and the command says so; never a newer one. Where there is
    none, nothing is: starting over would be worse."""
    earlier, planned = saved(tmp_path, 5), saved(tmp_path, 10)
    saved(tmp_path, 20)
    monkeypatch.setenv("DIAGNOSER_CHECKPOINT", Path(planned).name)
    assert command("resume", tmp_path) == 0
    assert capsys.readouterr() == (planned + "\n", "")
    (Path(planned) / "model.bin").write_bytes(b"Weights" * 1000)
    assert command("resume", tmp_path) == 0
    shown = capsys.readouterr()
    assert shown.out == earlier + "\n"
    assert f"goes on from {earlier}" in shown.err
    (Path(earlier) / "model.bin").unlink()
    assert command("resume", tmp_path) == 1
    assert "neither it nor an earlier one verifies" in capsys.readouterr().err
    with pytest.raises(NoCheckpoint):
        resume(str(tmp_path))


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    """A path out of the directory is damage, whatever its checksum."""
    path = saved(tmp_path, 1)
    (tmp_path / "outside").write_text("x")
    manifest = read_manifest(path, 0)
    outside = tuple(file_sums(path, ["../outside"]))
    write_manifest(path, replace(manifest, files=outside))
    write_completion(path, manifest.run, {0: manifest}, 0.0)
    assert "../outside" in verify(path).why


@pytest.mark.parametrize(
    ("field", "value"), [("completed", "x"), ("completed", 1e300), ("size", "x"), ("loss", "x"), ("step", "x")]
)
def test_a_completion_with_a_field_of_another_form_is_one_bad_checkpoint_among_good_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    """Sealed by another program, it stopped the commands for all others."""
    good, bad = saved(tmp_path, 10), saved(tmp_path, 20)
    file = Path(bad) / COMPLETE
    body = json.loads(file.read_bytes())
    del body["sha256"]
    (body["about"] if field in body["about"] else body)[field] = value
    body["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(body))
    assert command("list", tmp_path) == 0
    assert re.search(rf"damaged +{re.escape(bad)}", capsys.readouterr().out)
    chosen = latest(str(tmp_path))
    assert chosen is not None
    assert chosen.path == good


def test_pruning_never_takes_the_last_that_verify(tmp_path: Path) -> None:
    """What is damaged does not count as kept; with too few, nothing goes; what is incomplete stays."""
    paths = [saved(tmp_path, step) for step in range(1, 6)]
    (Path(paths[4]) / "model.bin").write_bytes(b"weighty" * 1000)
    (Path(paths[0]) / COMPLETE).unlink()
    kept, old = prunable(str(tmp_path), 2)
    assert ([found.path for found in kept], [found.path for found in old]) == ([paths[3], paths[2]], [paths[1]])
    assert prunable(str(tmp_path), 4)[1] == []
    (Path(paths[1]) / "notes.txt").write_text("a person's")
    remove(old[0])
    assert not (Path(paths[1]) / "model.bin").exists() or not (Path(paths[1]) / COMPLETE).exists()
    assert [Path(path).exists() for path in paths] == [True, False, True, True, True]


def test_pruning_keeps_what_a_launch_went_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer ones that it left behind are no reason for the older ones to go."""
    paths = [saved(tmp_path, step) for step in (100, 200, 300, 400)]
    monkeypatch.setenv("DIAGNOSER_CHECKPOINT", Path(paths[1]).name)
    monkeypatch.setenv("DIAGNOSER_SKIP_FROM", "250")
    Checkpointer(tmp_path).close()
    kept, old = prunable(str(tmp_path), 2)
    assert ([found.path for found in kept], old) == ([paths[1], paths[0]], [])


def test_the_service_hears_each_phase(tmp_path: Path, receiver: Receiver) -> None:
    """staged, durable and verified, with step, path, blocked time and bytes; bad with the reason."""
    reporter = Reporter(Service(receiver.url, TokenSource("secret")), "job-1", 2)
    with Checkpointer(tmp_path, reporter=reporter) as checkpointer:
        path = checkpointer.save(7, state, loss=1.5).result().path
        with pytest.raises(SaveFailed):
            checkpointer.save(8, lambda path: 1 / 0, background=True).result()
        assert reporter.flush(60)
    staged, durable, verified, _, bad = bodies(receiver)
    common = {"kind": "checkpoint", "attempt": 2, "step": 7, "path": path, "finite": True}
    assert staged.pop("blocked_ms") > 0
    assert staged == {**common, "phase": "staged"}
    assert durable == {**common, "phase": "durable", "bytes": 7000}
    assert verified == {**common, "phase": "verified", "bytes": 7000}
    assert (bad["phase"], bad["why"]) == ("bad", "ZeroDivisionError: division by zero")
    assert receiver.requests[0][0]["authorization"] == "Bearer secret"


def test_a_service_that_is_away_is_nothing_to_the_trainer(tmp_path: Path) -> None:
    """Events wait within a bound, in their order, and the oldest go."""
    warnings: list[str] = []
    reporter = Reporter(Service("http://127.0.0.1:9", TokenSource()), "job-1", None, warnings.append)
    for step in range(1000):
        reporter.report({"step": step})
    assert not reporter.flush(0.2)
    with Checkpointer(tmp_path, reporter=reporter) as checkpointer:
        assert checkpointer.save(1, state).result().state is State.VERIFIED


def test_an_event_is_sent_again_and_a_refused_event_is_not(receiver: Receiver) -> None:
    """503 passes; 422 does not, and those behind it go on."""
    receiver.script = [(503, {}), (422, {}), (204, {})]
    warnings: list[str] = []
    reporter = Reporter(Service(receiver.url, TokenSource()), "job-1", None, warnings.append)
    reporter.report({"step": 1})
    reporter.report({"step": 2})
    assert reporter.flush(60)
    assert [body["step"] for body in bodies(receiver)] == [1, 1, 2]
    assert len(warnings) == 2


def test_the_job_is_found_as_the_client_finds_it() -> None:
    """DIAGNOSER_URL and what the launcher says; without a job's name nothing is reported."""
    url = {"DIAGNOSER_URL": "http://127.0.0.1:1"}
    found = Reporter.from_environment({**url, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"})
    assert found is not None
    assert (found.job, found.attempt) == ("slurm-cluster-17", 3)
    assert Reporter.from_environment(url) is None
    assert Reporter.from_environment({"SLURM_JOB_ID": "17"}) is None


@pytest.mark.parametrize("name", [COMPLETE, MANIFEST.format(0), "../launch-00001.json"])
def test_what_waits_for_a_writer_holds_nobody_up(name: str, tmp_path: Path) -> None:
    """A FIFO in place of a file is none; nor does a launch with a very high number stop those that follow."""
    for step in (1, 2):
        with Checkpointer(tmp_path) as checkpointer:
            newest = Path(checkpointer.save(step, lambda folder: Path(folder, "w").write_text("w")).result().path)
        tmp_path.joinpath("launch-999999999.json").write_text("{}")
    path = newest / name
    path.unlink()
    os.mkfifo(path)
    found = latest(str(tmp_path))
    assert found is not None and found.about is not None
    assert found.about.step == 1 + name.startswith("..")


def test_of_jobs_that_share_a_folder_each_goes_on_from_its_own(tmp_path: Path, receiver: Receiver) -> None:
    """One that has saved nothing goes on from the newest of all."""
    for job, step in (("a", 1000), ("b", 5)):
        reporter = Reporter(Service(receiver.url, TokenSource(""), 5.0), job)
        with Checkpointer(tmp_path, run=job, reporter=reporter) as checkpointer:
            checkpointer.save(step, lambda folder: Path(folder, "w").write_text("w")).result()
    chosen = [resume(str(tmp_path), {"DIAGNOSER_JOB": job}) for job in "abc"]
    assert [found.about.step for found in chosen if found and found.about] == [1000, 5, 5]


def test_many_ranks_must_agree_on_what_the_launch_is_called(tmp_path: Path) -> None:
    """A launcher's variables say it; without any, its owner must."""
    with pytest.raises(ValueError, match="name the run"):
        Checkpointer(tmp_path, rank=1, ranks=2)
    with pytest.raises(ValueError, match="name both"):
        Checkpointer(tmp_path, rank=2)


def test_a_rank_finds_its_place_in_the_launcher_s_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's first; a restart is another run."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    first = Checkpointer(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second = Checkpointer(tmp_path)
    assert (first.rank, first.ranks) == (3, 8)
    assert first.run != second.run


LOOP = """
import math, os, signal, sys
from pathlib import Path
from diagnoser.client.checkpoints import Checkpointer, JustInTime
what = sys.argv[2]
if what == "chained":
    signal.signal(signal.SIGTERM, lambda number, frame: print("handled", flush=True))
def save(path):
    (Path(path) / "model.bin").write_bytes(b"weights")
with Checkpointer(sys.argv[1]) as checkpointer, JustInTime(checkpointer, save) as guard:
    for step in range(5):
        if step == 3 and what == "peer":
            raise ConnectionResetError("peer")
        guard.updating()
        if step == 3 and what == "torn":
            raise ConnectionResetError("peer")
        if step == 3 and what != "peer":
            os.kill(os.getpid(), signal.SIGTERM)
        guard.finished(step, math.nan if what == "nan" else 1.0)
    print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("what", "code", "step", "output"),
    [
        ("default", -signal.SIGTERM, 3, ""),
        ("chained", 0, 3, "handled\nwent on\n"),
        ("nan", -signal.SIGTERM, None, ""),
        ("peer", 1, 2, ""),
        ("torn", 1, None, ""),
    ],
)
def test_a_last_save(tmp_path: Path, what: str, code: int, step: int | None, output: str) -> None:
    """On SIGTERM and on an exception, if the loss is finite and no update was cut off; the end is as without us."""
    words = [sys.executable, "-S", "-c", LOOP, str(tmp_path), what]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, output), ended.stderr
    found = latest(str(tmp_path))
    assert (found.completion.about.step if found and found.completion else None) == step
    assert found is None or (found.completion is not None and found.completion.about.just_in_time)


def test_of_ranks_with_the_same_state_one_saves_it(tmp_path: Path) -> None:
    """The first that comes; the others do not write beside it."""
    for rank in range(2):
        with Checkpointer(tmp_path, rank=rank, ranks=2, run="r") as checkpointer:
            guard = JustInTime(checkpointer, state)
            with pytest.raises(ConnectionResetError), guard:
                guard.updating()
                guard.finished(9, 1.0)
                raise ConnectionResetError
    (found,) = find(str(tmp_path))
    assert found.completion is not None
    assert (found.completion.about.ranks, found.completion.about.just_in_time) == (1, True)


def test_the_command_s_exit_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """0 verified or found, 1 damaged or none, 2 no such folder or one that holds many, 3 not complete."""
    assert command("latest", tmp_path, "--verified") == 1
    assert command("list", tmp_path) == 0
    assert "holds no checkpoint" in capfd.readouterr().err
    assert command("verify", tmp_path) == 3
    good = saved(tmp_path, 5)
    assert command("verify", good) == 0
    for path, why in (
        (tmp_path, f"name one, {good}"),
        (tmp_path / "none", "does not exist"),
        (Path(good) / "model.bin", "is a file"),
    ):
        assert command("verify", path) == 2
        assert why in capfd.readouterr().err
    assert command("latest", tmp_path, "--verified") == 0
    assert capfd.readouterr().out == good + "\n"
    assert command("latest", tmp_path, "--before", "5") == 1
    os.truncate(Path(good) / "model.bin", 1)
    assert command("verify", good) == 1
    assert "1 bytes, 7,000 were written" in capfd.readouterr().out


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An object for verify and latest, a list for list; null where there is none."""
    good = saved(tmp_path, 5, 2.5)
    command("verify", good, "--json")
    command("latest", tmp_path, "--json")
    command("latest", tmp_path, "--before", "1", "--json")
    command("list", tmp_path, "--json")
    verified, newest, none, (listed,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (verified["state"], newest["state"], none, listed["state"]) == ("verified", "complete", None, "complete")
    assert (newest["path"], newest["step"], newest["loss"], newest["bytes"]) == (good, 5, 2.5, 7000)


def test_the_command_removes_only_what_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --delete it names what may go."""
    paths = [saved(tmp_path, step) for step in (1, 2)]
    assert command("prune", tmp_path, "--keep", "1") == 0
    assert f"may go   {paths[0]}" in capsys.readouterr().out
    assert Path(paths[0]).exists()
    assert command("prune", tmp_path, "--keep", "1", "--delete") == 0
    assert not Path(paths[0]).exists()
    assert verify(paths[1]).state is State.VERIFIED


def test_the_command_reports_to_the_service(tmp_path: Path, receiver: Receiver) -> None:
    """To the job that the checkpoint names, or that a person does."""
    good = saved(tmp_path, 5)
    words = ["verify", good, "--report", "--server", receiver.url]
    assert command(*words) == 2
    assert command(*words, "--job", "job-1") == 0
    os.truncate(Path(good) / "model.bin", 1)
    assert command(*words, "--job", "job-1") == 1
    verified, bad = bodies(receiver)
    assert (verified["phase"], verified["bytes"], bad["phase"]) == ("verified", 7000, "bad")
    assert bad["why"] == "model.bin: 1 bytes, 7,000 were written"


def test_the_examples_of_the_page_are_python() -> None:
    """Each compiles, also for Python 3.8. The first is run with real torch in another test."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text("utf-8"), re.DOTALL)
    assert len(examples) == 5
    for example in examples:
        ast.parse(example, feature_version=(3, 8))


def test_ranks_are_killed_while_they_save(tmp_path: Path) -> None:
    """What verifies afterwards is what was saved, byte for byte (long: ``python -m tests.checkpoint_kills``)."""
    counts = kills(tmp_path, 6)
    assert counts["bad checkpoints chosen"] == 0


def test_file_limits_are_as_before() -> None:
    """The test of the full disk limits its own processes only."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] in (resource.RLIM_INFINITY, -1)


# --- the newest good checkpoint, whatever clocks, savers and the service do ---


def _relaunched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *steps: int, plan: tuple[str, int, int] | None
) -> list[str]:
    """Save these steps in a launch of its own. plan: (checkpoint, its step, first step to skip) of a way back."""
    names = ("CHECKPOINT", "CHECKPOINT_STEP", "SKIP_FROM")
    for name, value in zip(names, plan or ("", "", ""), strict=True):
        monkeypatch.setenv("DIAGNOSER_" + name, str(value))
    with Checkpointer(folder) as checkpointer:
        return [checkpointer.save(step, state, loss=1.0).result().path for step in steps]


def test_the_order_of_launches_counts_and_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch on a node whose clock is 20 minutes behind saves the newest checkpoint all the same."""
    _relaunched(tmp_path, monkeypatch, 100, plan=None)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1200)
    [path] = _relaunched(tmp_path, monkeypatch, 200, plan=None)
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.path == path


def test_what_a_way_back_left_behind_is_never_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss broke at step 150, a launch went back to 100 and saved nothing: 200 holds the damage. What that
    launch saves itself stays good when the scheduler repeats it with the same variables."""
    first, _, _ = _relaunched(tmp_path, monkeypatch, 100, 200, 300, plan=None)
    plan = (first, 100, 150)
    _relaunched(tmp_path, monkeypatch, plan=plan)
    _relaunched(tmp_path, monkeypatch, plan=None)
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.path == first
    [later] = _relaunched(tmp_path, monkeypatch, 180, plan=plan)
    _relaunched(tmp_path, monkeypatch, plan=plan)
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.path == later


def cut(path: str) -> None:
    with zipfile.ZipFile(Path(path) / "model.pt", "w") as archive:
        archive.writestr("data", b"w" * 1000)
    os.truncate(Path(path) / "model.pt", 900)


def short_safetensors(path: str) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [250], "data_offsets": [0, 1000]}}).encode()
    (Path(path) / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"w" * 999)


def nothing(path: str) -> None:
    (Path(path) / "model.bin").touch()


@pytest.mark.parametrize(
    ("save", "why"),
    [
        (nothing, "the save wrote nothing"),
        (cut, "the save was cut off"),
        (short_safetensors, "its tensors need"),
    ],
)
def test_a_checkpoint_that_was_bad_when_it_was_written_never_counts(tmp_path: Path, save: Any, why: str) -> None:
    """Its checksums would hold, as they are those of what was written: the format says that something is missing."""
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(SaveFailed, match=why):
        checkpointer.save(1, save, loss=1.0).result()
    assert latest(str(tmp_path), verified=False) is None


def test_reports_outlive_the_process_that_made_them(tmp_path: Path, receiver: Receiver) -> None:
    """The service was away until a trainer ended: the next launch sends what it could not, and removes the file."""
    away = Reporter(Service("http://127.0.0.1:9", TokenSource()), "job-1", 1)
    with Checkpointer(tmp_path, reporter=away) as checkpointer:
        path = checkpointer.save(1, state, loss=1.0).result().path
    assert unreported(str(tmp_path)) == {path}
    there = Reporter(Service(receiver.url, TokenSource()), "job-1", 2)
    with Checkpointer(tmp_path, reporter=there):
        assert there.flush(60)
    assert [(body["attempt"], body["phase"], body["path"]) for body in bodies(receiver)][-1] == (1, "verified", path)
    assert unreported(str(tmp_path)) == set()


def test_the_parent_sends_what_its_trainer_could_not(tmp_path: Path, receiver: Receiver) -> None:
    """`diagnoser run` learns where the reports are, and sends the last phase of each checkpoint once."""
    listing, spool = tmp_path / "listing", ReportSpool(str(tmp_path), "a")
    phases = [{"step": 1, "path": "/c/1", "phase": phase} for phase in ("staged", "durable", "verified")]
    for number, event in enumerate(phases):
        spool.append(PendingReport("job-1", 1, 100.0 + number, event))
    listing.write_text(spool.path + "\n/etc/passwd\n")
    assert deliver(str(listing), Service("http://127.0.0.1:9", TokenSource()), 60) == 1
    assert deliver(str(listing), Service(receiver.url, TokenSource()), 60) == 0
    [body] = bodies(receiver)
    assert (body["phase"], body["time"]) == ("verified", 102.0)
    assert not Path(spool.path).exists()


def test_the_parent_sends_what_a_short_launch_took_over(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that fails within seconds, on a busy machine, has not sent what the launch before it left."""
    ReportSpool(str(tmp_path), "a").append(PendingReport("job-1", 1, 100.0, {"step": 1, "path": "/c/1"}))
    listing = tmp_path / "listing"
    monkeypatch.setenv("DIAGNOSER_REPORTS", str(listing))
    away = Reporter(Service("http://127.0.0.1:9", TokenSource()), "job-1", 2)
    away.spool_to(ReportSpool(str(tmp_path), "b"), takes_over=True)
    assert deliver(str(listing), Service(receiver.url, TokenSource()), 60) == 0
    assert [body["path"] for body in bodies(receiver)] == ["/c/1"]


def test_a_newer_checkpoint_of_which_the_service_never_heard_goes_before_the_plan_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan goes back to 100, because the report of 200 was lost; its loss broke at 250. One that was reported, and
    that the plan did not choose, is not chosen here either."""
    first, second, third = _relaunched(tmp_path, monkeypatch, 100, 200, 300, plan=None)
    plan = {"DIAGNOSER_CHECKPOINT": first, "DIAGNOSER_CHECKPOINT_STEP": "100", "DIAGNOSER_SKIP_FROM": "250"}
    assert _resumed(tmp_path, plan) == first
    events = [{"step": step, "path": path, "phase": "verified"} for step, path in ((200, second), (300, third))]
    for event in events:
        ReportSpool(str(tmp_path), "a").append(PendingReport("job-1", 1, 1.0, event))
    assert _resumed(tmp_path, plan) == second


def test_two_processes_may_prune_one_folder(tmp_path: Path) -> None:
    """What the other one has removed already is no error."""
    with Checkpointer(tmp_path, reporter=None) as saver:
        for step in range(1, 5):
            saver.save(step, lambda path: (Path(path) / "weights").write_bytes(b"w")).result(60)
    _, old = prunable(str(tmp_path), 2)
    for found in [*old, *old]:
        remove(found)
    assert [found.about.step for found in find(str(tmp_path)) if found.about] == [4, 3]


def test_a_save_that_was_killed_is_pruned_a_day_later(tmp_path: Path) -> None:
    """By the clock of the file system alone; one that may still be written stays, and so does a framework's folder."""
    good = saved(tmp_path, 3)
    killed, writing, foreign = (
        tmp_path / name for name in ("step-0000000001-4f1c9a02", "step-0000000002-4f1c9a02", "checkpoint-500")
    )
    for folder in (killed, writing, foreign):
        folder.mkdir()
        (folder / "writer-00000.json").write_text("{}")
    for path in (killed, foreign, killed / "writer-00000.json", foreign / "writer-00000.json"):
        os.utime(path, (1e9, 1e9))
    kept, old = prunable(str(tmp_path), 1)
    assert ([found.path for found in kept], [found.path for found in old]) == ([good], [str(killed)])
    remove(old[0])
    assert not killed.exists()


def _resumed(folder: Path, environment: dict[str, str]) -> str:
    chosen = resume(str(folder), environment)
    assert chosen is not None
    return chosen.path

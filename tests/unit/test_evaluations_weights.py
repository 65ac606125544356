"""Weights in shared memory: one copy, which goes when nobody reads it, however its readers ended."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from diagnoser.evaluations import weights as module
from diagnoser.evaluations.weights import CopyLimits, sweep, weights

READER = """
import sys, time
from diagnoser.evaluations.weights import CopyLimits, weights
with weights(sys.argv[1], CopyLimits(sys.argv[2], 0.0, float(sys.argv[3]))) as found:
    print(found.path, found.reason, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step-1000"
    (folder / "shards").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "shards" / "1.bin").write_bytes(bytes(range(256)) * 5000)
    (folder / "empty").touch()
    return folder


@pytest.fixture
def limits(tmp_path: Path) -> CopyLimits:
    return CopyLimits(str(tmp_path / "memory"), 0.0)


def left(limits: CopyLimits) -> set[str]:
    """What there is, but for the lock by which space is given."""
    return {path.suffix for path in Path(limits.folder).iterdir() if path.name != "space.lock"}


def test_a_folder_is_copied_once_and_read_by_all(checkpoint: Path, limits: CopyLimits) -> None:
    """Under its own name, with the same content; the second reader gets the same copy."""
    with weights(str(checkpoint), limits) as first, weights(str(checkpoint), limits) as second:
        assert first.path == second.path != str(checkpoint) and first.reason == ""
        copy = Path(first.path)
        assert copy.name == "step-1000" and (copy / "empty").read_bytes() == b""
        assert (copy / "shards/1.bin").read_bytes() == (checkpoint / "shards/1.bin").read_bytes()
        inode = (copy / "shards/1.bin").stat().st_ino
    with weights(str(checkpoint), limits) as third:
        assert Path(third.path, "shards/1.bin").stat().st_ino == inode, "it stays for the next reader"


def test_a_checkpoint_may_be_one_file(tmp_path: Path, limits: CopyLimits) -> None:
    """It is read as a file of the same name."""
    (tmp_path / "model.gguf").write_bytes(b"weights")
    with weights(str(tmp_path / "model.gguf"), limits) as found:
        assert Path(found.path).read_bytes() == b"weights" and Path(found.path).name == "model.gguf"


def test_a_copy_that_is_read_stays(checkpoint: Path, limits: CopyLimits) -> None:
    """It goes when its last reader has ended, after the time that it is kept."""
    with weights(str(checkpoint), limits) as found:
        assert sweep(limits.folder, 0.0) == [] and Path(found.path).is_dir()
    assert sweep(limits.folder) == [], "somebody may come soon"
    assert sweep(limits.folder, 0.0, ["another"]) == []
    assert sweep(limits.folder, 0.0, [str(checkpoint)]) == [str(checkpoint)]
    assert left(limits) == set()


def test_what_a_killed_run_left_goes_with_a_later_run(checkpoint: Path, tmp_path: Path, limits: CopyLimits) -> None:
    """Once nobody has read it for a while; the copies of the later run go at once."""
    (tmp_path / "next.bin").write_bytes(b"next")
    for left_behind in (checkpoint, tmp_path / "next.bin"):
        with weights(str(left_behind), limits):
            pass
    assert module.drop(limits.folder, [str(tmp_path / "next.bin")]) == [str(tmp_path / "next.bin")]
    (use,) = Path(limits.folder).glob("*.use")
    os.utime(use, (1, 1))
    assert module.drop(limits.folder, []) == [str(checkpoint)] and left(limits) == set()


def test_a_changed_checkpoint_is_another_one(checkpoint: Path, limits: CopyLimits) -> None:
    """A trainer that writes to the same path again does not get the old weights evaluated."""
    with weights(str(checkpoint), limits) as old:
        (checkpoint / "config.json").write_text('{"layers": 2}')
        with weights(str(checkpoint), limits) as new:
            assert new.path != old.path and Path(new.path, "config.json").read_text() == '{"layers": 2}'


@contextmanager
def reading(checkpoint: Path, limits: CopyLimits, rate: float = 0.0) -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-c", READER, str(checkpoint), limits.folder, str(rate)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_is_killed_holds_nothing(checkpoint: Path, limits: CopyLimits) -> None:
    """The kernel takes its lock back, and its copy can go."""
    with reading(checkpoint, limits) as process:
        assert process.stdout is not None and limits.folder in process.stdout.readline()
        assert sweep(limits.folder, 0.0) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert sweep(limits.folder, 0.0) == [str(checkpoint)] and left(limits) == set()


def test_a_copy_whose_maker_is_killed_is_made_anew(
    checkpoint: Path, limits: CopyLimits, until: Callable[[Callable[[], bool]], None]
) -> None:
    """Half of a checkpoint is never read; what is left of it goes with the next sweep, too."""
    for makes in (True, False):
        with reading(checkpoint, limits, rate=1000.0) as process:
            until(lambda: any(Path(limits.folder).glob("*/step-1000/shards/1.bin")))
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert left(limits) >= {".lock", ""}
        if makes:
            with weights(str(checkpoint), limits) as found:
                assert found.reason == ""
                assert Path(found.path, "shards/1.bin").stat().st_size == 256 * 5000
        sweep(limits.folder, 0.0)
        assert left(limits) == set()


def test_what_has_no_room_is_read_where_it_is(checkpoint: Path, limits: CopyLimits) -> None:
    """The original path, with the reason; nothing is left behind."""
    with weights(str(checkpoint), CopyLimits(limits.folder, reserve=1.0)) as found:
        assert found.path == str(checkpoint) and "of memory may be taken" in found.reason and found.fd == -1
    sweep(limits.folder, 0.0)
    assert left(limits) == set()


def test_old_copies_make_room(
    checkpoint: Path, tmp_path: Path, limits: CopyLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody reads goes before a new one is refused; one that is read stays."""
    (tmp_path / "next.bin").write_bytes(b"next")
    monkeypatch.setattr(
        module, "free_memory", lambda folder, reserve: 0 if any(folder.glob("*/step-1000")) else 1 << 30
    )
    with weights(str(checkpoint), limits), weights(str(tmp_path / "next.bin"), limits) as refused:
        assert refused.path == str(tmp_path / "next.bin")
    with weights(str(tmp_path / "next.bin"), limits) as found:
        assert found.reason == "" and not any(Path(limits.folder).glob("*/step-1000"))


def test_a_copy_that_differs_is_not_read(checkpoint: Path, limits: CopyLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is taken again from memory."""
    monkeypatch.setattr(module, "_checksum", lambda path: 1)
    with weights(str(checkpoint), limits) as found:
        assert found.path == str(checkpoint) and "differs" in found.reason
    assert not any(Path(limits.folder).glob("*/step-1000"))


def test_a_copy_that_lost_a_file_is_made_anew(checkpoint: Path, limits: CopyLimits) -> None:
    """Somebody who cleans up /dev/shm by hand does no harm."""
    with weights(str(checkpoint), limits) as found:
        Path(found.path, "shards/1.bin").unlink()
    with weights(str(checkpoint), limits) as found:
        assert Path(found.path, "shards/1.bin").is_file()


@pytest.mark.parametrize("named", ["", "meta-llama/Llama-3-8B", "/no/such/checkpoint"])
def test_what_is_no_path_is_left_to_the_engine(limits: CopyLimits, named: str) -> None:
    """A name of a model hub stays a name."""
    with weights(named, limits) as found:
        assert found.path == named and found.reason


def test_a_folder_of_others_is_not_used(checkpoint: Path, limits: CopyLimits) -> None:
    """Everybody may write to /dev/shm: who could change the weights there is not trusted."""
    Path(limits.folder).mkdir()
    Path(limits.folder).chmod(0o777)
    with weights(str(checkpoint), limits) as found:
        assert found.path == str(checkpoint) and "only this user" in found.reason
    Path(limits.folder).rmdir()
    Path(limits.folder).symlink_to(checkpoint)
    with weights(str(checkpoint), limits) as found:
        assert found.path == str(checkpoint) and "only this user" in found.reason


def test_many_at_once_make_one_copy(checkpoint: Path, limits: CopyLimits) -> None:
    """Whoever comes while it is made waits for it; sweeps in between do no harm."""
    found: list[tuple[str, bool]] = []

    def read() -> None:
        for _ in range(10):
            with weights(str(checkpoint), limits) as copy:
                found.append((copy.path, Path(copy.path, "shards/1.bin").stat().st_size == 256 * 5000))
            sweep(limits.folder, 0.0)

    threads = [threading.Thread(target=read) for _ in range(4)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
    assert len(found) == 40 and len(set(found)) == 1 and found[0][1]
    assert found[0][0].startswith(limits.folder)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    def wait(is_so: Callable[[], bool]) -> None:
        import time

        limit = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < limit, "it never came"
            time.sleep(0.01)

    return wait


def test_the_default_folder_is_the_users_own() -> None:
    """Two users of a node do not meet."""
    assert module.default_folder().endswith(str(os.getuid()))

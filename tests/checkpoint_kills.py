"""Kills ranks with SIGKILL while they save, damages what they saved, and checks what would be chosen afterwards.

python -m tests.checkpoint_kills [RUNS]
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from diagnoser.client.checkpoints import Verification, find, latest, verify
from diagnoser.client.checkpoints.manifest import COMPLETE
from diagnoser.client.checkpoints.verification import State, prunable, remove
from tests.checkpoint_trainer import content, names_of

ROOT = Path(__file__).resolve().parents[1]
RUNS = 200
RANKS = 2
KEPT = 3
PHASES = (
    ("claims the directory", ("mkdir step-", "open writer-")),
    ("writes its files", ("mkdir", "open __", "open .metadata", "open config", "write ")),
    ("sums its files or reads them again", ("sync __", "sync .metadata", "sync config", "read ")),
    ("syncs folders", ("sync step-", "sync checkpoints", "sync extra")),
    ("writes its manifest", ("open manifest", "sync manifest", "rename manifest")),
    ("writes COMPLETE.json", ("open COMPLETE", "sync COMPLETE", "rename COMPLETE")),
)
"""What a rank is about, and the operations of it."""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a process that is killed loses no page of the kernel's
    with tempfile.TemporaryDirectory(prefix="diagnoser-kills-", dir=memory) as name:
        counts = kills(Path(name), runs)
    for what, count in sorted(counts.items()):
        sys.stdout.write(f"{count:5d}  {what}\n")


def kills(folder: Path, runs: int) -> Counter[str]:
    """How many ranks were killed in each phase, and what was damaged. Raises AssertionError when a checkpoint that is
    not what was saved would be chosen, or when what was verified is lost."""
    chance = random.Random(18)
    counts: Counter[str] = Counter()
    operations = [_operations(folder / "dry", rank) for rank in range(RANKS)]
    root = folder / "checkpoints"
    killed = number = 0
    while killed < runs:
        number, rank = number + 1, chance.randrange(RANKS)
        before = latest(str(root)) if root.exists() else None
        killed_at = _run(root, f"run-{number}", before, rank, chance.randint(1, operations[rank]), chance)
        killed += bool(phase := _phase(killed_at))
        counts[f"rank {rank} killed as it {phase}" if phase else "not reached, as the other rank came late"] += 1
        after = check(root)
        assert before is None or (after is not None and _completed(after) >= _completed(before)), (number, before)
        if after is not None and number % 2:
            counts[_damage(root, after, chance)] += 1
            check(root)
        for old in prunable(str(root), KEPT)[1]:
            remove(old)
    counts["bad checkpoints chosen"] = 0
    return counts


def check(root: Path) -> Verification | None:
    """The checkpoint that would be chosen. Every one that verifies is what was saved, byte for byte."""
    for found in find(str(root)) if root.exists() else []:
        read = verify(found.path)
        if read.state is State.VERIFIED:
            assert is_as_saved(read), read
    chosen = latest(str(root))
    assert chosen is None or is_as_saved(chosen), chosen
    return chosen


def is_as_saved(found: Verification) -> bool:
    assert found.completion is not None
    run, step, ranks = found.completion.run, found.completion.about.step, found.completion.about.ranks
    names = [name for rank in range(ranks) for name in names_of(rank)]
    paths = [Path(found.path) / name for name in names]
    return all(path.read_bytes() == content(run, step, name) for path, name in zip(paths, names, strict=True))


def start(root: Path, run: str, rank: int, first: int, kill_at: int = 0, ranks: int = RANKS) -> subprocess.Popen[bytes]:
    words = [str(root), run, *map(str, (rank, ranks, first, kill_at))]
    command = [sys.executable, "-S", "-m", "tests.checkpoint_trainer", *words]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _operations(root: Path, rank: int) -> int:
    """How many a rank does when nothing happens."""
    ranks = [start(root / str(rank), "dry", each, 1) for each in range(RANKS)]
    outputs = [process.communicate()[0] for process in ranks]
    return int(outputs[rank].split()[-1])


def _run(root: Path, run: str, before: Verification | None, rank: int, kill_at: int, chance: random.Random) -> str:
    """What the rank was about to do. The other rank is killed, too, or left alone."""
    first = before.completion.about.step + 1 if before and before.completion else 1
    ranks = [start(root, run, each, first, kill_at if each == rank else 0) for each in range(RANKS)]
    output = ranks[rank].communicate()[0].decode()
    if chance.random() < 0.5:
        time.sleep(chance.random() / 20)
        ranks[1 - rank].kill()
    ranks[1 - rank].communicate()
    return output.strip()


def _phase(operation: str) -> str:
    """ "" where the rank has ended by itself."""
    return next((phase for phase, starts in PHASES if operation.startswith(starts)), "")


def _damage(root: Path, found: Verification, chance: random.Random) -> str:
    what, damage = chance.choice(sorted(DAMAGES.items()))
    copy = root / f"{Path(found.path).name}-damaged"
    shutil.copytree(found.path, copy)
    shutil.move(found.path, root.parent / "original")
    damage(copy, chance)
    read = verify(str(copy))
    assert read.state in (State.DAMAGED, State.INCOMPLETE), (what, read)
    chosen = check(root)
    assert chosen is None or chosen.path != str(copy), what
    shutil.rmtree(copy)
    shutil.move(root.parent / "original", found.path)
    return f"damaged: {what}"


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _a_file(path: Path, chance: random.Random) -> Path:
    return path / chance.choice([name for rank in range(RANKS) for name in names_of(rank)])


def _truncate(path: Path, chance: random.Random) -> None:
    file = _a_file(path, chance)
    os.truncate(file, chance.randrange(file.stat().st_size))


def _lose_rank(path: Path) -> None:
    for name in ("__1_0.distcp", "manifest-00001.json"):
        (path / name).unlink()


def _swap(path: Path, chance: random.Random) -> None:
    first, second = (path / f"__{rank}_0.distcp" for rank in range(2))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "a bit of a file": lambda path, chance: _flip(_a_file(path, chance), chance),
    "a bit of COMPLETE.json": lambda path, chance: _flip(path / COMPLETE, chance),
    "a bit of a manifest": lambda path, chance: _flip(path / f"manifest-{chance.randrange(RANKS):05d}.json", chance),
    "a file cut short": _truncate,
    "a file missing": lambda path, chance: _a_file(path, chance).unlink(),
    "a rank missing": lambda path, chance: _lose_rank(path),
    "files of two ranks exchanged": _swap,
}  # fmt: skip


def _completed(found: Verification) -> float:
    return found.completion.completed if found.completion else 0.0


if __name__ == "__main__":
    main()

"""Reads checkpoints again: which of a folder's are there, whether they are what was written, and which is the newest.

"Newest" is saved last, by the order of launches and of the saves within one (``lineage``): a run that went back to an
earlier step writes lower steps than those that it left, and clocks of nodes differ.
"""

from __future__ import annotations

import math
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Callable, Iterable, Iterator, Mapping, Sequence

from diagnoser.client.checkpoints import manifest as manifests
from diagnoser.client.checkpoints.checksums import PIECE_BYTES, FileSum, piece_sums
from diagnoser.client.checkpoints.contents import Defect, find_defects
from diagnoser.client.checkpoints.lineage import is_abandoned, read_launches
from diagnoser.client.checkpoints.manifest import About, Completion, NotWhole
from diagnoser.client.checkpoints.report_spool import unreported
from diagnoser.client.launch import Options, launch_of

THREADS = 4
KILLED_SECONDS = 86400.0
"""From which age on a save without an end was killed."""
DEEPEST = 3
"""Folders below the folder that is searched."""


class NoCheckpoint(Exception):
    """There is nothing that the launch may go on from."""


class State(str, Enum):
    """incomplete: COMPLETE.json is not there. damaged: something is not what was written. complete: every file is there
    with its size. verified: and every checksum holds."""

    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    COMPLETE = "complete"
    VERIFIED = "verified"


@dataclass(frozen=True)
class Verification:
    """completion: None when COMPLETE.json is missing or damaged. unlisted: files that no manifest names."""

    path: str
    state: State
    faults: tuple[Defect, ...] = ()
    completion: Completion | None = None
    unlisted: tuple[str, ...] = ()

    @property
    def about(self) -> About | None:
        """Say what the checkpoint is of; None when COMPLETE.json is missing or damaged."""
        if self.completion is None:
            return None
        return self.completion.about

    @property
    def why(self) -> str:
        return "; ".join(map(str, self.faults[:3]))

    @property
    def healthy_about(self) -> About | None:
        """What it is of, unless its loss is known not to be finite."""
        if self.about is None:
            return None
        if self.about.finite is False:
            return None
        return self.about

    @property
    def is_choosable(self) -> bool:
        """Whether a run may go on from it: a loss that is not finite never, and a just-in-time save only when read."""
        about = self.healthy_about
        if about is None:
            return False
        if about.just_in_time:
            return self.state is State.VERIFIED
        return self.state in (State.COMPLETE, State.VERIFIED)


Progress = Callable[[int, int], None]
"""Bytes that were read, of how many."""


def inspect(path: str) -> Verification:
    """The state by names and sizes alone; no file of the checkpoint is read."""
    try:
        completion = manifests.read_completion(path)
    except NotWhole as error:
        state = State.INCOMPLETE
        if os.path.lexists(os.path.join(path, manifests.COMPLETE)):
            state = State.DAMAGED
        return Verification(path, state, (error.defect,))
    files, faults = _files(path, completion)
    faults += filter(None, [_by_size(path, file) for file in files])
    if completion.size == 0:
        faults.append(Defect(manifests.COMPLETE, "the save wrote nothing"))
    listed = {file.name for file in files}
    unlisted = tuple(name for name in manifests.data_files(path) if name not in listed)
    return Verification(path, _state(faults, State.COMPLETE), tuple(faults), completion, unlisted)


def _state(faults: Sequence[Defect], sound: State) -> State:
    """The state that a checkpoint has been found in. sound: without a fault."""
    if faults:
        return State.DAMAGED
    return sound


def verify(path: str, threads: int = THREADS, progress: Progress = lambda read, size: None) -> Verification:
    """Reads every file, from the disk where the kernel lets go of what it holds in memory. progress: called from
    several threads."""
    found = inspect(path)
    if found.state is not State.COMPLETE:
        return found
    if found.completion is None:
        return found
    files, _ = _files(path, found.completion)
    done, size = [0], sum(file.size for file in files)

    def advance(read: int) -> None:
        done[0] += read
        progress(done[0], size)

    try:
        sums = piece_sums(
            [(os.path.join(path, file.name), file.size) for file in files], threads, advance, from_disk=True
        )
    except OSError as error:
        fault = Defect(os.path.relpath(error.filename or path, path), "it cannot be read: {}".format(error.strerror))
        return Verification(path, State.DAMAGED, (fault,), found.completion, found.unlisted)
    faults = [_by_sum(file, pieces) for file, pieces in zip(files, sums) if file.pieces != pieces]
    faults += find_defects(path, [file.name for file in files])
    return Verification(path, _state(faults, State.VERIFIED), tuple(faults), found.completion, found.unlisted)


def find(folder: str) -> list[Verification]:
    """Every checkpoint in a folder, and each directory where a save was started, the newest first."""
    found = list(map(inspect, _candidates(folder)))
    return sorted(found, key=_age, reverse=True)


def latest(
    folder: str,
    before: int | None = None,
    *,
    verified: bool = True,
    threads: int = THREADS,
    progress: Progress = lambda read, size: None,
) -> Verification | None:
    """The newest that a run may go on from. before: step that it must not reach. verified: all checksums hold, which
    reads it, and those that turn out to be damaged."""
    found = _on_the_way(folder)
    if before is not None:
        found = [each for each in found if _step(each) < before]
    return _choose(found, verified, threads, progress)


def resume(
    folder: str,
    environment: Mapping[str, str] = os.environ,
    *,
    threads: int = THREADS,
    progress: Progress = lambda read, size: None,
) -> Verification | None:
    """Choose the checkpoint that this launch goes on from; what is chosen is read first. Without a recovery plan that
    goes back, the newest verified one, the job's own before others'; None where there is none. With one, the first that
    verifies of

    1. what was saved since this way back,
    2. newer ones than the plan's from before the steps to skip, where their reports never reached the service,
    3. the one that the plan names,
    4. those of earlier steps, the newest first.

    Raises NoCheckpoint where a plan names one and nothing can be used: starting over must not happen by mistake.
    """
    named, back = environment.get("DIAGNOSER_CHECKPOINT", ""), manifests.rollback_of(environment)
    if not named:
        return _choose(_own_first(folder, environment), verified=True, threads=threads, progress=progress)
    found, target = _own_first(folder, environment), inspect(os.path.join(os.path.abspath(folder), named))
    since = [each for each in found if _rollback(each) == back]
    newer = _newer_and_unreported(folder, found, target, environment.get("DIAGNOSER_SKIP_FROM", ""))
    planned, step = environment.get("DIAGNOSER_CHECKPOINT_STEP", ""), _step(target)
    if planned.isdigit():
        step = int(planned)
    earlier = [each for each in found if _step(each) < step]
    chosen = _choose([*since, *newer, target, *earlier], verified=True, threads=threads, progress=progress)
    if chosen is None:
        raise NoCheckpoint("the plan goes back to {}, and neither it nor an earlier one verifies".format(named))
    return chosen


def _on_the_way(folder: str) -> list[Verification]:
    """Every checkpoint, the newest first, without those that a later launch went back behind."""
    launches = read_launches(folder)
    return [found for found in find(folder) if found.about is None or not is_abandoned(found.about, launches)]


def _own_first(folder: str, environment: Mapping[str, str]) -> list[Verification]:
    """Those on the way; before the others those of this job, where several save into the folder."""
    job = launch_of(environment, Options(), "", "").job
    return sorted(_on_the_way(folder), key=lambda found: found.about is None or found.about.job != job)


def _newer_and_unreported(
    folder: str, found: Sequence[Verification], target: Verification, skip_from: str
) -> list[Verification]:
    """Checkpoints that the plan would have named, had the service heard of them.

    found: those on the way, the newest first.
    target: the one that the plan names.
    skip_from: first step to skip, as the plan's variable says it.
    """
    if not skip_from.isdigit():
        return []
    unknown = unreported(folder)
    fresh = [each for each in found if each.path in unknown and _age(each) > _age(target)]
    return [each for each in fresh if _step(each) < int(skip_from)]


def _choose(
    candidates: Iterable[Verification], verified: bool, threads: int, progress: Progress
) -> Verification | None:
    for found in candidates:
        if _must_be_read(found, verified):
            found = verify(found.path, threads, progress)
        if found.is_choosable:
            return found
    return None


def _must_be_read(found: Verification, verified: bool) -> bool:
    """Tell whether its checksums decide if a run may go on from it. verified: those of any; else of a last save."""
    about = found.healthy_about
    if found.state is not State.COMPLETE:
        return False
    if about is None:
        return False
    return verified or about.just_in_time


def prunable(folder: str, keep: int, threads: int = THREADS) -> tuple[list[Verification], list[Verification]]:
    """(those that stay, those that may go). ``keep`` that were verified now stay; only complete ones that are older
    than all of these may go, and none while there are fewer. Of what is incomplete only saves that were killed at least
    a day before the newest of these was completed may go: another may still be written."""
    kept = _newest_verified(folder, max(1, keep), threads)
    if len(kept) < max(1, keep):
        return kept, []
    oldest, newest = min(map(_age, kept)), max(_last_written(found.path) for found in kept)
    older, killed = [], []
    for found in find(folder):
        if found.state is State.COMPLETE and _age(found) < oldest:
            older.append(found)
        elif _was_killed(found, newest):
            killed.append(found)
    return kept, older + killed


def _newest_verified(folder: str, count: int, threads: int) -> list[Verification]:
    """Read the newest checkpoints that a launch may go on from until so many are whole; fewer where the folder has not
    as many. Those that a plan went back behind do not count: what it went back to must not go for them."""
    verified: list[Verification] = []
    for found in _on_the_way(folder):
        if len(verified) == count:
            break
        if found.state is State.COMPLETE:
            read = verify(found.path, threads)
            if read.state is State.VERIFIED and read.is_choosable:
                verified.append(read)
    return verified


def _was_killed(found: Verification, newest: float) -> bool:
    """Tell whether a save was given up long ago. newest: when the newest checkpoint was written, by the same file
    system's clock."""
    if found.state is not State.INCOMPLETE:
        return False
    if not manifests.OWN_DIRECTORY.match(os.path.basename(found.path)):
        return False  # a framework's directory, in which our files are missing and its own may be whole
    return newest - _last_written(found.path) > KILLED_SECONDS


def _last_written(path: str) -> float:
    times = [0.0]
    with suppress(OSError):  # another process removes it
        times.append(os.stat(path).st_mtime)
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                times.append(os.stat(os.path.join(folder, name)).st_mtime)
    return max(times)


def remove(found: Verification) -> None:
    """Remove the files that its manifests name, and ours; COMPLETE.json first, so that half of it never counts. A save
    that was killed goes as a whole."""
    if found.state is State.INCOMPLETE:
        while os.path.lexists(found.path):
            with suppress(FileNotFoundError):  # another process removes it, too
                shutil.rmtree(found.path)
        return
    if found.completion is None:
        return
    files, _ = _files(found.path, found.completion)
    try:
        os.unlink(os.path.join(found.path, manifests.COMPLETE))
    except FileNotFoundError:  # another process removes it
        return
    manifests.sync_folders(found.path)
    if not found.unlisted:
        shutil.rmtree(found.path)
        return
    for file in files:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(found.path, file.name))


def _files(path: str, completion: Completion) -> tuple[list[FileSum], list[Defect]]:
    files: list[FileSum] = []
    faults = []
    for rank, checksum in enumerate(completion.manifests):
        try:
            manifest = manifests.read_manifest(path, rank, checksum)
        except NotWhole as error:
            faults.append(error.defect)
            continue
        if (manifest.run, manifest.about.step) != (completion.run, completion.about.step):
            faults.append(Defect(manifests.MANIFEST.format(rank), "it is of another save"))
        files += manifest.files
    return files, faults


def _by_size(path: str, file: FileSum) -> Defect | None:
    try:
        size = os.stat(os.path.join(path, file.name)).st_size
    except FileNotFoundError:
        return Defect(file.name, "missing")
    except OSError as error:
        return Defect(file.name, str(error.strerror))
    if size == file.size:
        return None
    return Defect(file.name, "{:,} bytes, {:,} were written".format(size, file.size))


def _by_sum(file: FileSum, pieces: tuple[str, ...]) -> Defect:
    wrong = [number for number, (is_now, was) in enumerate(zip(pieces, file.pieces)) if is_now != was]
    first = min(wrong, default=0) * PIECE_BYTES
    last = min(file.size, first + PIECE_BYTES)
    why = "the checksum of {} of {} pieces differs, first in bytes {:,} to {:,}"
    return Defect(file.name, why.format(len(wrong), len(file.pieces), first, last))


def _candidates(folder: str) -> Iterator[str]:
    """Directories with a file of ours, the folder itself among them."""
    base = os.path.abspath(folder)
    for path, folders, names in os.walk(base):
        if any(map(manifests.OURS.match, names)):
            folders.clear()
            yield path
        elif path[len(base) :].count(os.sep) >= DEEPEST:
            folders.clear()


def _step(found: Verification) -> float:
    if found.completion is None:
        return math.inf
    return found.completion.about.step


def _rollback(found: Verification) -> str | None:
    """Name the way back of the launch that saved it."""
    if found.completion is None:
        return None
    return found.completion.about.rollback


def _age(found: Verification) -> tuple[int, int, float]:
    """Order by launch and save; by the clock only where neither is known."""
    if found.completion is None:
        return 0, 0, 0.0
    about = found.completion.about
    return about.launch, about.sequence, found.completion.completed

"""Saves checkpoints that can be trusted: some function writes the files, this writes down what they must hold.

The caller waits for the function, or for torch's staging, and for nothing else. One thread does the rest: it sums and
syncs this rank's files and writes its manifest; rank 0 waits for the manifests of all, writes COMPLETE.json and reads
everything again. Ranks meet in the file system and nowhere else, so that a rank that is gone holds up no collective.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import queue
import re
import secrets
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Mapping

from diagnoser.client.checkpoints import manifest as manifests
from diagnoser.client.checkpoints.checksums import file_sums
from diagnoser.client.checkpoints.contents import find_defects
from diagnoser.client.checkpoints.lineage import register_launch
from diagnoser.client.checkpoints.manifest import About, Manifest, NotWhole, TwoWriters, Writer
from diagnoser.client.checkpoints.report_spool import ReportSpool
from diagnoser.client.checkpoints.reporter import Reporter, checkpoint_event
from diagnoser.client.checkpoints.verification import State, Verification, inspect, verify

if TYPE_CHECKING:
    from typing import Union

    Directory = Union[str, os.PathLike[str]]

LAUNCH_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE", "DIAGNOSER_ATTEMPT",
)  # fmt: skip
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # the latter only within a step
)
WHY_LENGTH = 500
POLL_SECONDS = 0.05
SLOWEST_POLL_SECONDS = 2.0
RANKS_SECONDS = 1800.0
ENDING_SECONDS = 60.0
"""For ranks that may be gone, where this process ends: it must not hold its GPUs for them."""
FLUSH_SECONDS = 2.0
_SHARD = re.compile(r"__(\d+)_\d+\.distcp\Z")


class SaveFailed(Exception):
    """A checkpoint that was started will never count; the message says why."""


class PendingCheckpoint:
    """A save under way. path: its directory. blocked_ms: how long the caller was kept waiting."""

    def __init__(self, path: str, about: About) -> None:
        self.path, self.about = path, about
        self.blocked_ms = 0.0
        self.outcome: Future[Verification] = Future()

    def result(self, timeout: float | None = None) -> Verification:
        """Waits until this rank is done: rank 0 with everything, another with its own files. Raises SaveFailed,
        concurrent.futures.TimeoutError."""
        return self.outcome.result(timeout)


class Checkpointer:
    """Saves into directories of their own below ``folder``, which all ranks share.

    rank, ranks: as torchrun, Slurm and MPI say, else of one process; 0 and 1 where rank 0 alone saves for all. run:
    what the ranks of this launch share and no other launch has; made up where torch.distributed can pass it on, else
    from the launcher's variables. verify: rank 0 reads each checkpoint again; turn it off where ``diagnoser checkpoint
    verify`` runs elsewhere. parameters: of the run, kept with each checkpoint; JSON. threads: for checksums.
    ranks_seconds: how long rank 0 waits for the manifests of the others. Raises ValueError where ``run`` must be given.
    """

    def __init__(
        self,
        folder: Directory,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        run: str = "",
        verify: bool = True,
        reporter: Reporter | None = None,
        parameters: Mapping[str, Any] | None = None,
        threads: int = 1,
        ranks_seconds: float = RANKS_SECONDS,
    ) -> None:
        self.folder = os.path.abspath(folder)
        self.rank, self.ranks = _place(os.environ, rank, ranks)
        self.run = run or _run_of_launch(os.environ, self.ranks)
        self._writer = Writer.this(self.run)
        self._verify, self._threads, self._ranks_seconds = verify, threads, ranks_seconds
        self._reporter = reporter or Reporter.from_environment(warn=_warn)
        if self._reporter is not None:
            spool = ReportSpool(self.folder, "{}-{:05d}".format(_digest(self.run), self.rank))
            self._reporter.spool_to(spool, takes_over=self.rank == 0)
        self._launch = 0
        if self.rank == 0:
            self._launch = register_launch(self.folder, self.run, os.environ)
        self._sequence = 0
        self._parameters = json.loads(json.dumps(parameters))  # what no manifest can hold is refused here
        self._upload: Future[Any] | None = None
        self._group: Any = None
        self._stager: Any = None
        self._deadline = math.inf
        self._saves: dict[str, int] = {}
        self._pending: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close(self._ranks_seconds)
        else:
            self.close(ENDING_SECONDS)

    def save(
        self,
        step: int,
        save: Callable[[str], object],
        *,
        loss: float | None = None,
        background: bool = False,
        just_in_time: bool = False,
    ) -> PendingCheckpoint:
        """save: writes files into the directory that it is given; every rank of ``ranks`` must come here. background:
        in a thread, so that what it reads must not change meanwhile. Raises TwoWriters, and what ``save`` raises."""
        started = time.perf_counter()
        pending = self._begin(step, loss, just_in_time=just_in_time)
        if background:
            return self._staged(pending, started, lambda: save(pending.path))
        try:
            save(pending.path)
        except BaseException as error:
            self._report(pending, "bad", why=_line(error))
            raise
        return self._staged(pending, started, lambda: None)

    def async_save(
        self,
        step: int,
        state_dict: Mapping[str, Any],
        *,
        loss: float | None = None,
        process: bool = False,
        **options: Any,
    ) -> PendingCheckpoint:
        """``torch.distributed.checkpoint.async_save`` in a thread, or a process; options go there. Waits for the upload
        before this one, as torch asks for, and then copies into the same buffers. Ranks talk in a gloo group of their
        own, which the first call makes. Raises TwoWriters, and what torch raises."""
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        started = time.perf_counter()
        if self._upload is not None:
            with suppress(Exception):  # its own save has reported it
                self._upload.result()
        pending = self._begin(step, loss)
        options.setdefault("process_group", self._own_group())
        kind = AsyncCheckpointerType.THREAD
        if process:
            kind = AsyncCheckpointerType.PROCESS
        elif "storage_writer" not in options and self._buffers() is not None:  # a writer may bring its own
            options.setdefault("async_stager", self._buffers())
        try:
            response = dcp.async_save(
                dict(state_dict), checkpoint_id=pending.path, async_checkpointer_type=kind, **options
            )
        except BaseException as error:
            self._report(pending, "bad", why=_line(error))
            raise
        self._upload = upload = getattr(response, "upload_completion", response)
        return self._staged(pending, started, upload.result)

    def seal(self, path: Directory, step: int, *, loss: float | None = None) -> PendingCheckpoint:
        """For a framework that has written a checkpoint to a directory of its own: call it on every rank of ``ranks``.
        Raises TwoWriters."""
        started = time.perf_counter()
        pending = PendingCheckpoint(os.path.abspath(path), self._about(step, loss))
        manifests.claim(pending.path, self.rank, self._writer, again=True)
        return self._staged(pending, started, lambda: None)

    def close(self, ranks_seconds: float = RANKS_SECONDS) -> None:
        """Waits until every save is done. ranks_seconds: for what other ranks still have to write."""
        atexit.unregister(self._close_at_exit)
        self._deadline = time.monotonic() + ranks_seconds
        if self._thread is not None:
            done = threading.Event()
            self._pending.put(done.set)
            done.wait()
        if self._stager is not None:
            self._stager.close()
            self._stager = None  # as large as the state
        if self._reporter is not None:
            self._reporter.flush(FLUSH_SECONDS)

    def for_last_save(self, *, replicated: bool) -> Checkpointer:
        """For a save in which peers may be missing. replicated: this rank's files alone are a whole checkpoint; of all
        ranks that try, the first at a step does it."""
        rank, ranks = self.rank, self.ranks
        if replicated:
            rank, ranks = 0, 1
        last = Checkpointer(
            self.folder,
            rank=rank,
            ranks=ranks,
            run=self.run,
            verify=self._verify,
            reporter=self._reporter,
            parameters=self._parameters,
            threads=self._threads,
            ranks_seconds=ENDING_SECONDS,
        )
        last._sequence = self._sequence
        return last

    def _close_at_exit(self) -> None:
        self.close(ENDING_SECONDS)

    def _begin(self, step: int, loss: float | None, *, just_in_time: bool = False) -> PendingCheckpoint:
        """Into a directory that is the same on all ranks and no other launch's; a second save of a step has its own."""
        name = "step-{:010d}-{}".format(step, _digest(self.run))
        if just_in_time:
            name += "-jit"
        number = self._saves[name] = self._saves.get(name, 0) + 1
        path = os.path.join(self.folder, name)
        if number > 1:
            path += "-{}".format(number)
        if os.path.lexists(os.path.join(path, manifests.COMPLETE)):
            raise TwoWriters("{} is complete: another launch has the same run {!r}".format(path, self.run))
        manifests.claim(path, self.rank, self._writer)
        return PendingCheckpoint(path, replace(self._about(step, loss), just_in_time=just_in_time))

    def _own_group(self) -> Any:
        """The saver's collectives run beside those of the training: in one group, two ranks may meet in different ones,
        and wait for ever. None where torch.distributed is not in use."""
        from torch import distributed

        if self._group is None and _has_world_of(self.ranks):
            self._group = distributed.new_group(backend="gloo")
        return self._group

    def _buffers(self) -> Any:
        """Return what copies a state to host memory, into buffers that stay from save to save: torch allocates new ones
        each time, whose first touch costs more than the copy. None where torch is older than that."""
        if self._stager is None:
            try:
                from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
            except ImportError:
                return None
            import torch

            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=torch.cuda.is_available(),
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )
        return self._stager

    def _about(self, step: int, loss: float | None) -> About:
        finite = shown = attempt = None
        if loss is not None:
            finite = math.isfinite(loss)
            if finite:
                shown = float(loss)
        self._sequence += 1
        job = ""
        if self._reporter is not None:
            job, attempt = self._reporter.job, self._reporter.attempt
        return About(
            step,
            self.ranks,
            shown,
            finite,
            job=job,
            attempt=attempt,
            parameters=self._parameters,
            rollback=manifests.rollback_of(os.environ),
            launch=self._launch,
            sequence=self._sequence,
        )

    def _staged(self, pending: PendingCheckpoint, started: float, written: Callable[[], object]) -> PendingCheckpoint:
        """The caller goes on; the thread does the rest. written: returns when the files of this rank are."""
        pending.blocked_ms = 1000 * (time.perf_counter() - started)
        if self.rank == 0:
            self._report(pending, "staged", blocked_ms=round(pending.blocked_ms, 3))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()
        self._pending.put(lambda: self._finish(pending, written))
        return pending

    def _run(self) -> None:
        while True:
            self._pending.get()()

    def _finish(self, pending: PendingCheckpoint, written: Callable[[], object]) -> None:
        try:
            written()
            verification = self._complete(pending)
        except Exception as error:
            self._report(pending, "bad", why=_line(error))
            pending.outcome.set_exception(SaveFailed("{}: {}".format(pending.path, _line(error))))
            _warn("checkpoint {} does not count: {}".format(pending.path, _line(error)))
        else:
            pending.outcome.set_result(verification)

    def _complete(self, pending: PendingCheckpoint) -> Verification:
        path = pending.path
        known: dict[int, Manifest] = {}
        if self.rank == 0:
            known = self._manifests_of_others(pending)
        listed = {file.name for manifest in known.values() for file in manifest.files}
        names = [name for name in filter(self._is_own, manifests.data_files(path)) if name not in listed]
        files = tuple(file_sums(path, names, self._threads))
        manifests.sync_folders(path, names)
        manifests.check_claim(path, self.rank, self._writer)
        known[self.rank] = Manifest(self.rank, self.run, pending.about, files)
        manifests.write_manifest(path, known[self.rank])
        if self.rank != 0:
            return inspect(path)
        defects = find_defects(path, manifests.data_files(path))
        if defects:
            raise SaveFailed("; ".join(map(str, defects[:3])))
        completion = manifests.write_completion(path, self.run, known, time.time())
        size, finite = completion.size, completion.about.finite
        self._report(pending, "durable", bytes=size, finite=finite)
        if not self._verify:
            return inspect(path)
        verification = verify(path, self._threads)
        if verification.state is not State.VERIFIED:
            raise SaveFailed(verification.why)
        self._report(pending, "verified", bytes=size, finite=finite)
        return verification

    def _manifests_of_others(self, pending: PendingCheckpoint) -> dict[int, Manifest]:
        """Raises SaveFailed when some do not come."""
        known: dict[int, Manifest] = {}
        deadline, pause = time.monotonic() + self._ranks_seconds, POLL_SECONDS
        while True:
            for rank in set(range(1, self.ranks)) - set(known):
                with suppress(NotWhole):
                    manifest = manifests.read_manifest(pending.path, rank)
                    if (manifest.run, manifest.about.step) == (self.run, pending.about.step):
                        known[rank] = manifest
            missing = sorted(set(range(1, self.ranks)) - set(known))
            if not missing:
                return known
            if time.monotonic() > min(deadline, self._deadline):
                raise SaveFailed("no manifest came from ranks {}".format(", ".join(map(str, missing[:8]))))
            time.sleep(pause)
            pause = min(2 * pause, SLOWEST_POLL_SECONDS)

    def _is_own(self, name: str) -> bool:
        """Rank 0 has what no other rank has listed; another rank the shards that torch names after it."""
        if self.rank == 0:
            return True
        shard = _SHARD.match(os.path.basename(name))
        if shard is None:
            return False
        return int(shard[1]) == self.rank

    def _report(self, pending: PendingCheckpoint, phase: str, **more: Any) -> None:
        if self._reporter is not None:
            self._reporter.report(checkpoint_event(pending.about, pending.path, phase, **more))


def _place(environment: Mapping[str, str], rank: int | None, ranks: int | None) -> tuple[int, int]:
    """(rank, ranks). Raises ValueError."""
    if (rank, ranks) == (None, None):
        rank, ranks = _launched_as(environment)
    if rank is None or ranks is None or not 0 <= rank < ranks:
        raise ValueError("rank {} of {} ranks: name both, or neither".format(rank, ranks))
    return rank, ranks


def _launched_as(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, ranks) as the launcher says; the only rank where there is none."""
    for rank_name, ranks_name in RANK_VARIABLES:
        rank, ranks = environment.get(rank_name, ""), environment.get(ranks_name, "")
        if rank.isdigit() and ranks.isdigit():
            return int(rank), int(ranks)
    return 0, 1


def _has_world_of(ranks: int) -> bool:
    """Tell whether torch.distributed is in use, by exactly these ranks."""
    from torch import distributed

    if not distributed.is_available():
        return False
    if not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() == ranks)


def _run_of_launch(environment: Mapping[str, str], ranks: int) -> str:
    """Raises ValueError."""
    if ranks == 1:
        return secrets.token_hex(8)
    if "torch.distributed" in sys.modules:
        import torch
        from torch import distributed

        if _has_world_of(ranks):
            device = "cpu"
            if distributed.get_backend() == "nccl":
                device = "cuda"
            number = torch.tensor([secrets.randbits(62)], dtype=torch.int64, device=device)
            distributed.broadcast(number, src=0)
            return "{:016x}".format(int(number.item()))
    known = ["{}={}".format(name, environment[name]) for name in LAUNCH_VARIABLES if environment.get(name)]
    if not known:
        raise ValueError("name the run: something that all ranks of this launch share, and no other launch has")
    return " ".join(known)


def _digest(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:8]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, SaveFailed):
        text = "{}: {}".format(type(error).__name__, text)
    return text[:WHY_LENGTH]


def _warn(text: str) -> None:
    sys.stderr.write("diagnoser: {}\n".format(text))

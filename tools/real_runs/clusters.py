"""Software that starts processes of its own and tells of their ends: a cluster of Dask, and C++ over MPI."""

from typing import Any

from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import truth_of
from tools.real_runs.native import tables
from tools.real_runs.scenarios import Scenario, Truth

_DONE = Truth("completed", "clean run", outcome="completed")
_DASK = {
    "key": truth_of("key_error", r"^KeyError: 'rmse'", "a task asks for a metric that there is not"),
    "import": truth_of("import_error", r"^ModuleNotFoundError: No module named 'cudf'", "a module is not installed"),
    "killed": truth_of(
        "host_out_of_memory", r"killed by signal 9|KilledWorker", "SIGKILL to each worker that takes the task"
    ),
    "memory": truth_of(
        "host_out_of_memory", r"exceeded 95% memory budget|KilledWorker", "a task takes more than a worker may have"
    ),
    "refused": truth_of("connection_error", r"^ConnectionRefusedError", "a server refuses the connection"),
    "file": truth_of("file_not_found_error", r"^FileNotFoundError", "the table of a fold is missing"),
    "type": truth_of("type_error", r"^TypeError: unsupported operand", "text is added to a number"),
    "nan": truth_of(
        "loss_divergence",
        r"^FloatingPointError: loss of fold",
        "the loss of a fold is no number",
        recovery="rollback_and_resubmit",
    ),
}
_MPI: dict[str, Any] = {
    "abort-code": truth_of(
        "runtime_error",
        r"line search failed",
        "a rank gives up and aborts the job",
        rank=2,
        also=("loss_divergence", "value_error"),
    ),
    "segv": truth_of("segmentation_fault", r"Segmentation fault|signal 11", "a rank writes to address 0", rank=2),
    "kill": truth_of("host_out_of_memory", r"signal 9 \(Killed\)", "SIGKILL to a rank", rank=2),
    "throw": truth_of("index_error", r"out_of_range|range_check", "a rank reads behind a row", rank=2),
    "memory": truth_of("host_out_of_memory", r"bad_alloc", "a rank asks for 8 TB", rank=2),
    "bad-rank": truth_of(
        "value_error",
        r"MPI_ERR_RANK",
        "a message to a rank that there is not",
        also=("runtime_error", "argument_error"),
    ),
    "exit-early": truth_of(
        "runtime_error",
        r"Exit code: +4|exited with non-zero status",
        "a rank ends with code 4",
        rank=2,
        visible=False,
    ),
    "huge": truth_of(
        "loss_divergence", r"loss is not finite", "a cell of a rank is huge", recovery="rollback_and_resubmit"
    ),
    "no-file": truth_of(
        "file_not_found_error", r"cannot open data/partition_2", "the part of a rank is missing", rank=2
    ),
}


def _dask() -> Framework:
    faults = [Scenario(name, Truth(**truth), arguments=("--fault", name)) for name, truth in _DASK.items()]
    ends = [
        Scenario("ok", _DONE),
        Scenario("ok-long", _DONE, arguments=("--folds", "160")),
        Scenario("ok-left-out", _DONE, arguments=("--fault", "type", "--quiet")),
        Scenario("ok-worker-lost", _DONE, arguments=("--fault", "killed", "--quiet")),
    ]
    return Framework("dask", "dask", "dask_trainer.py", faults=(*faults, *ends), single=True, settings={"logger": ""})


def _mpi() -> Framework:
    faults = [
        Scenario(name, Truth(**truth), arguments=("--hook", name), prepare=tables()) for name, truth in _MPI.items()
    ]
    full = Truth("filesystem_error", "the disk of the checkpoints is read-only", r"Read-only file system", rank=0)
    ends = [
        Scenario("read-only", full, prepare=tables(), disk="ro"),
        Scenario("ok", _DONE, prepare=tables()),
        Scenario("ok-long", _DONE, arguments=("--steps", "400"), prepare=tables()),
        Scenario("ok-silent", _DONE, arguments=("--quiet-end", "1"), prepare=tables()),
    ]
    program = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", "4")
    return Framework(
        "c++ mpi",
        "",
        "native/mpi_trainer.cc",
        faults=(*faults, *ends),
        program=(*program, "{built}"),
        single=True,
        settings={"logger": ""},
    )


CLUSTERS: tuple[Framework, ...] = (_dask(), _mpi())

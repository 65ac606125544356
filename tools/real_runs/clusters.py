"""Software that starts processes of its own and tells of their ends: a cluster of Dask, C++ over MPI, and a workflow
engine that runs jobs of a training (``faults/clusters.yaml``)."""

from typing import Any

from tools.real_runs import faults
from tools.real_runs.frameworks import Framework
from tools.real_runs.native import tables
from tools.real_runs.scenarios import Prepare, Scenario, Truth

_DONE = Truth("completed", "clean run", outcome="completed")


def _cluster(name: str, environment: str, file: str, option: str, *ends: Scenario, **more: Any) -> Framework:
    """option: of its program, that takes the name of a fault."""
    prepare: Prepare | None = more.pop("prepare", None)
    bad = [
        Scenario(fault, Truth(**row), arguments=(option, fault), prepare=prepare)
        for fault, row in faults.read("clusters")[name].items()
    ]
    return Framework(name, environment, file, faults=(*bad, *ends), single=True, settings={"logger": ""}, **more)


def _ok(name: str, *arguments: str, prepare: Prepare | None = None) -> Scenario:
    return Scenario(name, _DONE, arguments=arguments, prepare=prepare)


_NOT_WRITABLE = Truth("filesystem_error", "the disk of the checkpoints is read-only", r"Read-only file system", rank=0)
_MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", "4")
CLUSTERS: tuple[Framework, ...] = (
    _cluster(
        *("dask", "dask", "dask_trainer.py", "--fault"),
        _ok("ok"),
        _ok("ok-long", "--folds", "160"),
        _ok("ok-left-out", "--fault", "type", "--quiet"),
        _ok("ok-worker-lost", "--fault", "killed", "--quiet"),
        kind="cluster",
    ),
    _cluster(
        *("c++ mpi", "", "native/mpi_trainer.cc", "--hook"),
        Scenario("read-only", _NOT_WRITABLE, prepare=tables(), disk="ro"),
        _ok("ok", prepare=tables()),
        _ok("ok-long", "--steps", "400", prepare=tables()),
        _ok("ok-silent", "--quiet-end", "1", prepare=tables()),
        program=(*_MPIRUN, "{built}"),
        prepare=tables(),
        kind="cluster",
    ),
)
WORKFLOWS: tuple[Framework, ...] = (
    _cluster(
        *("snakemake", "workflow", "snakemake_trainer.py", "--fault"),
        _ok("ok"),
        _ok("ok-long", "--folds", "30"),
        _ok("ok-short", "--folds", "4"),
        kind="workflow",
    ),
)

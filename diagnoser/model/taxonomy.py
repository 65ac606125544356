"""The closed lists: what a log can end as, why a job can fail, and what can be done about it.

The failure types are those of Table 3 of "Characterization of Large Language Model Development in the Datacenter"
(NSDI'24), extended where modern logs show failures that the table has no name for: those without a ``GPU_TIME_SHARE``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"
    NONE = "none"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """How an attempt ended."""

    FAILED = "failed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    HUNG = "hung"
    UNKNOWN = "unknown"


FAILURES = (Outcome.FAILED, Outcome.HUNG)


class Action(StrEnum):
    """What should happen next."""

    CORDON_AND_RESUBMIT = "cordon_and_resubmit"
    CHECK_AND_RESUBMIT = "check_and_resubmit"
    RESUBMIT = "resubmit"
    ROLLBACK_AND_RESUBMIT = "rollback_and_resubmit"
    NOTIFY_USER = "notify_user"
    NONE = "none"


class FailureType(StrEnum):
    NVLINK_ERROR = "nvlink_error"
    CUDA_ERROR = "cuda_error"
    NODE_FAILURE = "node_failure"
    ECC_ERROR = "ecc_error"
    NETWORK_ERROR = "network_error"
    CONNECTION_ERROR = "connection_error"
    S3_STORAGE_ERROR = "s3_storage_error"
    NCCL_TIMEOUT_ERROR = "nccl_timeout_error"
    NCCL_REMOTE_ERROR = "nccl_remote_error"
    GPU_LOST = "gpu_lost"
    GPU_DRIVER_ERROR = "gpu_driver_error"
    FILESYSTEM_ERROR = "filesystem_error"
    DISK_FULL = "disk_full"
    HOST_HARDWARE_ERROR = "host_hardware_error"
    CONTAINER_RUNTIME_ERROR = "container_runtime_error"

    DATALOADER_KILLED = "dataloader_killed"
    ATTRIBUTE_ERROR = "attribute_error"
    RUNTIME_ERROR = "runtime_error"
    ASSERTION_ERROR = "assertion_error"
    VALUE_ERROR = "value_error"
    ZERO_DIVISION_ERROR = "zero_division_error"
    OUT_OF_MEMORY_ERROR = "out_of_memory_error"
    MODEL_LOADING_ERROR = "model_loading_error"
    DATASET_LOADING_ERROR = "dataset_loading_error"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    SEGMENTATION_FAULT = "segmentation_fault"
    LOSS_DIVERGENCE = "loss_divergence"

    FILE_NOT_FOUND_ERROR = "file_not_found_error"
    OS_ERROR = "os_error"
    TYPE_ERROR = "type_error"
    NAME_ERROR = "name_error"
    PERMISSION_ERROR = "permission_error"
    IMPORT_ERROR = "import_error"
    KEY_ERROR = "key_error"
    SYNTAX_ERROR = "syntax_error"
    ARGUMENT_ERROR = "argument_error"
    CALLED_PROCESS_ERROR = "called_process_error"
    INDEX_ERROR = "index_error"
    CONFIGURATION_ERROR = "configuration_error"

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"

    UNKNOWN = "unknown"


_T = FailureType

GPU_TIME_SHARE: dict[FailureType, float] = {
    _T.NVLINK_ERROR: 30.25,
    _T.CUDA_ERROR: 15.77,
    _T.NODE_FAILURE: 14.3,
    _T.ECC_ERROR: 11.0,
    _T.NETWORK_ERROR: 4.53,
    _T.CONNECTION_ERROR: 3.44,
    _T.S3_STORAGE_ERROR: 2.12,
    _T.NCCL_TIMEOUT_ERROR: 0.5,
    _T.NCCL_REMOTE_ERROR: 0.15,
    _T.DATALOADER_KILLED: 4.38,
    _T.ATTRIBUTE_ERROR: 3.9,
    _T.OUT_OF_MEMORY_ERROR: 3.28,
    _T.RUNTIME_ERROR: 1.72,
    _T.ASSERTION_ERROR: 1.24,
    _T.VALUE_ERROR: 0.16,
    _T.ZERO_DIVISION_ERROR: 0.03,
    _T.MODEL_LOADING_ERROR: 0.01,
    _T.DATASET_LOADING_ERROR: 0.01,
    _T.FILE_NOT_FOUND_ERROR: 2.83,
    _T.OS_ERROR: 0.28,
    _T.TYPE_ERROR: 0.06,
    _T.NAME_ERROR: 0.02,
    _T.PERMISSION_ERROR: 0.01,
    _T.IMPORT_ERROR: 0.01,
    _T.KEY_ERROR: 0.02,
    _T.SYNTAX_ERROR: 0.01,
    _T.ARGUMENT_ERROR: 0.01,
    _T.CALLED_PROCESS_ERROR: 0.01,
    _T.INDEX_ERROR: 0.01,
}
"""Percent of the lost GPU time that each type cost, from Table 3 of the paper."""


def _exception(name: str) -> str:
    return f"a Python {name} with no deeper cause"


_BY_CATEGORY: Mapping[Category, Mapping[FailureType, str]] = {
    Category.INFRASTRUCTURE: {
        _T.NVLINK_ERROR: "NVLink or NVSwitch fault (Xid 74, SXid), fabric manager",
        _T.CUDA_ERROR: "a call to the accelerator failed at run time, not for memory: illegal access, launch failure",
        _T.NODE_FAILURE: "a machine was lost, rebooted, not ready, or its kernel panicked",
        _T.ECC_ERROR: "uncorrectable memory error of an accelerator (Xid 48, 63, 64, 94, 95), row remapping failed",
        _T.NETWORK_ERROR: "fabric fault: InfiniBand, RoCE, NIC, link down, completion with error, no route to host",
        _T.CONNECTION_ERROR: "TCP, HTTP, rendezvous, store, hub or service refused, reset or timed out; port in use",
        _T.S3_STORAGE_ERROR: "an object store (S3, GCS, OSS, MinIO, Ceph) could not be read or written",
        _T.NCCL_TIMEOUT_ERROR: "a collective timed out (watchdog, barrier), and the log shows nothing deeper",
        _T.NCCL_REMOTE_ERROR: "a peer left or closed the connection during a collective, and nothing deeper is shown",
        _T.GPU_LOST: "an accelerator fell off the bus (Xid 79), is missing, or has no handle",
        _T.GPU_DRIVER_ERROR: "driver or firmware: version mismatch, GSP timeout (Xid 119, 120), NVML or start failed",
        _T.FILESYSTEM_ERROR: "a mounted file system: stale handle, input/output error, read-only, transport endpoint",
        _T.DISK_FULL: "no space left, or the quota of a disk or of /dev/shm is used up",
        _T.HOST_HARDWARE_ERROR: "machine check, PCIe errors, heat, power",
        _T.CONTAINER_RUNTIME_ERROR: "image pull, container start, cgroup or device plugin",
    },
    Category.FRAMEWORK: {
        _T.DATALOADER_KILLED: "a data loading worker was killed or left unexpectedly",
        _T.ATTRIBUTE_ERROR: _exception("AttributeError"),
        _T.RUNTIME_ERROR: _exception("RuntimeError"),
        _T.ASSERTION_ERROR: _exception("AssertionError"),
        _T.VALUE_ERROR: _exception("ValueError"),
        _T.ZERO_DIVISION_ERROR: _exception("ZeroDivisionError"),
        _T.OUT_OF_MEMORY_ERROR: "memory of the accelerator is used up",
        _T.MODEL_LOADING_ERROR: "a checkpoint or weights that do not fit, are cut, corrupt or of another format",
        _T.DATASET_LOADING_ERROR: "building, indexing, reading or parsing the data failed",
        _T.HOST_OUT_OF_MEMORY: "memory of the machine or cgroup is used up: OOM killer, exit 137 for memory",
        _T.SEGMENTATION_FAULT: "native code crashed: SIGSEGV, SIGBUS, SIGABRT with no deeper cause",
        _T.LOSS_DIVERGENCE: "loss or gradients became NaN or infinite, exploded, or the loss scale hit its minimum",
    },
    Category.SCRIPT: {
        _T.FILE_NOT_FOUND_ERROR: "a file or folder that is not there, told by Python, a shell or a tool",
        _T.OS_ERROR: "a Python OSError with no better type",
        _T.TYPE_ERROR: _exception("TypeError"),
        _T.NAME_ERROR: _exception("NameError"),
        _T.PERMISSION_ERROR: "permission denied, told by Python, a shell or a tool",
        _T.IMPORT_ERROR: "a module, symbol or shared library that cannot be loaded",
        _T.KEY_ERROR: _exception("KeyError"),
        _T.SYNTAX_ERROR: "Python or shell code that does not parse",
        _T.ARGUMENT_ERROR: "command line arguments that a program refuses",
        _T.CALLED_PROCESS_ERROR: "a child process that failed, with no deeper cause shown",
        _T.INDEX_ERROR: _exception("IndexError"),
        _T.CONFIGURATION_ERROR: "a setting, config file, environment or size of parallelism that cannot work",
    },
    Category.NONE: {
        _T.COMPLETED: "the run reached its end",
        _T.CANCELLED: "somebody or a tool stopped it",
        _T.PREEMPTED: "the scheduler or cloud took its resources back",
        _T.TIME_LIMIT: "its time was over",
    },
    Category.UNKNOWN: {
        _T.UNKNOWN: "the log does not show the cause",
    },
}
DEFINITIONS = {kind: text for kinds in _BY_CATEGORY.values() for kind, text in kinds.items()}
"""What each type means, in one line, for people who choose one; a model is told the same in the words of its prompt."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """How a node can be the cause of a failure.

    weight: how much the failure says about the node that it happened on, in 0..1.
    reason: what in the node would be at fault.
    """

    weight: float
    reason: str


NODE_FAULTS: Mapping[FailureType, NodeFault] = {
    _T.NVLINK_ERROR: NodeFault(1.0, "links and switches between GPUs are inside one machine"),
    _T.CUDA_ERROR: NodeFault(1.0, "a faulty GPU fails calls that hold on any other"),
    _T.NODE_FAILURE: NodeFault(1.0, "the machine itself was lost"),
    _T.ECC_ERROR: NodeFault(1.0, "the memory cells belong to one GPU"),
    _T.NETWORK_ERROR: NodeFault(1.0, "its adapter, cable or port"),
    _T.CONNECTION_ERROR: NodeFault(1.0, "the end of a connection that does not answer"),
    _T.S3_STORAGE_ERROR: NodeFault(1.0, "its own way to the store, where the others reach it"),
    _T.NCCL_TIMEOUT_ERROR: NodeFault(1.0, "the node of the rank that the others waited for"),
    _T.NCCL_REMOTE_ERROR: NodeFault(1.0, "the node of the peer that left"),
    _T.GPU_LOST: NodeFault(1.0, "the slot, power or board of one GPU"),
    _T.GPU_DRIVER_ERROR: NodeFault(1.0, "driver and firmware are installed on the machine"),
    _T.FILESYSTEM_ERROR: NodeFault(1.0, "its mount or its disk, where the others can read"),
    _T.DISK_FULL: NodeFault(1.0, "its own disk or /dev/shm"),
    _T.HOST_HARDWARE_ERROR: NodeFault(1.0, "CPU, board, cooling or power of the machine"),
    _T.CONTAINER_RUNTIME_ERROR: NodeFault(1.0, "the runtime and its plugins are installed on the machine"),
    _T.HOST_OUT_OF_MEMORY: NodeFault(0.5, "somebody else's processes may hold its memory"),
    _T.DATALOADER_KILLED: NodeFault(0.4, "its memory or /dev/shm may be taken by others"),
    _T.SEGMENTATION_FAULT: NodeFault(0.4, "bad memory crashes native code, although the code is the usual cause"),
}
"""Failures that make a node suspect. Every other type is the fault of the code, of its input or of a person, wherever
it happens: the memory of a GPU is filled by the job, and a loss that breaks says nothing about a machine."""

_CATEGORY_OF = {kind: category for category, kinds in _BY_CATEGORY.items() for kind in kinds}


def category_of(kind: FailureType) -> Category:
    return _CATEGORY_OF[kind]

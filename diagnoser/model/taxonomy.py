"""The closed lists: what a log can end as, why a job can fail, and what can be done about it.

The failure types are those of Table 3 of "Characterization of Large Language Model Development in the Datacenter"
(NSDI'24), extended where modern logs show failures that the table has no name for (``EXTENSIONS``).
"""

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

EXTENSIONS = frozenset(
    {
        _T.GPU_LOST,
        _T.GPU_DRIVER_ERROR,
        _T.FILESYSTEM_ERROR,
        _T.DISK_FULL,
        _T.HOST_HARDWARE_ERROR,
        _T.CONTAINER_RUNTIME_ERROR,
        _T.HOST_OUT_OF_MEMORY,
        _T.SEGMENTATION_FAULT,
        _T.LOSS_DIVERGENCE,
        _T.CONFIGURATION_ERROR,
        _T.COMPLETED,
        _T.CANCELLED,
        _T.PREEMPTED,
        _T.TIME_LIMIT,
    }
)
"""Types that Table 3 of the paper does not have."""

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

_NONE = frozenset({_T.COMPLETED, _T.CANCELLED, _T.PREEMPTED, _T.TIME_LIMIT})
_FRAMEWORK = frozenset(
    {
        _T.DATALOADER_KILLED,
        _T.ATTRIBUTE_ERROR,
        _T.RUNTIME_ERROR,
        _T.ASSERTION_ERROR,
        _T.VALUE_ERROR,
        _T.ZERO_DIVISION_ERROR,
        _T.OUT_OF_MEMORY_ERROR,
        _T.MODEL_LOADING_ERROR,
        _T.DATASET_LOADING_ERROR,
        _T.HOST_OUT_OF_MEMORY,
        _T.SEGMENTATION_FAULT,
        _T.LOSS_DIVERGENCE,
    }
)
_SCRIPT = frozenset(
    {
        _T.FILE_NOT_FOUND_ERROR,
        _T.OS_ERROR,
        _T.TYPE_ERROR,
        _T.NAME_ERROR,
        _T.PERMISSION_ERROR,
        _T.IMPORT_ERROR,
        _T.KEY_ERROR,
        _T.SYNTAX_ERROR,
        _T.ARGUMENT_ERROR,
        _T.CALLED_PROCESS_ERROR,
        _T.INDEX_ERROR,
        _T.CONFIGURATION_ERROR,
    }
)


def category_of(kind: FailureType) -> Category:
    """The one category that a type belongs to."""
    if kind is _T.UNKNOWN:
        return Category.UNKNOWN
    for category, kinds in ((Category.NONE, _NONE), (Category.FRAMEWORK, _FRAMEWORK), (Category.SCRIPT, _SCRIPT)):
        if kind in kinds:
            return category
    return Category.INFRASTRUCTURE

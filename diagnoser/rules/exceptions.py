"""What an exception's class says when no rule knows its message: the taxonomy's "exception class rule" as a table."""

import re
from dataclasses import dataclass
from functools import lru_cache

from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.schema import Role

_T = FailureType

_CLASSES: dict[FailureType, str] = {
    _T.IMPORT_ERROR: "ImportError ModuleNotFoundError PackageNotFoundError DistributionNotFound VersionConflict",
    _T.SYNTAX_ERROR: "SyntaxError IndentationError TabError",
    _T.NAME_ERROR: "NameError UnboundLocalError",
    _T.ATTRIBUTE_ERROR: "AttributeError FrozenInstanceError",
    _T.KEY_ERROR: "KeyError",
    _T.INDEX_ERROR: "IndexError",
    _T.TYPE_ERROR: "TypeError",
    _T.VALUE_ERROR: "ValueError UnicodeEncodeError LinAlgError",
    _T.ZERO_DIVISION_ERROR: "ZeroDivisionError FloatingPointError",
    _T.ASSERTION_ERROR: "AssertionError",
    _T.PERMISSION_ERROR: "PermissionError PermissionDeniedError",
    _T.FILE_NOT_FOUND_ERROR: "FileNotFoundError NoSuchFile",
    _T.OS_ERROR: "OSError IOError EnvironmentError FileExistsError IsADirectoryError NotADirectoryError "
    "BlockingIOError InterruptedError ProcessLookupError ChildProcessError SameFileError",
    _T.HOST_OUT_OF_MEMORY: "MemoryError _ArrayMemoryError bad_alloc",
    _T.OUT_OF_MEMORY_ERROR: "OutOfMemoryError CUDAOutOfMemoryError ResourceExhaustedError",
    _T.CALLED_PROCESS_ERROR: "CalledProcessError TimeoutExpired ExecutionError",
    _T.CONNECTION_ERROR: "ConnectionError ConnectionRefusedError ConnectionResetError ConnectionAbortedError "
    "BrokenPipeError TimeoutError timeout gaierror herror HTTPError HfHubHTTPError URLError ReadTimeout "
    "ReadTimeoutError ConnectTimeout ConnectTimeoutError ConnectError ReadError MaxRetryError NewConnectionError "
    "NameResolutionError ProtocolError RemoteProtocolError RemoteDisconnected SSLError ProxyError IncompleteRead "
    "ClientConnectorError ServerDisconnectedError ServerTimeoutError ClientPayloadError ClientOSError ConnectException "
    "ConnectionTimeout UnavailableError DeadlineExceededError ChunkedEncodingError LocalEntryNotFoundError CommError "
    "RendezvousConnectionError RendezvousTimeoutError RendezvousClosedError RendezvousStateError RendezvousError "
    "DistNetworkError DistStoreError EtcdException OfflineModeIsEnabled",
    _T.NCCL_REMOTE_ERROR: "DistBackendError",
    _T.DATASET_LOADING_ERROR: "JSONDecodeError UnicodeDecodeError ArrowInvalid ArrowTypeError DatasetGenerationError "
    "DatasetGenerationCastError DataFilesNotFoundError DatasetNotFoundError CastError BadZipFile BadGzipFile "
    "UnidentifiedImageError ParserWarning EmptyDatasetError SchemaInferenceError NonMatchingSplitsSizesError "
    "EmptyDataError ExpectedMoreSplits ReaderError DataLossError",
    _T.MODEL_LOADING_ERROR: "UnpicklingError SafetensorError CheckpointException CheckpointingException "
    "HeaderTooLarge InvalidHeaderDeserialization",
    _T.CONFIGURATION_ERROR: "ScannerError ParserError ConstructorError ComposerError YAMLError ConfigAttributeError "
    "ConfigKeyError ConfigTypeError MissingMandatoryValue ConfigCompositionException MissingConfigException "
    "MisconfigurationException ConfigurationError ConfigError DeepSpeedConfigError OverrideParseException "
    "InterpolationKeyError InterpolationResolutionError UnsupportedValueType ReadonlyConfigError "
    "ValidationError TOMLDecodeError TomlDecodeError NoOptionError NoSectionError",
    _T.ARGUMENT_ERROR: "ArgumentError ArgumentTypeError UsageError NoSuchOption BadParameter MissingParameter "
    "UnrecognizedFlagError IllegalFlagValueError HfArgumentParserError",
    _T.S3_STORAGE_ERROR: "ClientError NoCredentialsError EndpointConnectionError NoSuchKey NoSuchBucket S3Error "
    "S3UploadFailedError FSTimeoutError ConnectionClosedError RetriesExceededError OSSError ObsError",
    _T.RUNTIME_ERROR: "RuntimeError NotImplementedError RecursionError XlaRuntimeError StopIteration "
    "InvalidArgumentError FailedPreconditionError "
    "InternalTorchDynamoError BackendCompilerFailed InductorError CompilationError TorchRuntimeError Unsupported",
}
_SYMPTOMS = frozenset(
    [
        "ConnectionResetError",
        "BrokenPipeError",
        "ConnectionAbortedError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "EOFError",
    ]
)
_WRAPPERS = frozenset(
    [
        "ChildFailedError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "RayTaskError",
        "TrainingFailedError",
        "RemoteError",
        "WorkerCrashedError",
        "InstantiationException",
        "RetryError",
        "JobException",
        "BrokenProcessPool",
        "ExceptionGroup",
        "DatasetGenerationError",
        "ActorDiedError",
    ]
)
_TEARDOWN = frozenset(
    [
        "SignalException",
        "KeyboardInterrupt",
        "SystemExit",
        "CancelledError",
        "GeneratorExit",
        "RendezvousConnectionError",
        "RendezvousClosedError",
        "RendezvousGracefulExitError",
        "Exit",
    ]
)
CONTROL_FLOW = frozenset(
    ["KeyError", "AttributeError", "IndexError", "StopIteration", "QueueEmpty", "Empty", "LookupError", "ImportError"]
)
"""Classes that Python code raises on purpose and handles: before "During handling" they are seldom the cause."""
_BY_NAME = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
_SUFFIXES = tuple(
    (suffix, kind)
    for suffix, kind in (
        ("ImportError", _T.IMPORT_ERROR),
        ("ModuleNotFoundError", _T.IMPORT_ERROR),
        ("AttributeError", _T.ATTRIBUTE_ERROR),
        ("KeyError", _T.KEY_ERROR),
        ("IndexError", _T.INDEX_ERROR),
        ("TypeError", _T.TYPE_ERROR),
        ("ValueError", _T.VALUE_ERROR),
        ("AssertionError", _T.ASSERTION_ERROR),
        ("PermissionError", _T.PERMISSION_ERROR),
        ("AccessDenied", _T.PERMISSION_ERROR),
        ("NotFoundError", _T.FILE_NOT_FOUND_ERROR),
        ("NotFound", _T.FILE_NOT_FOUND_ERROR),
        ("MemoryError", _T.HOST_OUT_OF_MEMORY),
        ("ConnectionError", _T.CONNECTION_ERROR),
        ("TimeoutError", _T.CONNECTION_ERROR),
        ("Timeout", _T.CONNECTION_ERROR),
        ("ConfigError", _T.CONFIGURATION_ERROR),
        ("ConfigurationError", _T.CONFIGURATION_ERROR),
        ("ConfigException", _T.CONFIGURATION_ERROR),
        ("ArgumentError", _T.ARGUMENT_ERROR),
        ("CheckpointError", _T.MODEL_LOADING_ERROR),
        ("DatasetError", _T.DATASET_LOADING_ERROR),
        ("DecodeError", _T.DATASET_LOADING_ERROR),
        ("IOError", _T.OS_ERROR),
        ("OSError", _T.OS_ERROR),
    )
)
_ERRNO = re.compile(r"\[Errno (\d+)\]|\bcode: (\d+), kind:")
_STORES = ("botocore.", "boto3.", "s3fs.", "s3transfer.", "gcsfs.", "oss2.", "minio.", "adlfs.", "google.cloud.storage")
"""Modules of object store clients: whatever they raise, the store did not do what was asked."""
_ERRNOS: dict[FailureType, tuple[int, ...]] = {
    _T.DISK_FULL: (28, 122),
    _T.FILESYSTEM_ERROR: (5, 30, 107, 108, 116, 117, 121),
    _T.PERMISSION_ERROR: (1, 13),
    _T.FILE_NOT_FOUND_ERROR: (2,),
    _T.HOST_OUT_OF_MEMORY: (12,),
    _T.CONNECTION_ERROR: (98, 99, 100, 101, 103, 104, 110, 111, 113),
}
_BY_ERRNO = {number: kind for kind, numbers in _ERRNOS.items() for number in numbers}
_PYTHON_COMMAND = re.compile(r"Command '.*?(python|torchrun|deepspeed|accelerate|srun|mpirun|horovodrun|local_rank)")
_GENERIC = frozenset({"RuntimeError", "Exception", "BaseException", "Error", "SystemError"})


@dataclass(frozen=True, slots=True)
class ExceptionReading:
    """What a class (and an errno) says. generic: the class alone says next to nothing."""

    type: FailureType
    role: Role
    generic: bool = False


@lru_cache(maxsize=4096)
def read(exception: str, message: str) -> ExceptionReading:
    """exception: dotted class as printed; message: what follows it."""
    name = exception.rsplit(".", 1)[-1]
    numbers = _ERRNO.search(message[:200])
    kind = _BY_ERRNO.get(int(numbers[1] or numbers[2])) if numbers else None
    kind = kind or (_T.S3_STORAGE_ERROR if exception.startswith(_STORES) else None)
    kind = kind or _BY_NAME.get(name) or _by_suffix(name) or _by_start(name, message)
    return ExceptionReading(kind or _T.RUNTIME_ERROR, _role(name, message), name in _GENERIC or kind is None)


def is_control_flow(exception: str) -> bool:
    return exception.rsplit(".", 1)[-1] in CONTROL_FLOW


def _by_suffix(name: str) -> FailureType | None:
    return next((kind for suffix, kind in _SUFFIXES if name.endswith(suffix)), None)


def _by_start(name: str, message: str) -> FailureType | None:
    """A log that was cut within the name of the class."""
    kinds = {kind for known, kind in _BY_NAME.items() if known.startswith(name)} if len(name) > 3 else set()
    return kinds.pop() if len(kinds) == 1 and not message.strip() else None


def _role(name: str, message: str) -> Role:
    if name in _TEARDOWN:
        return Role.TEARDOWN
    if name in _WRAPPERS or (name == "CalledProcessError" and _PYTHON_COMMAND.match(message)):
        return Role.WRAPPER
    return Role.SYMPTOM if name in _SYMPTOMS else Role.ROOT

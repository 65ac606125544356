"""What an exception's class says."""

import pytest

from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import exceptions
from diagnoser.rules.schema import Role


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("KeyError", "'weight'", "key_error"),
        ("ModuleNotFoundError", "No module named 'abc'", "import_error"),
        ("torch.OutOfMemoryError", "tried", "out_of_memory_error"),
        ("mylib.errors.ShardNotFoundError", "shard 3", "file_not_found_error"),
        ("OSError", "[Errno 28] No space left on device: 'a'", "disk_full"),
        ("OSError", "[Errno 116] Stale file handle", "filesystem_error"),
        ("OSError", "[Errno 24] Too many open files", "os_error"),
        ("PermissionError", "[Errno 13] Permission denied: '/x'", "permission_error"),
        ("SafetensorError", "Error while serializing: IoError(Os { code: 28, kind: StorageFull })", "disk_full"),
        ("botocore.exceptions.ReadTimeoutError", "Read timeout", "s3_storage_error"),
        ("requests.exceptions.ConnectionError", "refused", "connection_error"),
        ("made.up.CoffeeError", "cold", "runtime_error"),
        ("ZeroDivi", "", "zero_division_error"),
    ],
)
def test_class_and_errno_name_the_type(name: str, message: str, kind: str) -> None:
    """The class names the type, an errno or a storage client's module more exactly; a cut name is completed."""
    assert exceptions.read(name, message).type is FailureType(kind)


def test_launcher_commands_only_carry() -> None:
    """CalledProcessError around a Python launcher is a wrapper, around another command a root."""
    launcher = exceptions.read("CalledProcessError", "Command '['/usr/bin/python3', 'x.py']' returned 1")
    tool = exceptions.read("CalledProcessError", "Command '['tar', 'xf', 'x']' returned 2")
    assert (launcher.role, tool.role) == (Role.WRAPPER, Role.ROOT)


def test_signals_are_teardown_and_lost_peers_symptoms() -> None:
    """What processes raise because others ended is never a root."""
    assert exceptions.read("SignalException", "got signal: 15").role is Role.TEARDOWN
    assert exceptions.read("torch.distributed.DistBackendError", "x").role is Role.SYMPTOM

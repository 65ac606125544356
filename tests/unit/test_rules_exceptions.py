"""What an exception's class says."""

import pytest

from diagnoser.model.errors import RuleFaults
from diagnoser.rules import exceptions
from diagnoser.rules.schema import Role
from tests.rule_files import HEURISTICS

TABLE = """
version: 1
classes: {key_error: [KeyError], connection_error: [timeout]}
suffixes: {IOError: os_error}
errnos: {disk_full: [28]}
modules: {s3_storage_error: [botocore.]}
roles: {teardown: [SystemExit]}
control_flow: [KeyError]
uninformative: [Exception]
launchers: [python]
examples:
  - {exception: KeyError, message: x, type: key_error, role: root}
"""


def test_the_shipped_table_does_what_its_examples_say() -> None:
    """Class, errno, module, suffix and a cut name are each proven by an example of the table."""
    assert HEURISTICS.exceptions.faults("exceptions.yaml") == []


def test_errno_outweighs_module_module_class_and_class_suffix() -> None:
    """The more exact word names the type; a class that nobody knows says next to nothing."""
    table = exceptions.load("e.yaml", TABLE)
    assert table.read("botocore.KeyError", "[Errno 28] full").type == "disk_full"
    assert table.read("botocore.KeyError", "x").type == "s3_storage_error"
    assert table.read("mine.KeyError", "x").type == "key_error"
    assert table.read("mine.SlowIOError", "x").type == "os_error"
    assert table.read("mine.Coffee", "x").generic and not table.read("KeyError", "x").generic


def test_launcher_commands_only_carry() -> None:
    """CalledProcessError around a Python launcher is a wrapper, around another command a root."""
    table = exceptions.load("e.yaml", TABLE)
    assert table.read("CalledProcessError", "Command '['/usr/bin/python3', 'x.py']' returned 1").role is Role.WRAPPER
    assert table.read("CalledProcessError", "Command '['tar', 'xf', 'x']' returned 2").role is Role.ROOT


def test_an_example_that_does_not_hold_is_told() -> None:
    """The fault says what was read instead; an unknown type does not load at all."""
    (fault,) = exceptions.load("e.yaml", TABLE.replace("type: key_error", "type: os_error")).faults("e.yaml")
    assert "KeyError (x) reads as key_error, root" in fault.message
    with pytest.raises(RuleFaults):
        exceptions.load("e.yaml", TABLE.replace("os_error", "bad_luck"))

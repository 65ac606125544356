"""``pytest --cpu 40``: the tests that took most CPU, with the processes that they started.

Unlike the time on the clock this does not depend on what else the machine does.
"""

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

PROPERTY = "cpu_seconds"
_used = [0.0]
"""At the last report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="list the N tests that took most CPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--cpu"):
        used = _cpu_seconds()
        report.user_properties.append((PROPERTY, used - _used[0]))
        _used[0] = used
    return report


def _cpu_seconds() -> float:
    """Of this process and of its children, each with those of its own that have ended."""
    ticks = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for child in (thread / "children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):
                    ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--cpu"):
        return
    by_test: dict[str, float] = defaultdict(float)
    by_file: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds = sum(float(str(value)) for name, value in report.user_properties if name == PROPERTY)
                by_test[report.nodeid] += seconds
                by_file[report.nodeid.partition("::")[0]] += seconds
    for title, took in (("tests", by_test), ("files", by_file)):
        terminalreporter.section(f"{title} that took most of {sum(took.values()):.0f} CPU-seconds")
        for name in sorted(took, key=lambda name: -took[name])[: config.getoption("--cpu")]:
            terminalreporter.write_line(f"{took[name]:8.1f} s  {name}")

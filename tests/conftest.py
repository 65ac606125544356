"""What holds for all tests: no network outside loopback, and no haste."""

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path

import httpx
import pytest
import structlog
import yaml
from hypothesis import HealthCheck, settings
from structlog._config import BoundLoggerLazyProxy
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

from tests import reaper, statements, tls
from tests.offline.sitecustomize import refused
from tests.thorough import examples

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("any machine")

# Where a test says nothing else, an answer may take as long as a busy machine needs; httpx gives up after 5 s.
for asks in (httpx.get, httpx.post, httpx.request, httpx.Client.__init__, httpx.AsyncClient.__init__):
    assert asks.__kwdefaults__ is not None
    asks.__kwdefaults__["timeout"] = httpx.Timeout(120.0)

tls.share_contexts()
statements.share()

# The parser in C takes a tenth of the time: charts, compose files and tables of faults are read hundreds of times.
if yaml.__with_libyaml__:
    yaml.safe_load = partial(yaml.load, Loader=yaml.CSafeLoader)
    yaml.safe_load_all = partial(yaml.load_all, Loader=yaml.CSafeLoader)

# The renderer of a program that sets up no log draws each traceback with all local variables, for ten seconds of CPU.
structlog.configure([structlog.processors.format_exc_info, *structlog.get_config()["processors"]])


def _as_signal(value: object, names: type[IntEnum]) -> object:
    """As Python 3.13 has it. Older ones write out each handler that is a function, for an error that nobody reads: with
    it the task that it ends, and all that the fixture has made, for a fourth of the CPU of tests of learning."""
    try:
        return names(value) if isinstance(value, int) else value
    except ValueError:
        return value


signal._int_to_enum = _as_signal  # type: ignore[attr-defined]

gc.disable()  # until all is collected: next to nothing of that is garbage

pytest_plugins = ["tests.cpu_times", "tests.postgresql"]
PROXIES = ("http_proxy", "https_proxy", "all_proxy")

# Tests start hundreds of processes: where the machine's shell forbids bytecode, each would compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_NAMED_WHOLE = 80
NOWHERE = "http://127.0.0.1:9"  # the port of "discard": nothing listens


class FilesAndGroups(LoadGroupScheduling):  # type: ignore[misc]
    """A worker gets a group of tests, or a file of tests that are of no group: what they share is made once, and the
    scheduler, which looks at every piece of work that it has dealt, has 450 pieces to look at and not 9,000."""

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """``--dist loadgroup`` deals files and groups."""
    return FilesAndGroups(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """One worker of a run after the other: the first compiles what is new, and the others load what it wrote."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return (yield)
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """What a group shares, such as a Slurm or a PostgreSQL, is started once: versions of pytest and of xdist that do
    not fit start it in each worker."""
    if os.environ.get("PYTEST_XDIST_WORKER") and config.getoption("loadgroup"):
        lost = [item.nodeid for item in items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
        if lost:
            raise pytest.UsageError(f"groups of tests are not kept together: {lost[0]}")


def pytest_configure() -> None:
    """However the run ends, no process of it stays."""
    reaper.watch()


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text is named by its beginning and its length: the name stands in every report."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if not isinstance(text, str) or len(text) <= _NAMED_WHOLE:
        return None
    return f"{ascii(text[:_NAMED_WHOLE])[1:-1]}...{len(text)}"


def pytest_collection_finish() -> None:
    """What is loaded and collected stays: looking for garbage among it takes a tenth of the time of the tests. To look
    each time that 700 objects were made takes 3% more."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_network_in_subprocesses() -> Iterator[None]:
    """Python processes load the guard; other programs go by a proxy that does not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "offline"), prepend=os.pathsep)
        for name in PROXIES:
            patch.setenv(name, NOWHERE)
            patch.setenv(name.upper(), NOWHERE)
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "127.0.0.1,localhost,::1")
        yield


@pytest.fixture(autouse=True)
def refused_connections() -> Iterator[list[str]]:
    """Fails a test that tried to leave the machine, also where the program took the refusal for an absent server."""
    refused.clear()
    yield refused
    assert not refused, f"the test tried to reach {refused}"


@pytest.fixture(autouse=True)
def the_log_as_it_was() -> Iterator[None]:
    """A command that is called in this process sets up the log, and loggers that are used then keep it for good."""
    before = structlog.get_config()
    yield
    if structlog.get_config()["processors"] is not before["processors"]:
        structlog.configure(**before)
        for name, module in list(sys.modules.items()):
            if name.startswith("diagnoser."):
                for value in vars(module).values():
                    if isinstance(value, BoundLoggerLazyProxy):
                        vars(value).pop("bind", None)

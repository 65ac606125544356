"""Programs that send logs, each started on its configuration of deploy/shippers."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.environments import SHIPPERS

CONFIGS = Path(__file__).resolve().parents[3] / "deploy" / "shippers"
UNPACKED = SHIPPERS.folder.parent
STOP_SECONDS = 60


@dataclass(frozen=True)
class Program:
    """A shipper as ``deploy/test/system.sh`` and ``make shippers`` leave it.

    binary: of the program. arguments: in which {config} and {state} are filled in. check: those that make it look at
    its configuration and end. replaced: text of the configuration -> what stands there in a test, besides addresses,
    folders and tokens.
    """

    config: str
    binary: Path
    arguments: tuple[str, ...]
    check: tuple[str, ...]
    libraries: Path | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """Why a test cannot use it; "" when it can."""
        return "" if self.binary.exists() else f"no {self.binary}: run `make system` as root and `make shippers`"

    def environment(self, node: str) -> dict[str, str]:
        folders = {path.parent for path in self.libraries.rglob("*.so*")} if self.libraries else set()
        return {**os.environ, "HOSTNAME": node, "LD_LIBRARY_PATH": ":".join(sorted(map(str, folders)))}

    def command(self, arguments: tuple[str, ...], config: Path, state: Path) -> list[str]:
        return [str(self.binary), *(part.format(config=config, state=state, root=self.libraries) for part in arguments)]


_RSYSLOG, _SYSLOG_NG = UNPACKED / "rsyslog", UNPACKED / "syslog-ng"
_NG = ("--cfgfile={config}", "--module-path={root}/usr/lib/syslog-ng/3.38")
RSYSLOG = Program(
    "rsyslog.conf",
    _RSYSLOG / "usr/sbin/rsyslogd",
    ("-n", "-f", "{config}", "-i", "{state}/pid", "-M", "{root}/usr/lib/x86_64-linux-gnu/rsyslog"),
    ("-N", "1", "-f", "{config}", "-M", "{root}/usr/lib/x86_64-linux-gnu/rsyslog"),
    libraries=_RSYSLOG,
    replaced={
        "global(": 'global(localHostname="{node}" ',
        'module(load="imfile")': 'module(load="imfile" mode="inotify")',
    },
)
SYSLOG_NG = Program(
    "syslog-ng.conf",
    _SYSLOG_NG / "usr/sbin/syslog-ng",
    (
        *_NG,
        "--foreground",
        "--no-caps",
        "--persist-file={state}/persist",
        "--pidfile={state}/pid",
        "--control={state}/ctl",
    ),
    (*_NG, "--syntax-only", "--no-caps", "--control={state}/ctl"),
    libraries=_SYSLOG_NG,
    replaced={'program-override("training")': 'program-override("training") host-override("{node}")'},
)
SYSLOG_NG_NODE = replace(
    SYSLOG_NG,
    config="syslog-ng-node.conf",
    replaced={
        '@include "scl.conf"': "",
        # What the kernel says, without its device, and a socket of the test's own.
        'file("/dev/kmsg"': 'file("{logs}/kmsg" follow-freq(0.5) host-override("{node}")',
        "system();": 'unix-dgram("{logs}/devlog" host-override("{node}"));',
    },
)
RSYSLOG_NODE = replace(
    RSYSLOG,
    config="rsyslog-node.conf",
    replaced={
        "global(": 'global(localHostname="{node}" ',
        'load="imklog"': 'load="imklog" logPath="{logs}/kmsg"',
        'module(load="imuxsock")': 'module(load="imuxsock" sysSock.name="{logs}/devlog" sysSock.useSpecialParser="on")',
    },
)
OTELCOL = Program(
    "otelcol.yaml",
    SHIPPERS.folder / "lib/python3.11/site-packages/otel_collector/bin/otelcol-contrib_linux_amd64",
    ("--config", "{config}"),
    ("validate", "--config", "{config}"),
)
OTELCOL_JSON = replace(OTELCOL, replaced={"compression: gzip": "encoding: json"})


@dataclass
class Shipper:
    """A running program. ``begin`` may be called again after ``end``: what it keeps on disk is the same."""

    program: Program
    folder: Path
    server: str
    token: str
    logs: Path
    node: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / self.program.config

    def write_config(self) -> None:
        """The one of deploy/shippers, with this test's addresses, folders and tokens."""
        text = (CONFIGS / self.program.config).read_text()
        for shown, here in (
            ("diagnoser:8321", self.server),
            ("dgn_TOKEN", self.token),
            ("dgn_AGENT", self.token),
            ("/var/log/training", str(self.logs)),
            *((shown, here.format(node=self.node, logs=self.logs)) for shown, here in self.program.replaced.items()),
            *self.replaced.items(),
        ):
            text = text.replace(shown, here)
        for name in ("rsyslog", "syslog-ng", "otelcol"):
            text = text.replace(f"/var/lib/{name}", str(self.state))
        self.config.write_text(text)

    @property
    def state(self) -> Path:
        state = self.folder / "state"
        state.mkdir(parents=True, exist_ok=True)
        return state

    def check(self) -> subprocess.CompletedProcess[str]:
        """What the program itself says of the configuration."""
        command = self.program.command(self.program.check, self.config, self.state)
        environment = self.program.environment(self.node)
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120)

    def begin(self) -> None:
        command = self.program.command(self.program.arguments, self.config, self.state)
        with (self.folder / "shipper.log").open("ab") as log:
            environment = self.program.environment(self.node)
            self.process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)

    def end(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=STOP_SECONDS)
        self.process = None

    def log(self) -> str:
        return (self.folder / "shipper.log").read_text(errors="replace")[-4000:]


@contextmanager
def shipping(
    program: Program, folder: Path, server: str, token: str, logs: Path, node: str, **replaced: str
) -> Iterator[Shipper]:
    """server: host and port. replaced: further changes of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    shipper = Shipper(program, folder, server, token, logs, node, replaced)
    shipper.write_config()
    shipper.begin()
    try:
        yield shipper
    finally:
        if shipper.process:
            shipper.process.kill()
            shipper.process.wait(timeout=STOP_SECONDS)

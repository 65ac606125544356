"""The command line: `main` parses flags, `diagnoser.commands` does the work.

A command's module is loaded when the command is called: all of them together take a second, which neither `--help` nor
the start of the service or of an agent shall wait for.
"""

import errno
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Load numpy without a thread for each core, none of which has work here; as they start they spin, for more time
    than the rest of numpy takes to load. What a command starts itself sees the variable as it was."""
    is_given = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if not is_given:
            del os.environ[_BLAS_THREADS]


class Deferred(TyperCommand):
    """A command, or a group of commands, of a module that is loaded when it is called.

    panel: of the list of commands. where: ``package.module:name`` of a function or of a ``typer.Typer``, below
    ``diagnoser``. help: its line in that list, with which its own help begins.
    """

    def __init__(self, panel: str, name: str, where: str, help: str) -> None:
        super().__init__(name, help=help, rich_help_panel=panel)
        self.name: str = name
        module, _, self._attribute = where.partition(":")
        self.module = f"diagnoser.{module}"

    def load(self) -> Any:
        """The command itself."""
        with one_blas_thread():
            found = getattr(import_module(self.module), self._attribute)
        parent = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            parent.add_typer(found, name=self.name)
            return typer.main.get_group(parent).commands[self.name]
        parent.command(name=self.name)(found)
        return typer.main.get_command(parent)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = self.load()
        gc.freeze()
        gc.enable()
        return command.make_context(info_name, args, parent, **extra)


class ClientCommand(Deferred):
    """A command, or a group of commands, that the client's own parser describes."""

    def __init__(self, panel: str, name: str, help: str) -> None:
        super().__init__(panel, name, "commands.client", help)

    def load(self) -> Any:
        return import_module(self.module).command(self.name)


SERVICE = "Run a service"
JOBS = "Beside a job"
FILES = "Log files, without a service"
KNOWLEDGE = "What a service knows, and how it decides"

DEFERRED = (
    ClientCommand(
        JOBS,
        "run",
        "Run a command as it would run by itself: its output passes through untouched, and its exit code is ours.",
    ),
    ClientCommand(
        JOBS,
        "ship",
        "Follow log files until SIGTERM, through both kinds of rotation, and go on where it stopped after a restart.",
    ),
    ClientCommand(
        JOBS,
        "send",
        "Send a finished log to the service, wait for its diagnosis, and print it with the address of its page.",
    ),
    ClientCommand(JOBS, "checkpoint", "Verify, list and choose checkpoints."),
    Deferred(JOBS, "evaluations", "commands.evaluations:evaluations_cli", "Evaluate checkpoints without idle GPUs."),
    Deferred(FILES, "diagnose", "commands.logs:diagnose", "Find the root cause of failed runs from their log files."),
    Deferred(FILES, "explain", "commands.logs:explain_", "Print the full diagnosis of a log."),
    Deferred(FILES, "hang", "commands.hang:hang", "Name the ranks that hold up a hung run."),
    Deferred(FILES, "compress", "commands.logs:compress", "Print the compressed view of a log."),
    Deferred(FILES, "score", "commands.scoring:score", "Score the diagnosis on labelled logs."),
    Deferred(JOBS, "check", "commands.check:check", "Ask nodes whether they show a fault."),
    Deferred(SERVICE, "agent", "agent.cli:agent_cli", "Run beside a scheduler."),
    Deferred(
        SERVICE,
        "check-config",
        "commands.check_config:check_config",
        "Check settings, tokens, hosts, rules, policy, alerts, mapping, prompts and webhook.",
    ),
    Deferred(
        SERVICE,
        "bundle",
        "commands.bundle:bundle",
        "Collect version, settings without secrets, health and recent errors",
    ),
    Deferred(SERVICE, "db", "commands.database:db_cli", "Look after the database of DIAGNOSER_DATABASE_URL."),
    Deferred(SERVICE, "token", "commands.tokens:token_cli", "Manage the tokens that the service accepts."),
    Deferred(SERVICE, "users", "commands.users:users_cli", "Manage the people who may sign in at the pages."),
    Deferred(SERVICE, "audit", "commands.audit:audit_", "Show what people, agents, tokens and commands did."),
    Deferred(
        SERVICE,
        "report",
        "commands.report:report",
        "Report what failures cost, and how many were closed without a person.",
    ),
    Deferred(SERVICE, "alerts", "commands.alerts:alerts_cli", "Show who is notified of what, and try the receivers."),
    Deferred(
        SERVICE, "consume", "commands.consume:consume", "Read lines of Kafka, Loki or VictoriaLogs into the database."
    ),
    Deferred(
        SERVICE,
        "check-mapping",
        "commands.mapping:check_mapping",
        "Show the job, attempt, rank, node and source of sample records.",
    ),
    Deferred(KNOWLEDGE, "logs", "commands.lines:logs", "Print the lines of one stream of a job as they came."),
    Deferred(KNOWLEDGE, "mcp", "commands.mcp:mcp", "Serve an assistant over standard input and output."),
    Deferred(KNOWLEDGE, "rules", "commands.rules:rules_cli", "List diagnosis rules and test them."),
    Deferred(KNOWLEDGE, "policy", "commands.policy:policy_cli", "Explain the recovery policy."),
    Deferred(KNOWLEDGE, "prompts", "commands.prompts:prompts_cli", "Show prompts."),
)


class Commands(TyperGroup):
    """Those of this module, and the deferred ones."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in DEFERRED:
            self.add_command(command)


cli = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Find out why a training job failed.", pretty_exceptions_enable=False
)


def main() -> None:
    """Run the command that the arguments name. An error that a person can act on is one line, without a traceback."""
    try:
        cli()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        _complain(error)
        sys.exit(1)
    finally:
        gc.freeze()  # the process ends: looking for garbage among all that was loaded would take half a second


def _complain(error: Exception) -> None:
    """Print the faults of an error that a person can act on; raise any other again."""
    from diagnoser.commands.terminal import complain
    from diagnoser.model.errors import DiagnoserError, RuleFaults, os_reason  # `--help` needs none of the model

    match error:
        case RuleFaults():
            for fault in error.faults:
                complain(str(fault))
        case DiagnoserError():
            complain(f"diagnoser: {error}")
        case OSError(filename=str() as name):
            complain(f"diagnoser: {name}: {os_reason(error)}")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO):  # where it is written names no file
            complain(f"diagnoser: cannot write the output: {os_reason(error)}")
        case _:
            raise error


@cli.command(rich_help_panel=SERVICE)
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [env: DIAGNOSER_HOST].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [env: DIAGNOSER_PORT].")] = None,
    role: Annotated[
        str | None, typer.Option(help="all, api or worker: which parts of the service to run [env: DIAGNOSER_ROLE].")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that take requests [env: DIAGNOSER_WORKERS].")] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate with its chain, to serve https [env: DIAGNOSER_TLS_CERTIFICATE].")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key [env: DIAGNOSER_TLS_KEY].")] = None,
) -> None:
    """Run the service: HTTP API with web pages, and the worker, as separate processes, or only one of them."""
    named: dict[str, object] = {"host": host, "port": port, "role": role, "workers": workers}
    named |= {"tls_certificate": tls_certificate, "tls_key": tls_key}
    flags = {name: value for name, value in named.items() if value is not None}
    with one_blas_thread():
        from diagnoser import processes
        from diagnoser.config import settings

    processes.serve(settings.load(os.environ, **flags))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # it brings a mail parser

        typer.echo(metadata.version("diagnoser"))
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Find out why a training job failed."""


@cli.command(rich_help_panel=SERVICE)
def version() -> None:
    """Print the version."""
    _print_version(True)

"""The command line of the client: `run`, `ship`, `send` and `checkpoint`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Mapping, Sequence

from diagnoser.client.checkpoints import command as checkpoints
from diagnoser.client.launch import Options
from diagnoser.client.origin import ORIGIN, VERSION
from diagnoser.client.run import RunOptions, ServerOptions, run, say
from diagnoser.client.send import BrokenLog, SendOptions, send
from diagnoser.client.service import Service, TokenSource, UsageError
from diagnoser.client.ship import ShipOptions, ship


def main(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run a command of the client. Returns the exit code: of the command for `run`; 2: the options cannot be used."""
    name = "diagnoser"
    if sys.argv[0].endswith(".pyz"):
        name = os.path.basename(sys.argv[0])
    options = parser(name).parse_args(words)
    try:
        return _act(options, environment)
    except UsageError as error:
        say(str(error))
        return 2
    except BrokenLog as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def _act(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if options.command == "checkpoint":
        return checkpoints.main(options, lambda: _service(options, environment))
    identity = Options(options.job, options.attempt, options.rank, options.node, getattr(options, "name", ""))
    server = _server(options, environment)
    if options.command == "run":
        command = options.words
        if command[:1] == ["--"]:
            command = command[1:]
        if not command:
            raise UsageError("name the command: run -- torchrun ...")
        return run(
            RunOptions(server, identity, options.wait, options.spool, options.source, options.json),
            command,
            environment,
        )
    _require_service(server)
    if options.command == "ship":
        return ship(ShipOptions(server, identity, tuple(options.files), options.state, options.once), environment)
    return send(SendOptions(server, identity, options.log, options.code, options.wait, options.json))


def parser(name: str = "diagnoser") -> argparse.ArgumentParser:
    """name: of the program in its help."""
    top = argparse.ArgumentParser(prog=name, description="Ship what a training prints, and get its diagnosis.")
    if VERSION:
        top.add_argument("--version", action="version", version=VERSION)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (_run_parser(commands), _ship_parser(commands), _send_parser(commands)):
        _add_server_options(command)
        command.add_argument(
            "--job", default="", help="Id of the job [env: DIAGNOSER_JOB]. Default: what the scheduler says."
        )
        command.add_argument(
            "--attempt",
            type=checkpoints.number_from_1,
            help="Launch of the job, from 1. Default: what the scheduler or the service says.",
        )
        command.add_argument("--rank", type=_natural, help="Rank that prints. Default: what the launcher says.")
        command.add_argument("--node", default="", help="Node that it runs on. Default: this one.")
    about = "Checkpoints with manifests: read them again, list them, find the newest that can be trusted."
    actions = commands.add_parser("checkpoint", help="Verify, list and choose checkpoints.", description=about)
    verify = checkpoints.add_parsers(actions.add_subparsers(dest="action", required=True, metavar="ACTION"))
    _add_server_options(verify)
    verify.add_argument("--job", default="", help="Id of the job. Default: what the checkpoint says.")
    verify.add_argument(
        "--attempt", type=checkpoints.number_from_1, help="Launch of the job. Default: what the checkpoint says."
    )
    return top


def _service(options: argparse.Namespace, environment: Mapping[str, str]) -> Service:
    server = _server(options, environment)
    _require_service(server)
    return Service(server.url, server.token)


def _require_service(server: ServerOptions) -> None:
    if not server.url:
        raise UsageError("name the service with --server or DIAGNOSER_URL")


def _server(options: argparse.Namespace, environment: Mapping[str, str]) -> ServerOptions:
    url = options.server or environment.get("DIAGNOSER_URL", "") or ORIGIN
    return ServerOptions(url, TokenSource.of(environment, options.token_file))


def _add_server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--server",
        default="",
        metavar="URL",
        help="Address of the service [env: DIAGNOSER_URL]. Default: where this file came from.",
    )
    command.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="File with a token; DIAGNOSER_TOKEN may hold it instead [env: DIAGNOSER_TOKEN_FILE].",
    )


def _run_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = (
        "Run a command as it would run by itself: its output passes through untouched, and its exit code is ours. "
        "What it prints is shipped, and when it fails, the diagnosis is printed. Whatever is wrong with the service "
        "is nothing to the command."
    )
    command = commands.add_parser("run", help="Run a command and ship what it prints.", description=about)
    command.add_argument("--name", default="", help="Name of the job, for people.")
    command.add_argument(
        "--wait",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="Longest wait for the diagnosis of a failure. 0: do not wait.",
    )
    command.add_argument(
        "--spool",
        default="",
        metavar="FOLDER",
        help="Where lines wait that memory has no room for, 64 MB at most. Default: the folder of temporary files.",
    )
    command.add_argument("--source", default="", help="Name of the stream. Default: one that no other launch has.")
    command.add_argument("--json", action="store_true", help="Print the diagnosis as JSON.")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="The command, after --.")
    return command


def _ship_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = (
        "Follow log files until SIGTERM, through both kinds of rotation, and go on where it stopped after a restart. "
        "Names such as rank3.log give the rank; a folder stands for the logs below it, such as torchrun's --log-dir."
    )
    command = commands.add_parser("ship", help="Follow log files and ship them.", description=about)
    command.add_argument(
        "files", nargs="+", metavar="FILE", help="Files, patterns such as 'logs/rank*.log', or folders."
    )
    command.add_argument("--once", action="store_true", help="Ship what is there now, and end.")
    command.add_argument(
        "--state", default="", metavar="FILE", help="What must survive a restart. Default: a file of the user's own."
    )
    return command


def _send_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Send a finished log to the service, wait for its diagnosis, and print it with the address of its page."
    command = commands.add_parser("send", help="Send a finished log and print its diagnosis.", description=about)
    command.add_argument("log", metavar="LOG", help="A file, plain or gzip; - is standard input.")
    command.add_argument("--name", default="", help="Name of the job, for people.")
    command.add_argument("--code", type=int, help="Exit code that the run ended with, if it is known.")
    command.add_argument(
        "--wait", type=_seconds, default=60.0, metavar="SECONDS", help="Longest wait for the diagnosis."
    )
    command.add_argument("--json", action="store_true", help="Print the diagnosis as JSON.")
    return command


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("{} is negative".format(text))
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 86400:
        raise argparse.ArgumentTypeError("{} is no number of seconds below a day".format(text))
    return seconds

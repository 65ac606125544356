"""The command line. `main` parses flags; the work is done elsewhere."""

import asyncio
import gzip
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast
from urllib.parse import quote

import orjson
import typer
import zstandard
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
    track,
)
from rich.table import Table

from diagnoser import evaluation, explain, pipeline, settings, show
from diagnoser.agent.command import agent_cli
from diagnoser.compress import Digest
from diagnoser.errors import BadInput, DiagnoserError, RuleFaults
from diagnoser.failure_agent import When
from diagnoser.model import Diagnosis, Evidence, Facts
from diagnoser.reader import Reader, subject
from diagnoser.recovery.policy import case_of
from diagnoser.rules import examples
from diagnoser.settings import Settings
from diagnoser.site import load_codes, load_reader
from diagnoser.taxonomy import GPU_TIME_SHARE, Action, FailureType, category_of

cli = typer.Typer(
    no_args_is_help=True, help="Names why a training job failed, from its log.", pretty_exceptions_enable=False
)
rules_cli = typer.Typer(no_args_is_help=True, help="Look at the diagnosis rules and prove them.")
cli.add_typer(rules_cli, name="rules")
cli.add_typer(agent_cli, name="agent")
policy_cli = typer.Typer(no_args_is_help=True, help="Look at the recovery policy.")
cli.add_typer(policy_cli, name="policy")
prompts_cli = typer.Typer(no_args_is_help=True, help="Look at the prompts.")
cli.add_typer(prompts_cli, name="prompts")

out = Console()
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]
Files = Annotated[list[Path], typer.Argument(help="Log files (.gz and .zst too); - is standard input.")]
NodeLogs = Annotated[
    list[str] | None,
    typer.Option("--node-log", metavar="NODE=FILE", help="The kernel log of a node that the job ran on; repeatable."),
]
BIG = 8 << 20  # bytes from which a file gets a progress bar


def main() -> None:
    """Errors that a person can act on are one line and exit code 1, never a traceback."""
    try:
        cli()
    except RuleFaults as faults:
        for fault in faults.faults:
            _complain(str(fault))
        sys.exit(1)
    except DiagnoserError as error:
        _complain(f"diagnoser: {error}")
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _settings() -> Settings:
    return settings.load(os.environ)


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [env: DIAGNOSER_HOST].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [env: DIAGNOSER_PORT].")] = None,
) -> None:
    """Run the service: HTTP API, web pages and workers in one process."""
    flags = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    from diagnoser import app  # here, because what a server needs takes a second to load

    asyncio.run(app.serve(settings.load(os.environ, **flags)))


@cli.command()
def diagnose(files: Files, as_json: AsJson = False, node_log: NodeLogs = None) -> None:
    """Name the root cause of failed runs, from their log files alone."""
    reader, failed = load_reader(_settings()), False
    nodes = _node_logs(node_log)
    for path in files:
        try:
            diagnosis = _diagnose(reader, path, nodes=nodes)
        except OSError as error:
            _complain(f"diagnoser: cannot read {path}: {error.strerror or error}")
            failed = True
            continue
        if as_json:
            _print_json({"file": str(path), **show.contract(diagnosis)})
        else:
            show.diagnosis(out, str(path), diagnosis)
    if failed:
        raise typer.Exit(1)


@cli.command(name="explain")
def explain_(files: Files, as_json: AsJson = False, node_log: NodeLogs = None) -> None:
    """Tell the diagnosis of a log in full: chain, lines with context, candidates rejected and why."""
    reader, nodes = load_reader(_settings()), _node_logs(node_log)
    for path in files:
        try:
            digest = _digest(reader, path)
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
        evidence = digest.evidence()
        diagnosis = reader.diagnose(evidence, Facts(node_logs=_read_nodes(reader, evidence, nodes)))
        if as_json:
            _print_json({"file": str(path), **explain.explained(diagnosis, evidence.lines)})
        else:
            explain.explain(out, str(path), diagnosis, evidence.lines)


@cli.command()
def compress(
    file: Annotated[Path, typer.Argument(help="Log file (.gz and .zst too); - is standard input.")],
    as_json: AsJson = False,
    tokens: Annotated[int, typer.Option(help="Size of the view, in tokens of a model.", min=200)] = 8000,
) -> None:
    """Print the compressed view of a log: what matters verbatim, the rest as counted templates."""
    reader = load_reader(_settings())
    started = time.perf_counter()
    try:
        with _opened(file) as (log, size), _bar(file, size) as told:
            digest = reader.read(log, told)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from None
    seconds = time.perf_counter() - started
    evidence = digest.evidence()
    if as_json:
        figures = {
            **show.plain(evidence.compression),
            "seconds": round(seconds, 3),
            "templates": len(evidence.templates),
        }
        _print_json(figures)
    else:
        out.print(digest.render(tokens), markup=False, highlight=False, soft_wrap=True)
        err.print(show.compression(evidence.compression, seconds), style="dim", highlight=False)


@cli.command(name="eval")
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder with labels.jsonl and one <id>.log a case.")],
    as_json: AsJson = False,
    model: Annotated[bool, typer.Option("--model", help="Also ask the configured model: what does it add?")] = False,
    spliced: Annotated[Path | None, typer.Option(help="Put each case at the end of this healthy log first.")] = None,
) -> None:
    """Score the diagnosis on labelled logs."""
    labels = [evaluation.label_of(orjson.loads(line)) for line in _text(folder / "labels.jsonl").splitlines()]
    reader = load_reader(_settings())
    if model:
        _try_model(reader, folder, labels, as_json)
        return
    verdicts = [
        evaluation.judge(label, *diagnosed)
        for label, diagnosed in zip(labels, _cases(reader, folder, labels, spliced), strict=True)
    ]
    report = evaluation.report(verdicts, {str(kind): share for kind, share in GPU_TIME_SHARE.items()})
    if as_json:
        _print_json(show.report_json(report))
    else:
        show.report(out, report)


def _cases(
    reader: Reader, folder: Path, labels: Sequence[evaluation.Label], healthy: Path | None
) -> Iterator[tuple[Diagnosis, int]]:
    """The diagnosis of each case, and how many lines stand before it. The healthy log is compressed only once."""
    before, shift = [], 0
    if healthy:
        with _opened(healthy) as (log, size), _bar(healthy, size) as told:
            head, shift = reader.delta(log, told=told)
        before.append(head)
    for label in track(labels, description=f"Diagnosing {len(labels)} logs", console=err, transient=True):
        with _opened(folder / f"{label.id}.log") as (log, _):
            tail, _ = reader.delta(log, shift + 1)
        yield reader.diagnose(reader.digest([*before, tail]).evidence(), Facts()), shift


def _try_model(reader: Reader, folder: Path, labels: Sequence[evaluation.Label], as_json: bool) -> None:
    from diagnoser import (  # here, because the client of a model server takes a second to load
        model_stage,
        telemetry,
        trial,
    )

    chosen = _settings()
    telemetry.set_up_logging(as_json=False, level="error")
    if not chosen.model_url:
        raise BadInput("eval --model needs DIAGNOSER_MODEL_URL and DIAGNOSER_MODEL_NAME")
    cases = []
    for label in track(labels, description=f"Diagnosing {len(labels)} logs", console=err, transient=True):
        digest = _digest(reader, folder / f"{label.id}.log", quiet=True)
        diagnosis = pipeline.diagnose(digest.evidence(), Facts(), reader.knowledge)
        cases.append(trial.case(label, diagnosis, subject(diagnosis, digest, Facts()), When(chosen.model_when)))
    outcomes = asyncio.run(model_stage.tried(chosen, cases, reader.knowledge.policy))
    if as_json:
        _print_json({one.name: one.figures() for one in outcomes})
    else:
        show.trial(out, outcomes)


@prompts_cli.command(name="render")
def prompts_render(
    name: Annotated[str, typer.Argument(help="<name>/v<N>, as a folder of prompts has it.")] = "failure_agent/v1",
    log: Annotated[Path | None, typer.Option(help="Fill it for this log; - is standard input.")] = None,
) -> None:
    """Show a prompt: its templates, or exactly what a model would get for a log, masked and with its marker."""
    from diagnoser import model_stage

    prompt, chosen = model_stage.load_prompt(_settings(), name), _settings()
    system, user = prompt.system, prompt.user
    if log:
        reader = load_reader(chosen)
        digest = _digest(reader, log)
        diagnosis = pipeline.diagnose(digest.evidence(), Facts(), reader.knowledge)
        request = model_stage.rendered(chosen, prompt, subject(diagnosis, digest, Facts()))
        system, user = request.system, request.user
    err.print(f"{prompt.label} {prompt.hash}", style="dim", highlight=False)
    for part, text in (("system", system), ("user", user)):
        out.print(f"--- {part}", style="bold", highlight=False)
        out.print(text, markup=False, highlight=False, soft_wrap=True)


@rules_cli.command(name="list")
def rules_list(
    as_json: AsJson = False,
    kind: Annotated[FailureType | None, typer.Option("--type", help="Only rules of this failure type.")] = None,
) -> None:
    """All rules, by category and type."""
    rules = load_reader(_settings()).knowledge.engine.ruleset.rules
    chosen = sorted((r for r in rules if kind in (None, r.type)), key=lambda r: (category_of(r.type), r.type, r.id))
    if as_json:
        for rule in chosen:
            _print_json(rule.model_dump(mode="json", exclude={"examples"}))
        return
    table = Table("category", "type", "rule", "role", "maturity", "title", box=None, header_style="bold")
    for rule in chosen:
        table.add_row(category_of(rule.type), rule.type, rule.id, rule.role, rule.maturity, rule.title)
    out.print(table)
    out.print(f"{len(chosen)} rules for {len({rule.type for rule in chosen})} types", style="dim")


@rules_cli.command(name="xid")
def rules_xid(
    code: Annotated[int | None, typer.Argument(help="An Xid or SXid; all when left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What NVIDIA's Xid and SXid codes mean, and what follows from them."""
    codes = load_codes(_settings(), load_reader(_settings()).knowledge.engine.ruleset)
    chosen = [row for row in (*codes.xid, *codes.sxid) if code in (None, row.code)]
    if not chosen:
        raise BadInput(f"{code} is no public Xid or SXid")
    if as_json:
        for row in chosen:
            _print_json(row.model_dump(mode="json"))
        return
    table = Table(
        "code", "name", "meaning", "type", "first time", "again on the same GPU", box=None, header_style="bold"
    )
    for row in chosen:
        type_ = row.type or ("says nothing alone" if row.says_nothing_alone else "")
        first = row.action or Action.NONE
        table.add_row(str(row.code), row.name, row.meaning or row.severity, type_, first, row.repeated or first)
    out.print(table)


@rules_cli.command(name="test")
def rules_test() -> None:
    """Check every rule's and filter's examples; exit code 1 when one does not hold."""
    reader = load_reader(_settings())
    load_codes(_settings(), reader.knowledge.engine.ruleset)
    faults = examples.check(reader.knowledge.engine, reader.evidence_of)
    if faults:
        raise RuleFaults(faults)
    rules = reader.knowledge.engine.ruleset.rules
    count = sum(len(rule.examples.match) + len(rule.examples.no_match) for rule in rules)
    out.print(f"{count} examples of {len(rules)} rules hold")


@policy_cli.command(name="explain")
def policy_explain(
    what: Annotated[str, typer.Argument(help="A log file, or with --url the id of a stored diagnosis.")],
    url: Annotated[str, typer.Option(help="The service that stores the diagnosis, as http://127.0.0.1:8321.")] = "",
    token: Annotated[str, typer.Option(envvar="DIAGNOSER_TOKEN", help="A read token of that service.")] = "",
    as_json: AsJson = False,
) -> None:
    """Which row of the policy table applies, and why not the rows before it."""
    if url:
        told = _fetched(f"{url.rstrip('/')}/api/v1/diagnoses/{quote(what, safe='')}/policy", token)
        rows = [(str(one["row"]), str(one["why_not"])) for one in told["rows"]]
        action, plan = str(told["action"]), told["plan"]
    else:
        reader, plan = load_reader(_settings()), None
        try:
            case, policy = case_of(_diagnose(reader, Path(what))), reader.knowledge.policy
        except OSError as error:
            raise BadInput(f"cannot read {what}: {error.strerror or error}") from None
        rows, action = policy.explain(case), str(policy.advise(case).action)
    if as_json:
        _print_json({"rows": [{"row": row, "why_not": why} for row, why in rows], "action": action, "plan": plan})
        return
    table = Table("row", "", box=None, header_style="bold")
    for row, why in rows:
        table.add_row(row, f"[bold green]applies[/]: {action}" if not why else f"no: {escape(why)}")
    out.print(table)
    if plan:
        out.print(f"plan {plan['id']} is {plan['state']} ({plan['reason']})", markup=False, highlight=False)


def _fetched(address: str, token: str) -> dict[str, Any]:
    import httpx  # the other commands start without it

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(address, headers=headers, timeout=10.0)
        told: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(f"{address} does not answer as this service does: {type(error).__name__}") from None
    if answer.status_code != httpx.codes.OK:
        raise BadInput(f"{address}: {told.get('detail') or answer.reason_phrase}")
    return told


@cli.command()
def version() -> None:
    """Print the version."""
    out.print(installed("diagnoser"), highlight=False)


def _diagnose(reader: Reader, path: Path, quiet: bool = False, nodes: Sequence[tuple[str, Path]] = ()) -> Diagnosis:
    evidence = _digest(reader, path, quiet).evidence()
    return reader.diagnose(evidence, Facts(node_logs=_read_nodes(reader, evidence, nodes)))


def _node_logs(given: Sequence[str] | None) -> list[tuple[str, Path]]:
    pairs = [(node, Path(file)) for node, _, file in (one.partition("=") for one in given or ())]
    if any(not node or not file.name for node, file in pairs):
        raise BadInput("--node-log wants NODE=FILE, as in --node-log gpu-17=gpu-17.dmesg")
    return pairs


def _read_nodes(reader: Reader, evidence: Evidence, nodes: Sequence[tuple[str, Path]]) -> dict[str, list[bytes]]:
    """Their formats without a year are read as of the time of the job's log."""
    near, found = max((line.time for line in evidence.lines), default=0.0), dict[str, list[bytes]]()
    for node, path in nodes:
        with _opened(path) as (log, _):
            found.setdefault(node, []).append(reader.node_log(node, log, near))
    return found


def _digest(reader: Reader, path: Path, quiet: bool = False) -> Digest:
    with _opened(path) as (log, size), _bar(path, 0 if quiet else size) as told:
        return reader.read(log, told)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The log and its size on disk (0 when it is not known); compressed files are read as what they hold."""
    if str(path) == "-":
        yield sys.stdin.buffer, 0
        return
    with path.open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        head = raw.peek(4)[:4]
        if head.startswith(b"\x1f\x8b"):
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)), 0
        elif head == b"\x28\xb5\x2f\xfd":
            yield cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw)), 0
        else:
            yield raw, size


@contextmanager
def _bar(path: Path, size: int) -> Iterator[show.Told]:
    """A progress bar on standard error, for large files on a terminal."""
    if size < BIG or not err.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(path.name, total=size)
        yield lambda count: progress.advance(task, count)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None


def _complain(text: str) -> None:
    """One line, however narrow the terminal: it may be read by a program."""
    err.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()

"""`db`: bring the database up to date, drop what is old, copy it, and look whether it is sound."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from diagnoser.commands.terminal import AsJson, err, out, print_json, site
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.model.spans import seconds

db_cli = typer.Typer(no_args_is_help=True, help="Look after the database of DIAGNOSER_DATABASE_URL.")

DAY = 86_400.0


@db_cli.command()
def upgrade(
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="First make the database if it is not there: a file of SQLite, or PostgreSQL's CREATE DATABASE.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the tables up to date. The service does so at its start as well; replicas of the version before go on."""
    from diagnoser.adapters.sql import administration, migrations

    url = site().database_url
    before = ""
    if create:
        asyncio.run(administration.create_missing(url))
    else:
        before = asyncio.run(administration.schema(url))
    asyncio.run(migrations.upgrade(url))
    after = asyncio.run(administration.schema(url))
    if as_json:
        print_json({"before": before or None, "after": after})
    elif before in ("", after):
        out.print(f"schema {after}")
    else:
        out.print(f"schema {after}, was {before}")


@db_cli.command()
def prune(
    older_than: Annotated[
        str, typer.Option(help="Age of attempts that go, such as 90d. Default: DIAGNOSER_RETENTION_DAYS.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Drop what is older than the settings say, in short commits, also while the service runs. It can be stopped at any
    time. What waits, is under way or was judged by a person stays."""
    from diagnoser.adapters.sql import administration

    settings = site()
    if older_than:
        days = int(seconds(older_than) // DAY)
        if days < 1:
            raise BadInput("--older-than is a number of days, such as 90d")
        settings = settings.model_copy(update={"retention_days": days})
    administration.require_existing(settings.database_url)
    dropped = asyncio.run(_pruned(settings, quiet=as_json))
    if as_json:
        print_json(dropped)
    else:
        counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in dropped.items() if count)
        if counts:
            out.print(f"dropped {counts}")
        else:
            out.print("nothing to drop")


@db_cli.command()
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.")], as_json: AsJson = False
) -> None:
    """Write a copy of the whole database to a file, also while the service runs. PostgreSQL: by its own pg_dump."""
    from diagnoser.adapters.sql import administration

    with _progress(as_json) as advance:
        administration.back_up(site().database_url, file, advance)
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        out.print(f"{file}: {size:,} bytes")


@db_cli.command()
def restore(
    file: Annotated[Path, typer.Argument(help="File that `db backup` wrote.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what the database holds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the database what a backup holds, all or nothing. Stop the service first."""
    from diagnoser.adapters.sql import administration, migrations

    url = site().database_url
    administration.check_file(url, file)
    if not overwrite and asyncio.run(administration.holds_data(url)):
        raise BadInput("the database is not empty: --overwrite replaces what it holds")
    with _progress(as_json) as advance:
        administration.restore(url, file, advance, overwrite=overwrite)
    asyncio.run(migrations.upgrade(url))
    revision = asyncio.run(administration.schema(url))
    if as_json:
        print_json({"file": str(file), "schema": revision})
    else:
        out.print(f"restored, schema {revision}")


@db_cli.command()
def check(as_json: AsJson = False) -> None:
    """Read the whole database and tell what is wrong with it. Exits with 1 if anything is."""
    from diagnoser.adapters.sql import administration

    report = asyncio.run(administration.check(site().database_url))
    if as_json:
        print_json(asdict(report))
    else:
        out.print(f"{report.kind}, schema {report.schema or 'none'}, {report.size:,} bytes")
        for name, count in report.rows.items():
            out.print(f"  {count:>12,} {name.replace('_', ' ')}")
        for fault in report.faults:
            err.print(fault, style="red")
    if report.faults:
        raise typer.Exit(1)


async def _pruned(settings: Settings, *, quiet: bool) -> dict[str, int]:
    """Kind -> how many were dropped."""
    from prometheus_client import CollectorRegistry

    from diagnoser.adapters.sql.store import open_store
    from diagnoser.config.storage import open_archive, retention_ages
    from diagnoser.observability.metrics import DROPPED, Metrics
    from diagnoser.worker.retention import Retention

    archive = open_archive(settings)
    store, metrics = await open_store(settings.database_url), Metrics(CollectorRegistry())
    try:
        retention = Retention(store, time.time, retention_ages(settings), metrics, archive)
        with Progress("dropped: {task.completed:,.0f}", console=err, transient=True, disable=quiet) as bar:
            task = bar.add_task("", total=None)
            while count := await retention.drop():
                bar.advance(task, count)
    finally:
        await store.close()
    name, registry = "diagnoser_retention_dropped_total", metrics.registry
    return {kind: int(registry.get_sample_value(name, {"kind": kind}) or 0) for kind in DROPPED}


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """On standard error, where a person looks."""
    with Progress(console=err, transient=True, disable=quiet) as bar:
        task = bar.add_task("copying", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)

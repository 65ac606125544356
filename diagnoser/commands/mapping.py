"""`check-mapping`: what records of a shipper become, without a server."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diagnoser.adapters import files
from diagnoser.commands.terminal import AsJson, out, print_json, site
from diagnoser.config.site_files import load_mapping
from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.batch import Labels, Place
from diagnoser.ingest.mapping import FieldMapping, load
from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.ingest.samples import read_samples
from diagnoser.model import NODE_LOG
from diagnoser.model.errors import BadInput

Samples = Annotated[
    list[str] | None,
    typer.Argument(
        help='Files with samples, or a sample itself: a JSON record, labels as {app="a"}, or name=value. Without any, '
        "or for -: standard input."
    ),
]
MappingFile = Annotated[Path | None, typer.Option("--mapping", metavar="FILE", help="Instead of DIAGNOSER_MAPPING.")]


def check_mapping(samples: Samples = None, mapping_file: MappingFile = None, as_json: AsJson = False) -> None:
    """Show the job, attempt, rank, node and source of sample records, and why. Exits with 1 when one has no place."""
    mapping = load_mapping(site()) if mapping_file is None else load(str(mapping_file), files.text(mapping_file))
    checked = []
    for given in samples or ["-"]:
        for sample, labels in read_samples(_text(given), mapping):
            checked.append(_checked(sample, labels, mapping))
    if not checked:
        raise BadInput("no sample: give a file, a record or standard input")
    for number, result in enumerate(checked, 1):
        if as_json:
            print_json(result)
        else:
            _show(number, result)
    if not all(result["placed"] for result in checked):
        raise typer.Exit(1)


def _text(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if given.lstrip().startswith(("{", "[")):
        return given
    if "=" in given and not Path(given).exists():
        return given
    return files.text(Path(given))


def _checked(sample: str, labels: Labels, mapping: FieldMapping) -> dict[str, Any]:
    defaults = RecordDefaults(vouched=True)
    where = mapping.attribute(labels, defaults)
    decisions = mapping.trace(labels, defaults)
    decided = {}
    for field, decision in decisions.items():
        if decision.value:
            decided[field] = {"value": decision.value, "by": decision.origin, "labels": list(decision.labels)}
    result = {"sample": sample, "placed": isinstance(where, Place), "decided": decided}
    if isinstance(where, Place):
        (job, attempt), stream = where
        place = {"job": job, "attempt": attempt, "rank": stream.rank, "node": stream.node, "source": stream.source}
        doubt = ""
        if job.startswith(NODE_LOG):
            doubt = mapping.node_doubts(labels, defaults)
        return result | place | {"provenance": stream.provenance.value, "warning": doubt}
    proposed = mapping_hint(where.labels, where.reason, "")
    return result | {
        "reason": where.reason.value,
        "detail": where.detail,
        "read": dict(where.labels),
        "mapping": proposed.mapping_lines,
        "setting": proposed.setting,
    }


def _show(number: int, result: dict[str, Any]) -> None:
    def line(text: str, style: str | None = None) -> None:
        out.print(text, style=style, soft_wrap=True)

    line(f"{number}  {result['sample'][:200]}", "dim")
    for field, decision in result["decided"].items():
        origin = ": ".join(filter(None, (decision["by"], ", ".join(decision["labels"]))))
        line(f"   {field:<9}{decision['value']}   ({origin})")
    if not result["placed"]:
        line(f"   NO PLACE  {result['detail']}", "red")
        if result["mapping"]:
            line("   these lines of a mapping file would place it (DIAGNOSER_MAPPING):")
            for row in result["mapping"].splitlines():
                line(f"       {row}")
        line(f"   at the shipper: {result['setting']}")
    elif result["job"].startswith(NODE_LOG):
        line(f"   = the own log of node {result['node']}: its sender needs a token with the scope agent", "bold")
        if result["warning"]:
            line(f"   WARNING  source {result['source']}: {result['warning']}", "yellow")
    else:
        attempt, rank = result["attempt"] or "the latest", result["rank"]
        if rank < 0:
            rank = "as its lines say"
        line(f"   = job {result['job']}, attempt {attempt}, rank {rank}, source {result['source']}", "bold")

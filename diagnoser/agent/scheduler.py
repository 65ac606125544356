"""Flags that the agents of all schedulers have. Adding a scheduler takes a folder with ``COMMANDS``, and a line in
``SCHEDULERS`` (docs/agents.md)."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnoser.model.errors import BadInput
from diagnoser.model.record_json import fields_of

if TYPE_CHECKING:
    from diagnoser.agent.places import Places
    from diagnoser.agent.runtime import AgentOptions

STATE = Path("/var/lib/diagnoser-agent")
check_option = partial(typer.Option, rich_help_panel="Checks of nodes")
evidence_option = partial(typer.Option, rich_help_panel="Evidence of hangs")
webhook_option = partial(typer.Option, rich_help_panel="Webhook")
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,99}")

Nodes = Annotated[list[str], typer.Argument(help="Nodes to put back into service.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFlags:
    server: Annotated[str, typer.Option(help="Address of the service, such as http://diagnoser:8321.")]
    cluster: Annotated[str, typer.Option(help="Name of the cluster; part of every job id.")]
    token: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_AGENT_TOKEN", help="Token of the service with the scope agent.", show_default=False
        ),
    ] = ""
    poll: Annotated[
        float, typer.Option(help="Longest interval between two polls of the scheduler, in seconds.", min=0.2, max=300)
    ] = 2.0
    logs: Annotated[bool, typer.Option(help="Ship the logs of jobs.")] = True
    node_queries: Annotated[
        Path | None,
        check_option(
            help="Table of the commands that may be run on a suspected node to ask it. Default: the shipped "
            "node_queries.yaml."
        ),
    ] = None
    node_check_script: Annotated[
        str,
        check_option(
            help="The site's own check of a node, as the node calls it: one more query. Exit codes 1 to 125 prove a "
            "fault."
        ),
    ] = ""
    places: Annotated[
        Path | None,
        typer.Option(
            help="File of places and their nodes, a line each: 'rack:r07 gpu-[001-018]'. Beside what the scheduler "
            "tells of switches, blocks and domains.",
        ),
    ] = None
    dumps: Annotated[
        list[str],
        evidence_option(
            help="Dump files of a job that this agent can read, such as '/shared/dumps/{job}/_dump_*'. Only plain "
            "files of the job's user are read, and no link is followed below the first name with a field or "
            "wildcard. Repeatable."
        ),
    ] = field(default_factory=list)
    node_dumps: Annotated[
        list[str],
        evidence_option(help="The same for files on the nodes, where --collect-evidence reads them. Repeatable."),
    ] = field(default_factory=list)
    collect_evidence: Annotated[
        bool,
        evidence_option(
            "--collect-evidence",
            help="When a run falls silent, run ncclras and py-spy beside it, as the job's user and without stopping "
            "any process.",
        ),
    ] = False
    state: Annotated[Path, typer.Option(help="Folder for state that must survive a restart.")] = STATE
    dry_run: Annotated[bool, typer.Option(help="Change nothing on the cluster; log what would be done.")] = False
    json_log: Annotated[bool, typer.Option(help="Write the agent's own log as JSON.")] = False
    listen: Annotated[
        str,
        webhook_option(
            help="host:port on which to receive the service's signed webhook, instead of long polling for plans."
        ),
    ] = ""
    secret: Annotated[
        str,
        webhook_option(
            envvar="DIAGNOSER_AGENT_WEBHOOK_SECRET", help="Signing secret of that webhook.", show_default=False
        ),
    ] = ""

    def begin(self, fields: Sequence[str]) -> "AgentOptions":
        """Set up the agent's log and its folder, and read the table of queries. Raises BadInput, RuleFaults.

        fields: those that patterns of dump files may have at this scheduler.
        """
        from diagnoser.agent import evidence
        from diagnoser.agent.node_query import load_table
        from diagnoser.agent.runtime import AgentOptions
        from diagnoser.observability.logging import set_up

        if not CLUSTER.fullmatch(self.cluster):
            named = f"{self.cluster[:60]!r} cannot be the name of a cluster"
            raise BadInput(f"{named}: letters, digits, dots and underscores")
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # batch scripts of users pass through it
        except OSError as error:
            raise BadInput(f"cannot make {self.state}: {error.strerror}; name another folder with --state") from None
        set_up(as_json=self.json_log, level="info")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        return AgentOptions(
            dry=self.dry_run,
            queries=load_table(self.node_queries),
            script=self.node_check_script,
            evidence=evidence.options(self.dumps, self.node_dumps, fields, programs=self.collect_evidence),
            places=self.read_places(),
            **fields_of(self, ("server", "cluster", "token", "poll", "logs", "state", "listen", "secret")),
        )

    def read_places(self) -> "Places":
        """Raises BadInput."""
        from diagnoser.agent.places import from_file

        if self.places is None:
            return {}
        try:
            return from_file(self.places.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--places {self.places}: cannot be read: {error}") from None

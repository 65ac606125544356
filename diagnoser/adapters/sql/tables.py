"""The tables. What is asked for is a column; the rest of a record is one JSON text, so that it can grow.

Times are seconds since the epoch. Migrations are written by hand; a test compares their result with this file.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Computed,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    column,
    event,
    or_,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.elements import Grouping

metadata = MetaData()


def _table(name: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only under the name INTEGER


def _texts(*names: str, key: bool = False) -> list[Column[str]]:
    return [Column(name, Text, primary_key=key, nullable=False) for name in names]


def _numbers(kind: Any, *names: str, key: bool = False, nullable: bool = False) -> list[Column[Any]]:
    """No database numbers them by itself."""
    return [Column(name, kind, primary_key=key, nullable=nullable, autoincrement=False) for name in names]


def _of_attempt(*, key: bool = False) -> tuple[SchemaItem, ...]:
    """Rows that go with their attempt. key: it is a part of their key."""
    attempt = ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE")
    return *_texts("job", key=key), *_numbers(BigInteger, "attempt", key=key), attempt


def _where(condition: Any) -> dict[str, Any]:
    return {"postgresql_where": condition, "sqlite_where": condition}


def _create_with(table: Table, statements: Mapping[str, Iterable[str]]) -> None:
    """Statements of each dialect that follow when the table is made."""
    for dialect, texts in statements.items():
        for statement in texts:
            ddl = DDL(statement).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
            event.listen(table, "after_create", ddl)


class _OfBody(ColumnElement[Any]):
    """A text of the JSON in ``body``, "" where it is not there; or a number. body: for queries of several tables.
    has_log_text: whether the JSON may hold the character 0, which PostgreSQL refuses to read wherever it is."""

    inherit_cache = False

    def __init__(
        self,
        key: str,
        body: ColumnElement[str] = column("body", Text),  # noqa: B008
        *,
        is_number: bool = False,
        has_log_text: bool = False,
    ) -> None:
        self.key = key
        self.body = body
        self.is_number = is_number
        self.has_log_text = has_log_text


@compiles(_OfBody, "sqlite")
def _sqlite_of_body(element: _OfBody, compiler: SQLCompiler, **more: Any) -> str:
    value = f"json_extract({compiler.process(element.body, **more)}, '$.{element.key}')"
    return value if element.is_number else f"coalesce({value}, '')"


@compiles(_OfBody, "postgresql")
def _postgresql_of_body(element: _OfBody, compiler: SQLCompiler, **more: Any) -> str:
    # all as PostgreSQL shows it
    body = compiler.process(element.body, **more)
    body = rf"(replace({body}, '\u0000'::text, '\u0001'::text))" if element.has_log_text else f"({body})"
    value = f"({body}::json ->> '{element.key}'::text)"
    return f"({value})::double precision" if element.is_number else f"COALESCE({value}, ''::text)"


class _Computed(Computed):
    """The database computes the column, so that it is right whoever writes the row, a replica of the version before as
    well. SQLite can add such a column only where it is not stored, PostgreSQL only where it is."""


@compiles(_Computed)
def _computed(element: _Computed, compiler: DDLCompiler, **more: Any) -> str:
    value = compiler.sql_compiler.process(element.sqltext)
    return f"GENERATED ALWAYS AS ({value}) {'VIRTUAL' if compiler.dialect.name == 'sqlite' else 'STORED'}"


jobs = _table(
    "jobs",
    Column("id", Text, primary_key=True),
    Column("body", Text, nullable=False),
    *(Column(name, Text, _Computed(_OfBody(name))) for name in ("cluster", "tenant")),
    Index("jobs_owner", "tenant", "cluster", "id"),
)
"""Whatever belongs to a job belongs to its cluster and its tenant: see ``visibility``."""

FRAMEWORK = Grouping(_OfBody("framework", jobs.c.body))
"""Of a job."""

_BY_BEGINNING = "CREATE INDEX jobs_by_beginning ON jobs (id text_pattern_ops)"
"""Finds jobs by how their ids begin, whatever the language of the database; SQLite's own index does."""
_create_with(jobs, {"postgresql": (_BY_BEGINNING,)})

attempts = _table(
    "attempts",
    Column("job", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("opened", Double, nullable=False),
    Column("last_line", Double, nullable=False, default=0.0),
    Column("fatal", Double),
    Column("fatal_revision", BigInteger, nullable=False, default=0),  # the newest append with a fatal line
    Column("ended", Double),
    Column("revision", BigInteger, nullable=False, default=0),
    Column("diagnosed", BigInteger, nullable=False, default=0),
    Column("dirty", Double, nullable=False, default=0.0),  # since when revision > diagnosed
    Column("deltas", BigInteger, nullable=False, default=0),  # pieces of its log, raw ones too
    Column("raw_bytes", BigInteger, nullable=False, default=0, server_default="0"),  # text in its raw pieces
    Column("streams", BigInteger, nullable=False, default=0, server_default="0"),  # since there is this column
    Column("compacting", Double, nullable=False, default=0.0, server_default="0"),  # until when the claim holds
    Column("token", Text, nullable=False, default=""),
    Column("lease", Double, nullable=False, default=0.0),  # when it ends
    Column("tries", BigInteger, nullable=False, default=0),
    Column(
        "patience", Double, nullable=False, default=0.0, server_default="0"
    ),  # shortest silence, in seconds, that is looked at
    Column(
        "looked_at", BigInteger, nullable=False, default=-1, server_default="-1"
    ),  # revision whose silence the lease puts off
    Column("first_step", Double),  # NULL where no verdict has seen one
    *_numbers(Double, "submitted", "started", nullable=True),  # as its scheduler says; NULL where it does not
    Column("saved", Double),  # when its newest checkpoint was; NULL where it reported none
)

IS_JOB = text("substr(attempts.job, 1, 1) != '~'")
"""Not the log of a node, nor the clean runs of a family. No value is bound: SQLite uses a partial index only where the
query repeats its condition to the letter."""

IS_RUNNING = and_(
    IS_JOB, attempts.c.revision > attempts.c.diagnosed, attempts.c.fatal.is_(None), attempts.c.ended.is_(None)
)
"""May have fallen silent. The condition of a partial index by the last line: those that print are never read."""

Index("attempts_running", attempts.c.last_line, **_where(IS_RUNNING))

IS_OPEN = and_(
    attempts.c.revision > attempts.c.diagnosed, or_(attempts.c.fatal.is_not(None), attempts.c.ended.is_not(None))
)
"""May become due. The same expression is the condition of the partial index, which keeps the sweep cheap."""

Index("attempts_open", attempts.c.lease, **_where(IS_OPEN))
Index("attempts_deltas", attempts.c.deltas)
Index("attempts_opened", attempts.c.opened)

IS_UNENDED = and_(IS_JOB, attempts.c.ended.is_(None))
HAS_ENDED = and_(IS_JOB, attempts.c.ended.is_not(None))
"""The conditions of partial indexes by which the list of jobs is read, a page at a time."""

Index("attempts_unended", attempts.c.last_line, **_where(IS_UNENDED))
Index("attempts_ended", attempts.c.ended, attempts.c.job, attempts.c.number, **_where(HAS_ENDED))

IS_NODE_LOG = text("substr(attempts.job, 1, 6) = '~node/'")
"""A part of a node's own log: an hour of it. There are as many as nodes, times the hours that they are kept."""

Index("attempts_node_logs", attempts.c.job, attempts.c.last_line, **_where(IS_NODE_LOG))

HAS_RAW = attempts.c.raw_bytes > 0
"""The condition of a partial index: few attempts, those that print now."""

Index("attempts_raw", attempts.c.last_line, **_where(HAS_RAW))

streams = _table(
    "streams",
    *_of_attempt(key=True),
    *_texts("source", "node", key=True),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),
    Column("provenance", Text, primary_key=True),
    Column("covered", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)

deltas = _table(
    "deltas",
    Column("id", _ID, primary_key=True),
    *_of_attempt(),
    Column("data", LargeBinary, nullable=False),
    Column("raw", BigInteger, nullable=False, default=0, server_default="0"),  # bytes of lines as they came; 0: a delta
    Index("deltas_attempt", "job", "attempt", "id"),
    sqlite_autoincrement=True,  # an id is never used again: compaction takes ids as identity
)

archive_segments = _table(
    "archive_segments",
    *_of_attempt(key=True),
    Column("key", Text, primary_key=True),  # of the object
    Column("start", BigInteger, primary_key=True, autoincrement=False),  # this and size: bytes of the object
    Column("size", BigInteger, nullable=False),
    Column("first_stream", LargeBinary, nullable=False),  # in the order of compress.segments
    Column("last_stream", LargeBinary, nullable=False),
    Column("first_line", BigInteger, nullable=False),  # the lowest number of any of its streams
    Column("last_line", BigInteger, nullable=False),
    Column("stored", Double, nullable=False),
    Index("archive_segments_lines", "job", "attempt", "last_line"),
    Index("archive_segments_key", "key"),
    Index("archive_segments_stored", "stored", "key"),
)
"""Original lines outside the database. A row is a quarter of a megabyte of text, however many streams that is of."""

allocations = _table(
    "allocations",
    *_of_attempt(key=True),
    Column("nodes", Text, nullable=False),  # that the scheduler gave the attempt, separated by blanks
)
"""Apart from the attempts, whose rows change with every append: a list may be megabytes long."""

events = _table(
    "events",
    *_of_attempt(key=True),
    Column("digest", Text, primary_key=True),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
)

FACETS = ("outcome", "category", "type", "cluster", "family", "decided_by")
"""Columns of the diagnoses that people narrow the list by."""

VERDICT = ("outcome", "category", "type", "created", "cluster", "plan")
"""Columns of the diagnoses that the report of impact reads of each attempt, from an index alone."""

diagnoses = _table(
    "diagnoses",
    Column("id", Text, primary_key=True),
    *_of_attempt(),
    Column("revision", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
    Column("current", Boolean, nullable=False),
    *_texts("outcome", "category", "type"),
    Column("plan", Text),  # key of the plan; the plan of an earlier diagnosis when both decided the same
    Column("search", Text, nullable=False),  # "" once diagnosis_words has its words
    Column("body", Text, nullable=False),
    Column("cluster", Text, nullable=False, default="", server_default=text("''")),
    Column("family", Text, nullable=False, default="", server_default=text("''")),
    Column("decided_by", Text, nullable=False, default="", server_default=text("''")),
    Index("diagnoses_attempt", "job", "attempt", "current", *VERDICT),
    *(Index(f"diagnoses_{name}", name, "id") for name in FACETS),
)

CONFIDENCE = Grouping(_OfBody("confidence", diagnoses.c.body, is_number=True, has_log_text=True))
"""Of a diagnosis. An index of what its body says: another column would write a table of gigabytes anew."""

Index("diagnoses_confidence", CONFIDENCE, diagnoses.c.id)

_LISTED = (diagnoses.c.id, *(diagnoses.c[name] for name in FACETS))
Index("diagnoses_listed", *_LISTED, **_where(diagnoses.c.current))
"""Counting the facets of the newest diagnoses reads this index only."""

_UNINDEXED = diagnoses.c.search != ""
Index("diagnoses_unindexed", diagnoses.c.id, **_where(_UNINDEXED))
"""Always empty: no version that can share this schema writes ``search``."""

diagnosis_words = _table(
    "diagnosis_words",
    Column("number", _ID, primary_key=True),
    Column("diagnosis", Text, ForeignKey("diagnoses.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("words", Text, nullable=False),  # in lower case, each once, separated by blanks
    sqlite_autoincrement=True,
)
"""What the text filter looks at, of current diagnoses. Its full-text index is made with it: with SQLite a virtual
table, ``diagnosis_words_index``, that triggers keep; with PostgreSQL a GIN index."""

_WORD_INDEX = {
    # Each blank-separated word is one token: the words hold letters and digits only. Nothing asks for their order.
    "sqlite": (
        "CREATE VIRTUAL TABLE diagnosis_words_index USING fts5(words, content='diagnosis_words', "
        "content_rowid='number', tokenize='ascii', detail=none, columnsize=0)",
        "CREATE TRIGGER diagnosis_words_index_insert AFTER INSERT ON diagnosis_words BEGIN "
        "INSERT INTO diagnosis_words_index(rowid, words) VALUES (new.number, new.words); END",
        "CREATE TRIGGER diagnosis_words_index_delete AFTER DELETE ON diagnosis_words BEGIN "
        "INSERT INTO diagnosis_words_index(diagnosis_words_index, rowid, words) "
        "VALUES ('delete', old.number, old.words); END",
    ),
    "postgresql": (
        "CREATE INDEX diagnosis_words_index ON diagnosis_words "
        "USING gin (array_to_tsvector(string_to_array(words, ' '))) WITH (fastupdate = off)",
    ),
}
_create_with(diagnosis_words, _WORD_INDEX)

diagnosis_nodes = _table(
    "diagnosis_nodes",
    Column("node", Text, primary_key=True),
    Column("diagnosis", Text, ForeignKey("diagnoses.id", ondelete="CASCADE"), primary_key=True),
    Index("diagnosis_nodes_diagnosis", "diagnosis"),
)

_HAS_WAITED = text("""replace(body, '"state":"waiting"', '') <> body""")
_IS_VOUCHED = text("""replace(body, '"kind":"person"', '') <> body""")
"""Whether the JSON of a plan has such a part. No text in it can look like that: its quotes are escaped."""

PLAN_OUTCOME = ("key", "state", "created", "mode", "reason", "has_waited", "is_vouched")
"""Columns of the plans that the report of impact reads, from an index alone: a plan may hold long node checks."""

PLAN_TEXTS = ("id", "cluster", "action", "family", "fingerprint")
PLAN_TIMES = ("created", "expires", "lease")  # lease: when it ends, 0 without one

plans = _table(
    "plans",
    Column("key", Text, primary_key=True),
    *_of_attempt(),
    Column("state", Text, nullable=False),  # this and the columns below repeat what body says, to be asked for
    Column("body", Text, nullable=False),
    *(Column(name, Text, nullable=False, default="") for name in PLAN_TEXTS),
    *(Column(name, Double, nullable=False, default=0.0) for name in PLAN_TIMES),
    Column("suspect", Text),  # the first one; NULL where there is none, and from replicas of the version before
    *(Column(name, Text, _Computed(_OfBody(name, has_log_text=True))) for name in ("mode", "reason")),
    Column("has_waited", Boolean, _Computed(_HAS_WAITED)),
    Column("is_vouched", Boolean, _Computed(_IS_VOUCHED)),
    Index("plans_attempt", "job", "attempt", *PLAN_OUTCOME),
    Index("plans_id", "id", unique=True),
    Index("plans_state", "state", "cluster"),
    Index("plans_cluster", "cluster", "created"),
    Index("plans_fingerprint", "fingerprint", "created"),
    Index("plans_suspect", "suspect", "created"),
)

nodes = _table(
    "nodes",
    *_texts("cluster", "node", key=True),
    Column("partition", Text, nullable=False, default=""),
    Column("body", Text, nullable=False, default=""),  # its last event, "" while there is none
    Column("places", Text),  # words; NULL where nobody told
)

node_events = _table(
    "node_events",
    *_texts("cluster", "node", "digest", key=True),
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index("node_events_time", "time"),
)

node_notes = _table(
    "node_notes",
    Column("id", Text, primary_key=True),
    *_texts("cluster", "node"),
    Column("time", Double, nullable=False),
    *_texts("by", "text"),
    Index("node_notes_node", "cluster", "node", "id"),
    Index("node_notes_time", "time"),
)
"""What people write down about a node, for whoever repairs it."""

node_alerts = _table(
    "node_alerts",
    *_texts("cluster", "node", "fingerprint", key=True),
    Column("started", Double, primary_key=True),
    Column("ended", Double),
    Column("received", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index("node_alerts_received", "received"),
)
"""What monitoring says of nodes, as Alertmanager told: one row from the start of an alert to its end."""

node_requests = _table(
    "node_requests",
    Column("id", Text, primary_key=True),
    *_texts("cluster", "node"),
    Column("created", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("lease", Double, nullable=False),  # when it ends
    Column("body", Text, nullable=False),
    Index("node_requests_open", "cluster", "state", "created"),
    Index("node_requests_node", "cluster", "node", "id"),
    Index("node_requests_created", "created"),
)
"""Nodes that people want given back; agents do it."""

breakers = _table(
    "breakers",
    Column("scope", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tripped", Boolean, nullable=False),
    Column("body", Text, nullable=False),
    Index("breakers_cluster", "cluster"),
)
"""One row a scope. The row of the whole cluster is also the lock under which plans of that cluster are decided."""

outbox = _table(
    "effects",
    Column("key", Text, primary_key=True),
    *_texts("kind", "target"),
    Column("body", LargeBinary, nullable=False),
    *_numbers(Double, "created", "expires"),
    Column("state", Text, nullable=False),
    Column("tries", BigInteger, nullable=False, default=0),
    Column("due", Double, nullable=False),
    Column("token", Text, nullable=False, default=""),
    Column("lease", Double, nullable=False, default=0.0),
    Column("error", Text, nullable=False, default=""),
    Index("effects_due", "state", "due"),
    Index("effects_created", "created"),
)

alert_threads = _table(
    "alert_threads",
    *_texts("receiver", "incident", key=True),
    Column("handle", Text, nullable=False),
    Column("told", Double, nullable=False, index=True),
    Column("held_back", BigInteger, nullable=False),
)

alert_silences = _table(
    "alert_silences",
    Column("incident", Text, primary_key=True),
    Column("until", Double, nullable=False),
    Column("by", Text, nullable=False),
)

feedback = _table(
    "feedback",
    Column("id", Text, primary_key=True),
    Column("diagnosis", Text, ForeignKey("diagnoses.id", ondelete="CASCADE"), nullable=False),
    Column("created", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index("feedback_diagnosis", "diagnosis", "id"),
)

saved_views = _table(
    "saved_views",
    *_texts("listed", "name", key=True),
    *_texts("query", "by"),
    Column("created", Double, nullable=False),
)

confirmed_failures = _table(
    "incidents",
    Column("diagnosis", Text, ForeignKey("diagnoses.id", ondelete="CASCADE"), primary_key=True),
    Column("changed", Double, nullable=False),
    Column("body", Text, nullable=False),
    Column("vectors", LargeBinary, nullable=False),
    Index("incidents_changed", "changed"),
)
"""What people confirmed, with its vectors: what the index in memory is built from. The table keeps its first name, for
replicas of versions before."""

incidents = _table(
    "incident_groups",
    Column("id", Text, primary_key=True),
    *_texts("state", "node", "assignee"),
    Column("last_seen", Double, nullable=False),
    Column("failures", BigInteger, nullable=False, default=0),
    Column("jobs", BigInteger, nullable=False, default=0),
    Column("body", Text, nullable=False),  # repeats what the columns say, but for failures and jobs
    Column("first_seen", Double, _Computed(_OfBody("first_seen", is_number=True, has_log_text=True))),
    Column("category", Text, _Computed(_OfBody("category", has_log_text=True))),
    Column("escalated", Double, nullable=False, default=0.0, server_default="0"),
    Index("incident_groups_seen", "last_seen", "id"),
    Index("incident_groups_node", "node", "last_seen", "id"),
)

IS_UNRESOLVED = text("state != 'resolved'")
IS_OPERATORS = text("state != 'resolved' AND category != 'script'")
IS_ESCALATED = text("escalated > 0")
Index("incident_groups_unresolved", incidents.c.last_seen, incidents.c.id, **_where(IS_UNRESOLVED))
Index("incident_groups_operators", incidents.c.last_seen, incidents.c.id, **_where(IS_OPERATORS))
Index("incident_groups_repeats", incidents.c.failures, incidents.c.id, **_where(IS_UNRESOLVED))
Index("incident_groups_escalated", incidents.c.escalated, **_where(IS_ESCALATED))
"""What the incidents that cost most are sought among: those of machines and frameworks, those that come again and
again, and those that somebody escalated."""

incident_attempts = _table(
    "incident_attempts",
    *_of_attempt(key=True),
    Column("incident", Text, ForeignKey("incident_groups.id", ondelete="CASCADE"), nullable=False),
    Column("diagnosis", Text, nullable=False),  # its current one
    Index("incident_attempts_diagnosis", "incident", "diagnosis"),
    Index("incident_attempts_job", "incident", "job"),
)
"""An attempt belongs to one incident at most: that of its current diagnosis."""

runtime_files = _table(
    "runtime_files",
    *_of_attempt(key=True),
    Column("kind", Text, primary_key=True),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),  # -1: of no single rank
    *_texts("node", "provenance", key=True),
    Column("received", Double, nullable=False),
    Column("size", BigInteger, nullable=False),  # of the dump as it was sent
    Column("stored", BigInteger, nullable=False),  # of data
    Column("data", LargeBinary, nullable=False),  # compressed with zstd
    Index("runtime_files_received", "received"),
)
"""Dumps of the ranks of an attempt: flight recorders, RAS answers, stacks."""

node_snapshots = _table(
    "node_snapshots",
    *_of_attempt(key=True),
    Column("node", Text, primary_key=True),
    Column("received", Double, nullable=False),
    Column("stored", BigInteger, nullable=False),  # bytes of data
    Column("data", LargeBinary, nullable=False),  # JSON, masked, compressed with zstd
)
"""What nodes said of themselves before a plan for the attempt took them out."""

evidence_requests = _table(
    "evidence_requests",
    Column("id", Text, primary_key=True),
    *_of_attempt(),
    Column("since", Double, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("lease", Double, nullable=False, default=0.0),  # when it ends
    Column("result", Text),  # NULL while it is open
    Column("body", Text, nullable=False),
    Index("evidence_requests_silence", "job", "attempt", "since", unique=True),
    Index("evidence_requests_open", "cluster", "result", "created"),
)
"""What agents are asked to collect about runs that may hang."""

case_replays = _table(
    "case_replays",
    Column("key", Text, primary_key=True),  # software, rules and cases: what is replayed once only
    Column("time", Double, nullable=False),
    Column("body", Text, nullable=False),
    Index("case_replays_time", "time"),
)

learned_rules = _table(
    "learned_rules",
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, default="diagnosis"),  # "filter" for Filter Rules, of the family in scope
    *_texts("state", "source"),
    Column("scope", Text, nullable=False, default=""),
    Column("created", Double, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("lease", Double, nullable=False),  # when the work on a proposed rule may be taken over
    Column("body", Text, nullable=False),
    Index("learned_rules_state", "state", "kind", "scope"),
    Index("learned_rules_source", "source"),
    Index("learned_rules_created", "created", "id"),
)

rule_hits = _table(
    "rule_hits",
    Column("rule", Text, ForeignKey("learned_rules.id", ondelete="CASCADE"), primary_key=True),
    *_of_attempt(key=True),
    Column("time", Double, nullable=False),
    *_texts("diagnosis", "verdict"),
    Column("active", Boolean, nullable=False),
    Column("lines", BigInteger, nullable=False, default=0),  # this and bytes: what a Filter Rule knew there
    Column("bytes", BigInteger, nullable=False, default=0),
    Index("rule_hits_attempt", "job", "attempt"),
)

revisions = _table("revisions", *_texts("name", key=True), *_numbers(BigInteger, "value"))
"""Counters that tell replicas to load something anew. The row is locked by who changes it, until the commit."""

source_offsets = _table(
    "source_offsets",
    *_texts("cluster", "consumer_group", "topic", key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("next", BigInteger, nullable=False),  # offset of the first message that is not stored
)
"""How far topics of message queues are stored: written in the transaction that stores their lines."""

unplaced_streams = _table(
    "unplaced_streams",
    Column("digest", Text, primary_key=True),  # of sender, cluster, protocol, reason and labels
    *_texts("sender", "cluster", "protocol", "reason", "detail"),
    Column("labels", Text, nullable=False),  # JSON
    Column("sample", Text, nullable=False),
    Column("lines", BigInteger, nullable=False),
    *_numbers(Double, "first_seen", "last_seen"),
    Index("unplaced_streams_sender", "sender", "last_seen"),
    Index("unplaced_streams_last_seen", "last_seen"),
)

agents = _table(
    "agents",
    Column("cluster", Text, primary_key=True),
    Column("executor", Text, nullable=False),
    Column("last_seen", Double, nullable=False),
)
"""When the agent of each cluster last asked for a plan."""

blind_spots = _table(
    "blind_spots",
    *_texts("kind", "subject", key=True),
    Column("since", Double, nullable=False),
    *_texts("what", "lost"),
)
"""What people were told that the service cannot see, and not yet that it can again."""

trial_runs = _table(
    "trial_runs",
    Column("id", Text, primary_key=True),
    Column("suite", Text, nullable=False),  # JSON
    *_texts("backend", "folder", "directory"),
    Column("created", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("ended", Double),
    Column("cuts", BigInteger, nullable=False),
    Index("trial_runs_created", "created"),
)


def _of_run(*more: Any, key: bool) -> tuple[Any, ...]:
    """Rows that go with their run."""
    run = Column("run", Text, ForeignKey("trial_runs.id", ondelete="CASCADE"), primary_key=key, nullable=False)
    return run, *(Column(name, Text, primary_key=key, nullable=False) for name in ("checkpoint", "task")), *more


trials = _table(
    "trials",
    *_of_run(key=True),
    Column("state", Text, nullable=False),
    Column("scores", Text, nullable=False),  # JSON
    Column("error", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("scored", Double),
    Column("batch", Text, nullable=False),  # that scores it now
)

trial_pieces = _table(
    "trial_pieces",
    *_of_run(key=True),
    *_numbers(BigInteger, "first", "last", key=True),
    *_texts("state", "batch"),
    Column("failures", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    *_numbers(Double, "seconds", "load", nullable=True),
)

trial_batches = _table(
    "trial_batches",
    Column("id", Text, primary_key=True),
    *_of_run(key=False),
    *_texts("kind", "node"),
    Column("slot", BigInteger, nullable=False),
    *_numbers(Double, "started", "seconds"),
    Column("state", Text, nullable=False),
    Column("ended", Double),
    Index("trial_batches_run", "run", "started"),
)

IS_ON_SLOT = trial_batches.c.state == "running"

Index(
    "trial_batches_slot",
    trial_batches.c.run,
    trial_batches.c.node,
    trial_batches.c.slot,
    unique=True,
    **_where(IS_ON_SLOT),
)
"""A slot has one batch at a time, however many coordinators there are."""

trial_runtimes = _table(
    "trial_runtimes",
    Column("name", Text, primary_key=True),
    Column("time", Double, nullable=False),
    *_texts("task", "size", "hardware"),
    Column("samples", BigInteger, nullable=False),
    *_numbers(Double, "seconds", "load"),
    Column("score", Double),
    Index("trial_runtimes_task", "task", "time"),
    Index("trial_runtimes_time", "time"),
)
"""How long pieces took: what later schedules are made from, also when their run is gone."""

tokens = _table(
    "tokens",
    Column("name", Text, primary_key=True),
    Column("hash", Text, nullable=False),  # SHA-256 of the secret, in hexadecimal
    *_texts("scope", "cluster", "tenant"),
    Column("created", Double, nullable=False),
    *_numbers(Double, "expires", "last_used", "revoked", nullable=True),
    Column("old_hash", Text),  # of the secret before the last rotation, valid until old_until
    *_numbers(Double, "old_until", "old_used", nullable=True),
    Index("tokens_hash", "hash", unique=True),
    Index("tokens_old_hash", "old_hash", unique=True),
)

users = _table(
    "users",
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("password", Text, nullable=False),  # argon2id, "" for people of the identity provider
    *_texts("issuer", "subject"),
    Column("created", Double, nullable=False),
    *_numbers(Double, "disabled", "last_sign_in", nullable=True),
)

IS_OF_PROVIDER = users.c.issuer != ""

Index("users_identity", users.c.issuer, users.c.subject, unique=True, **_where(IS_OF_PROVIDER))

sessions = _table(
    "sessions",
    Column("hash", Text, primary_key=True),  # SHA-256 of the cookie, in hexadecimal
    Column("user", Text, ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
    *_numbers(Double, "created", "last_used", "expires"),
    *_texts("address", "browser"),
    Column("ended", Double),
    Index("sessions_user", "user", "address"),
    Index("sessions_expires", "expires"),
)
"""Ended ones stay for a while: they tell from where a person has signed in before."""

login_tries = _table(
    "login_tries",
    Column("key", Text, primary_key=True),
    Column("times", Text, nullable=False),
    Column("last", Double, nullable=False),
    Index("login_tries_last", "last"),
)
"""Wrong passwords of late. key: a hash of the account or address, so that what is typed as a name is not kept."""

audit_log = _table(
    "audit_log",
    Column("id", _ID, primary_key=True),
    Column("time", Double, nullable=False),
    *_texts("actor", "actor_kind", "address", "action", "object_kind", "object_id", "result", "detail"),
    Column("before", Text),  # JSON, of the fields that differ
    Column("after", Text),
    Index("audit_log_time", "time"),
    Index("audit_log_actor", "actor", "id"),
    Index("audit_log_object", "object_kind", "object_id", "id"),
    sqlite_autoincrement=True,
)
"""Nothing changes a row: the database itself refuses to."""

_APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log BEGIN "
        "SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log FOR EACH ROW "
        "EXECUTE FUNCTION audit_log_refuse()",
    ),
}
_create_with(audit_log, _APPEND_ONLY)

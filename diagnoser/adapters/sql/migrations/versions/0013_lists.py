"""Lists stay fast: facets are columns, and text is found by its words.

Nothing is filled in here, so that no start waits for it: maintenance does, from the newest diagnosis back. Versions
before this one go on beside it; what they store is filled in as well.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FACETS = ("outcome", "category", "type", "cluster", "family", "decided_by")

SQLITE = (
    # Each blank-separated word is one token: the words hold letters and digits only. Nothing asks for their order.
    "CREATE VIRTUAL TABLE diagnosis_words_index USING fts5(words, content='diagnosis_words', content_rowid='number', "
    "tokenize='ascii', detail=none, columnsize=0)",
    "CREATE TRIGGER diagnosis_words_index_insert AFTER INSERT ON diagnosis_words BEGIN "
    "INSERT INTO diagnosis_words_index(rowid, words) VALUES (new.number, new.words); END",
    "CREATE TRIGGER diagnosis_words_index_delete AFTER DELETE ON diagnosis_words BEGIN "
    "INSERT INTO diagnosis_words_index(diagnosis_words_index, rowid, words) "
    "VALUES ('delete', old.number, old.words); END",
)
POSTGRESQL = (
    "CREATE INDEX diagnosis_words_index ON diagnosis_words "
    "USING gin (array_to_tsvector(string_to_array(words, ' '))) WITH (fastupdate = off)",
)


def upgrade() -> None:
    for name in ("cluster", "family", "decided_by"):
        op.add_column("diagnoses", sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''")))
    for name in FACETS:
        if name != "type":
            op.create_index(f"diagnoses_{name}", "diagnoses", [name, "id"])
    current, unindexed = sa.text("current"), sa.text("search != ''")
    op.create_index("diagnoses_listed", "diagnoses", ["id", *FACETS], postgresql_where=current, sqlite_where=current)
    op.create_index("diagnoses_unindexed", "diagnoses", ["id"], postgresql_where=unindexed, sqlite_where=unindexed)
    op.create_table(
        "diagnosis_words",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("diagnosis", sa.Text, sa.ForeignKey("diagnoses.id", ondelete="CASCADE"), nullable=False, unique=True),
        sa.Column("words", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)

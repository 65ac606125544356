"""Look-ups by a part of a name. Where no index can answer, the newest rows are looked at and no more."""

from collections.abc import Sequence

from sqlalchemy import Column, ColumnElement, and_, func, select, text

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.incidents import SHOWN
from diagnoser.adapters.sql.tables import IS_UNENDED, attempts, diagnosis_nodes, incidents, jobs, learned_rules, nodes
from diagnoser.adapters.sql.words import asked_words
from diagnoser.model import Incident, LearnedRule
from diagnoser.model.queries import FoundNode
from diagnoser.model.record_json import RecordJson

_LOOKED_AT = 2_000
"""Newest rows that are read where no index finds a part of a text."""
_SPARE = 4
"""Times as many candidates as are wanted: the body of a record also has words that nobody sees."""
_LAST = chr(0x10FFFF)
_RULE = RecordJson(LearnedRule)


class SearchRepository(Repository):
    """Finds by a part of a name; each look-up is bounded, whatever is stored.

    text: typed by a person, not empty. Words are compared without regard to case.
    """

    async def jobs_like(self, text: str, limit: int) -> list[str]:
        """Ids of jobs: those that have not ended and have the text anywhere in their id, by their last line; then any
        whose id begins with the text, in its case."""
        row = attempts.c
        newest = select(row.job, row.last_line).where(IS_UNENDED).order_by(row.last_line.desc()).limit(_LOOKED_AT)
        recent = newest.cte("recent")
        unended = select(recent.c.job).where(_has(recent.c.job, text)).order_by(recent.c.last_line.desc()).limit(limit)
        named = select(jobs.c.id).where(*self._begins_with(jobs.c.id, text), jobs.c.id.not_like("~%"))
        async with self._db.reading() as connection:
            found = list((await connection.execute(unended)).scalars())
            found += (await connection.execute(named.order_by(self._in_bytes(jobs.c.id)).limit(limit))).scalars()
        return list(dict.fromkeys(found))[:limit]

    async def nodes_containing(self, text: str, limit: int) -> list[FoundNode]:
        """Nodes with the text anywhere in their name, in alphabetical order; a node that only diagnoses name, where
        the text is all of its name.

        As many rows are read as the clusters have nodes.
        """
        known = select(nodes.c.node, nodes.c.cluster).where(_has(nodes.c.node, text))
        named = select(diagnosis_nodes.c.node).where(diagnosis_nodes.c.node == text).limit(1)
        ordered = known.order_by(nodes.c.node, nodes.c.cluster).limit(limit)
        found = await self._db.records(ordered, FoundNode)
        for node in found:
            if node.node == text:
                return found
        return (await self._db.values(named, FoundNode) + found)[:limit]

    async def incidents_like(self, text: str, limit: int) -> list[Incident]:
        """Those with all the words in their node, type, line, cluster or assignee, among the newest ones."""
        asked = asked_words(text)
        if not asked:
            return []
        order = incidents.c.last_seen.desc(), incidents.c.id.desc()
        newest = select(*SHOWN).order_by(*order).limit(_LOOKED_AT).cte("newest")
        query = select(newest).where(_has_all(newest.c.body, asked)).order_by(newest.c.last_seen.desc())
        found = await self._db.rows(query.limit(_SPARE * limit), codec.incident_of)
        return [incident for incident in found if _holds_all(_words_of(incident), asked)][:limit]

    async def learned_rules_like(self, text: str, limit: int) -> list[LearnedRule]:
        """Those with all the words in their id, type or text, among the newest ones; without their counts."""
        asked = asked_words(text)
        if not asked:
            return []
        order = learned_rules.c.created.desc(), learned_rules.c.id.desc()
        newest = select(learned_rules.c.body, learned_rules.c.created).order_by(*order).limit(_LOOKED_AT).cte("newest")
        query = select(newest.c.body).where(_has_all(newest.c.body, asked)).order_by(newest.c.created.desc())
        found = await self._db.values(query.limit(_SPARE * limit), _RULE.load)
        return [rule for rule in found if _holds_all(f"{rule.id}\n{rule.type}\n{rule.text}".lower(), asked)][:limit]

    def _begins_with(self, column: Column[str], prefix: str) -> tuple[ColumnElement[bool], ...]:
        """A range of an index. PostgreSQL needs the operators that its index is made for: in most languages names that
        begin alike do not stand together."""
        if self._db.dialect == "sqlite":
            return column >= prefix, column < prefix + _LAST
        return column.bool_op("~>=~")(prefix), column.bool_op("~<~")(prefix + _LAST)

    def _in_bytes(self, column: Column[str]) -> ColumnElement[str]:
        """The order of the same index: else all that begin so would be sorted."""
        return column if self._db.dialect == "sqlite" else text(f"{column} USING ~<~")  # type: ignore[return-value]


def _holds_all(text: str, asked: Sequence[str]) -> bool:
    return all(word in text for word in asked)


def _has(column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    return func.lower(column).contains(part.lower(), autoescape=True)


def _has_all(column: ColumnElement[str], asked: Sequence[str]) -> ColumnElement[bool]:
    return and_(*(_has(column, word) for word in asked))


def _words_of(incident: Incident) -> str:
    parts = incident.id, incident.node, incident.type, incident.category, incident.line, incident.cluster
    return "\n".join((*parts, incident.assignee)).lower()

"""The whole ``ports.Store`` over one database."""

from diagnoser.adapters.sql.alerts import AlertRows
from diagnoser.adapters.sql.audit import AuditRows
from diagnoser.adapters.sql.case_replays import CaseReplayRows
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.evidence import EvidenceRows
from diagnoser.adapters.sql.feedback import FeedbackRows
from diagnoser.adapters.sql.login_tries import LoginTryRows
from diagnoser.adapters.sql.migrations import upgrade_engine
from diagnoser.adapters.sql.node_facts import NodeFactRows
from diagnoser.adapters.sql.node_logs import NodeLogRows
from diagnoser.adapters.sql.outbox import OutboxRows
from diagnoser.adapters.sql.people import UserRows
from diagnoser.adapters.sql.queries import QueryRows
from diagnoser.adapters.sql.retention import RetentionRows
from diagnoser.adapters.sql.search import SearchRows
from diagnoser.adapters.sql.tokens import TokenRows
from diagnoser.adapters.sql.trials import TrialRows
from diagnoser.adapters.sql.unplaced import UnplacedRows
from diagnoser.adapters.sql.views import ViewRows
from diagnoser.adapters.sql.vitals import VitalRows
from diagnoser.adapters.sql.work import WorkRows


class SqlStore(
    WorkRows,
    OutboxRows,
    QueryRows,
    NodeLogRows,
    NodeFactRows,
    FeedbackRows,
    TokenRows,
    CaseReplayRows,
    EvidenceRows,
    RetentionRows,
    AlertRows,
    UnplacedRows,
    SearchRows,
    ViewRows,
    UserRows,
    LoginTryRows,
    AuditRows,
    VitalRows,
    TrialRows,
):
    """Made from an engine; ``open_store`` also brings the schema up to date. ``close`` it when done.

    Every method may raise Unavailable. A value that the database cannot hold raises BadInput.
    """


async def open_store(url: str) -> SqlStore:
    """url: ``sqlite:///path/to/file.db`` or ``postgresql://user:password@host/name``. Raises Unavailable, BadInput."""
    engine = create_engine(url)
    try:
        await upgrade_engine(engine)
    except BaseException:
        await engine.dispose()
        raise
    return SqlStore(engine)

"""The store: one database, and a repository for each subject that is kept in it."""

from sqlalchemy import text

from diagnoser.adapters.sql.alerts import AlertRepository
from diagnoser.adapters.sql.archive import ArchiveRepository
from diagnoser.adapters.sql.attempt_lists import AttemptRepository
from diagnoser.adapters.sql.audit import AuditRepository
from diagnoser.adapters.sql.database import Database, create_engine, scalar
from diagnoser.adapters.sql.diagnoses import DiagnosisRepository
from diagnoser.adapters.sql.evaluations import EvaluationRepository
from diagnoser.adapters.sql.evidence import EvidenceRepository
from diagnoser.adapters.sql.feedback import CaseRepository, FeedbackRepository
from diagnoser.adapters.sql.impact import ImpactRepository
from diagnoser.adapters.sql.incidents import IncidentRepository
from diagnoser.adapters.sql.jobs import JobRepository
from diagnoser.adapters.sql.learned import LearnedRuleRepository
from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.adapters.sql.migrations import check_known, head, log_newer_schema, upgrade_engine
from diagnoser.adapters.sql.node_facts import NodeFactRepository
from diagnoser.adapters.sql.nodes import NodeLogRepository, NodeRepository
from diagnoser.adapters.sql.outbox import OutboxRepository
from diagnoser.adapters.sql.people import LoginTryRepository, UserRepository
from diagnoser.adapters.sql.plans import PlanRepository
from diagnoser.adapters.sql.retention import RetentionRepository
from diagnoser.adapters.sql.search import SearchRepository
from diagnoser.adapters.sql.tokens import TokenRepository
from diagnoser.adapters.sql.unplaced import UnplacedRepository
from diagnoser.adapters.sql.views import ViewRepository
from diagnoser.adapters.sql.vitals import VitalRepository
from diagnoser.adapters.sql.work import WorkRepository
from diagnoser.model.access import Viewer
from diagnoser.model.errors import Unavailable


class SqlStore:
    """Opened by ``open_store``, which also brings the schema up to date. ``close`` it when done."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.jobs = JobRepository(db)
        self.logs = LogRepository(db)
        self.node_logs = NodeLogRepository(db)
        self.archive = ArchiveRepository(db)
        self.evidence = EvidenceRepository(db)
        self.work = WorkRepository(db)
        self.diagnoses = DiagnosisRepository(db)
        self.attempts = AttemptRepository(db)
        self.incidents = IncidentRepository(db)
        self.impact = ImpactRepository(db)
        self.plans = PlanRepository(db)
        self.nodes = NodeRepository(db)
        self.node_facts = NodeFactRepository(db)
        self.outbox = OutboxRepository(db)
        self.alerts = AlertRepository(db)
        self.feedback = FeedbackRepository(db)
        self.rules = LearnedRuleRepository(db)
        self.cases = CaseRepository(db)
        self.search = SearchRepository(db)
        self.views = ViewRepository(db)
        self.users = UserRepository(db)
        self.logins = LoginTryRepository(db)
        self.tokens = TokenRepository(db)
        self.audit = AuditRepository(db)
        self.vitals = VitalRepository(db)
        self.unplaced = UnplacedRepository(db)
        self.retention = RetentionRepository(db)
        self.evaluations = EvaluationRepository(db)
        self._needed_schema = ""
        self._newer_schema = ""

    def scoped_to(self, viewer: Viewer) -> "SqlStore":
        """The same store, of which reading finds only what the viewer may see; itself for who may see all. What is
        written is not narrowed: who changes something has looked for it first. Close the store that this comes from."""
        return self if viewer.sees_all else SqlStore(self.db.scoped_to(viewer))

    async def ping(self) -> None:
        """Raise Unavailable when the database does not answer or its schema is not one that this code can work with.

        A newer schema is as good as long as it only added to this one; the log tells once that it came.
        """
        self._needed_schema = self._needed_schema or head()
        async with self.db.reading() as connection:
            query = text("SELECT version_num FROM alembic_version")
            version = await scalar(connection, query, "")
            if version > self._needed_schema:
                await connection.run_sync(check_known)
                if version != self._newer_schema:
                    self._newer_schema = version
                    log_newer_schema(version)
        if version < self._needed_schema:
            raise Unavailable(f"the database has schema {version}, this code needs {self._needed_schema}")

    async def close(self) -> None:
        await self.db.close()


async def open_store(url: str) -> SqlStore:
    """url: ``sqlite:///path/to/file.db`` or ``postgresql://user:password@host/name``. Raises Unavailable, BadInput."""
    engine = create_engine(url)
    try:
        await upgrade_engine(engine)
    except BaseException:
        await engine.dispose()
        raise
    return SqlStore(Database(engine))

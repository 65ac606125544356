"""How long a process believes what it has read of jobs and people."""

from collections.abc import Collection, Mapping

from diagnoser.ingest.job_access import REMEMBERED_SECONDS, JobAccess
from diagnoser.model.access import Credential, Owner, Scope
from diagnoser.model.people import Role, Session, User
from diagnoser.web.http.sessions import Sessions

NOW = 1000.0


class Owners:
    """Says whose jobs are, and counts how often it is asked."""

    def __init__(self) -> None:
        self.owner = Owner("east", "red")
        self.asked = 0

    async def assign_owner(self, jobs: Collection[str], owner: Owner, now: float) -> Mapping[str, Owner]:
        self.asked += 1
        return dict.fromkeys(jobs, self.owner)

    async def owners(self, jobs: Collection[str]) -> Mapping[str, Owner]:
        self.asked += 1
        return dict.fromkeys(jobs, self.owner)


async def test_whose_a_job_is_is_read_again_after_a_minute() -> None:
    """Lines cost no read of the database, and a job that was given to another cluster is refused soon."""
    store, clock = Owners(), [NOW]
    access = JobAccess(store, lambda: clock[0])  # type: ignore[arg-type]
    caller = Credential("shipper", Scope.INGEST, cluster="east")
    for _ in range(3):
        assert await access.refused(caller, ["j"]) == {}
    assert store.asked == 1
    store.owner = Owner("west")
    clock[0] += REMEMBERED_SECONDS
    assert set(await access.refused(caller, ["j"])) == {"j"}


class Accounts:
    """One session of one person."""

    def __init__(self, user: User) -> None:
        self.user = user

    async def session(self, hash: str) -> tuple[Session, User]:
        return Session(hash, self.user.name, NOW, NOW, NOW + 3600.0, "127.0.0.1", ""), self.user

    async def record_session_use(self, hash: str, now: float) -> None:
        pass


async def test_whoever_is_shut_out_is_nobody_even_with_a_session() -> None:
    """Shutting out ends sessions; one that began in the same moment is worth nothing either."""
    for disabled, is_found in ((None, True), (NOW, False)):
        accounts = Accounts(User("maria", Role.OPERATOR, NOW, disabled=disabled))
        sessions = Sessions(accounts, lambda: NOW + 1.0)  # type: ignore[arg-type]
        assert (await sessions.find("cookie") is not None) == is_found

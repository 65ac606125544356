"""What a credential may send lines of: jobs of its own cluster or tenant, and logs of nodes."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from diagnoser.adapters.sql.jobs import JobRepository
from diagnoser.model import NODE_LOG, own_job_id, spoken_job_id
from diagnoser.model.access import Credential, Owner
from diagnoser.model.errors import OutOfScope
from diagnoser.model.recent import Recent
from diagnoser.ports import Clock

NOBODY = Owner()
REMEMBERED = 50_000
REMEMBERED_SECONDS = 60.0


class JobAccess:
    """Whose a job is. Remembered for a while, so that lines cost no read of the database.

    A job that nobody knows yet becomes one of the cluster whose credential speaks of it first, and so does one that
    belongs to no cluster. A credential of one tenant speaks of its tenant's jobs only: an id that the scheduler did not
    give this tenant names a job of the tenant's own, whoever else uses it. So nobody takes an id from others, and the
    answer is the same whether they use it or not.
    """

    def __init__(self, store: JobRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._owners = Recent[str, tuple[Owner, float]](REMEMBERED)  # job -> whose it is, and until when

    async def check(self, caller: Credential, job: str) -> str:
        """What the store calls the job that the caller speaks of. Raises OutOfScope for one of another cluster."""
        (name,) = (await self.names(caller, [job])).values()
        for reason in (await self.refused(caller, [name])).values():
            raise OutOfScope(reason)
        return name

    async def names(self, caller: Credential, jobs: Collection[str]) -> dict[str, str]:
        """Job, as the caller says it -> what the store calls it."""
        names = {job: job for job in jobs}
        if not caller.tenant:
            return names
        spoken = {job: spoken_job_id(job) for job in jobs if not job.startswith(NODE_LOG)}
        owners = await self._known_owners(set(spoken.values()))
        for job, said in spoken.items():
            names[job] = said
            if owners[said].tenant != caller.tenant:
                names[job] = own_job_id(said, caller.tenant)
        return names

    def forget(self, jobs: Iterable[str]) -> None:
        """Look again whose these are: what was remembered is wrong."""
        for job in jobs:
            for name in (job, spoken_job_id(job)):
                self._owners.pop(name, None)

    async def refused(self, caller: Credential, jobs: Collection[str]) -> dict[str, str]:
        """Those of the jobs, or names of node logs, that the caller may send nothing of, each with the reason."""
        sees_all = caller.viewer.sees_all
        if sees_all and caller.vouches:
            return {}
        reasons, others = dict[str, str](), list[str]()
        for job in jobs:
            if not job.startswith(NODE_LOG):
                others.append(job)
            elif caller.vouches:
                cluster, _, node = job.removeprefix(NODE_LOG).partition("/")
                reasons[job] = _foreign(caller, f"the node {node!r}", cluster)
            else:
                needed = f"a node's log needs a token with the scope 'agent'; {caller.name!r} has '{caller.scope}'"
                reasons[job] = needed
        if not sees_all:
            owners = await self._owners_of(others, Owner(caller.cluster, caller.tenant))
            for job, owner in owners.items():
                reasons[job] = _foreign(caller, f"the job {spoken_job_id(job)!r}", owner.cluster)
        return {job: reason for job, reason in reasons.items() if reason}

    async def _owners_of(self, jobs: Collection[str], own: Owner) -> dict[str, Owner]:
        known = self._remembered(jobs)
        if asked := [job for job in jobs if known.get(job, NOBODY) == NOBODY]:
            answer = await self._store.assign_owner(asked, own, self._clock())
            self._remember(answer)
            known |= answer
        return known

    async def _known_owners(self, jobs: Collection[str]) -> dict[str, Owner]:
        known = self._remembered(jobs)
        if asked := [job for job in jobs if job not in known]:
            answer = dict.fromkeys(asked, NOBODY) | await self._store.owners(asked)
            self._remember(answer)
            known |= answer
        return known

    def _remembered(self, jobs: Collection[str]) -> dict[str, Owner]:
        now = self._clock()
        known = {}
        for job in jobs:
            owner, until = self._owners.get(job, (NOBODY, 0.0))
            if until > now:
                known[job] = owner
        return known

    def _remember(self, owners: Mapping[str, Owner]) -> None:
        until = self._clock() + REMEMBERED_SECONDS
        for job, owner in owners.items():
            self._owners[job] = (owner, until)


class JobSender(NamedTuple):
    """Who sends the lines of a request."""

    access: JobAccess
    caller: Credential


def _foreign(caller: Credential, what: str, cluster: str) -> str:
    """Why the caller may not touch ``what``, which belongs to ``cluster``; "" when it may, or is of no cluster."""
    if caller.cluster in ("", cluster):
        return ""
    return f"{what} belongs to the cluster {cluster!r}, and the token {caller.name!r} to {caller.cluster!r}"

"""What a credential of one cluster or tenant may change: only what belongs to it. What it may see, the store knows."""

from collections import OrderedDict
from collections.abc import Collection

from diagnoser.model import NODE_LOG
from diagnoser.model.access import Credential, Owner
from diagnoser.model.errors import NotFound, OutOfScope
from diagnoser.ports import Clock, JobStore

REMEMBERED = 50_000
REMEMBERED_SECONDS = 60.0


class JobAccess:
    """Whose a job is. Remembered for a while, so that lines cost no read of the database.

    A job that nobody knows yet becomes one of the credential that speaks of it first, and so does, within its cluster,
    one that belongs to no cluster.
    """

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._owners: OrderedDict[str, tuple[Owner, float]] = OrderedDict()  # job -> whose it is, and until when

    async def check(self, caller: Credential, job: str) -> None:
        """Raises OutOfScope for a job of another cluster than the caller's, NotFound for one of another tenant."""
        if caller.tenant and not job.startswith(NODE_LOG):
            owners = await self._owners_of([job], Owner(caller.cluster, caller.tenant))
            if owners[job].tenant != caller.tenant:
                raise NotFound(f"no job is called {job!r}")
        for reason in (await self.refused(caller, [job])).values():
            raise OutOfScope(reason)

    async def refused(self, caller: Credential, jobs: Collection[str]) -> dict[str, str]:
        """Those of the jobs, or names of node logs, that the caller may send nothing of, each with the reason."""
        if caller.vouches and caller.viewer.sees_all:
            return {}
        nodes = [job for job in jobs if job.startswith(NODE_LOG)]
        reasons = {node: _node_reason(caller, node) for node in nodes}
        if not caller.viewer.sees_all:
            own = Owner(caller.cluster, caller.tenant)
            owners = await self._owners_of([job for job in jobs if job not in reasons], own)
            reasons |= {job: _foreign_job(caller, job, owner) for job, owner in owners.items()}
        return {job: reason for job, reason in reasons.items() if reason}

    async def _owners_of(self, jobs: Collection[str], own: Owner) -> dict[str, Owner]:
        now = self._clock()
        known = {job: entry[0] for job in jobs if (entry := self._owners.get(job)) and entry[1] > now}
        if asked := [job for job in jobs if job not in known]:
            answer = await self._store.assign_owner(asked, own, now)
            for job, owner in answer.items():
                self._owners[job] = (owner, now + REMEMBERED_SECONDS)
                self._owners.move_to_end(job)
            known |= answer
        while len(self._owners) > REMEMBERED:
            self._owners.popitem(last=False)
        return known


def own_cluster(caller: Credential, named: str) -> str:
    """The cluster that a request is about: the named one, else the caller's; "" when neither says.

    Raises OutOfScope when the request names another cluster than the caller's.
    """
    if caller.cluster and named and named != caller.cluster:
        raise OutOfScope(f"the token {caller.name!r} is of the cluster {caller.cluster!r}, not of {named!r}")
    return named or caller.cluster


def check_breaker(caller: Credential, scope: str) -> None:
    """scope: a cluster, or ``cluster:partition``. Raises OutOfScope for another cluster than the caller's, and always
    for a credential of one tenant: a breaker protects the nodes of all."""
    check_every_tenant(caller)
    own_cluster(caller, scope.partition(":")[0])


def check_every_tenant(caller: Credential) -> None:
    """Raises OutOfScope for a credential of one tenant: what it asks for is of all of them together."""
    if caller.tenant:
        raise OutOfScope(f"this concerns all tenants, and the token {caller.name!r} is of the tenant {caller.tenant!r}")


def check_whole_service(caller: Credential) -> None:
    """Raises OutOfScope for a credential of one cluster or tenant: what it asks for concerns all of them."""
    if caller.cluster or caller.tenant:
        bound = f"cluster {caller.cluster!r}" if caller.cluster else f"tenant {caller.tenant!r}"
        raise OutOfScope(f"this concerns all clusters and tenants, and the token {caller.name!r} is of the {bound}")


def foreign(caller: Credential, what: str, cluster: str) -> str:
    """Why the caller may not touch ``what``, which belongs to ``cluster``; "" when it may."""
    if cluster == caller.cluster:
        return ""
    return f"{what} belongs to the cluster {cluster!r}, and the token {caller.name!r} to {caller.cluster!r}"


def _foreign_job(caller: Credential, job: str, owner: Owner) -> str:
    if caller.tenant and owner.tenant != caller.tenant:
        return f"the job {job!r} is not one of the tenant {caller.tenant!r}"
    return foreign(caller, f"the job {job!r}", owner.cluster) if caller.cluster else ""


def _node_reason(caller: Credential, log: str) -> str:
    if not caller.vouches:
        return f"a node's log needs a token with the scope 'agent'; {caller.name!r} has '{caller.scope}'"
    cluster, _, node = log.removeprefix(NODE_LOG).partition("/")
    return foreign(caller, f"the node {node!r}", cluster) if caller.cluster else ""

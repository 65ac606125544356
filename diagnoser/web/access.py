"""What a credential of one cluster or tenant may change: only what belongs to it."""

from collections import OrderedDict
from collections.abc import Collection

from diagnoser.model import NODE_LOG, Plan
from diagnoser.model.access import Credential
from diagnoser.model.errors import OutOfScope
from diagnoser.ports import Clock, DiagnosisRecord, JobStore
from diagnoser.recovery.breaker import DEFAULT_CLUSTER

REMEMBERED = 50_000
REMEMBERED_SECONDS = 60.0


class JobAccess:
    """Which cluster a job belongs to. Remembered for a while, so that lines cost no read of the database.

    A job that belongs to none yet, because nobody registered it, becomes one of the cluster whose credential speaks of
    it first.
    """

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._clusters: OrderedDict[str, tuple[str, float]] = OrderedDict()  # job -> cluster, and until when

    async def check(self, caller: Credential, job: str) -> None:
        """Raises OutOfScope for a job of another cluster than the caller's."""
        for reason in (await self.refused(caller, [job])).values():
            raise OutOfScope(reason)

    async def refused(self, caller: Credential, jobs: Collection[str]) -> dict[str, str]:
        """Those of the jobs, or names of node logs, that the caller may send nothing of, each with the reason."""
        if caller.vouches and not caller.cluster:
            return {}
        nodes = [job for job in jobs if job.startswith(NODE_LOG)]
        reasons = {node: _node_reason(caller, node) for node in nodes}
        if caller.cluster:
            clusters = await self._clusters_of([job for job in jobs if job not in reasons], caller.cluster)
            reasons |= {job: foreign(caller, f"the job {job!r}", cluster) for job, cluster in clusters.items()}
        return {job: reason for job, reason in reasons.items() if reason}

    async def check_diagnosis(self, caller: Credential, record: DiagnosisRecord) -> None:
        """Raises OutOfScope for a diagnosis of another cluster or tenant than the caller's."""
        if not (caller.cluster or caller.tenant):
            return
        job = await self._store.job(record.attempt.job)
        cluster = (job.cluster if job else "") or DEFAULT_CLUSTER
        if caller.cluster and cluster != caller.cluster:
            raise OutOfScope(foreign(caller, f"the job {record.attempt.job!r}", cluster))
        if caller.tenant and (record.plan is None or record.plan.tenant != caller.tenant):
            raise OutOfScope(f"the token {caller.name!r} is of the tenant {caller.tenant!r}, and this diagnosis is not")

    async def _clusters_of(self, jobs: Collection[str], cluster: str) -> dict[str, str]:
        now = self._clock()
        known = {job: entry[0] for job in jobs if (entry := self._clusters.get(job)) and entry[1] > now}
        if asked := [job for job in jobs if job not in known]:
            answer = await self._store.assign_cluster(asked, cluster, now)
            for job, name in answer.items():
                self._clusters[job] = (name, now + REMEMBERED_SECONDS)
                self._clusters.move_to_end(job)
            known |= answer
        while len(self._clusters) > REMEMBERED:
            self._clusters.popitem(last=False)
        return known


def own_cluster(caller: Credential, named: str) -> str:
    """The cluster that a request is about: the named one, else the caller's; "" when neither says.

    Raises OutOfScope when the request names another cluster than the caller's.
    """
    if caller.cluster and named and named != caller.cluster:
        raise OutOfScope(f"the token {caller.name!r} is of the cluster {caller.cluster!r}, not of {named!r}")
    return named or caller.cluster


def check_plan(caller: Credential, plan: Plan) -> None:
    """Raises OutOfScope for a plan of another cluster or tenant than the caller's."""
    cluster = plan.cluster or DEFAULT_CLUSTER
    if caller.cluster and cluster != caller.cluster:
        raise OutOfScope(foreign(caller, f"plan {plan.id}", cluster))
    if caller.tenant and plan.tenant != caller.tenant:
        raise OutOfScope(f"the token {caller.name!r} is of the tenant {caller.tenant!r}, and plan {plan.id} is not")


def check_breaker(caller: Credential, scope: str) -> None:
    """scope: a cluster, or ``cluster:partition``. Raises OutOfScope for another cluster than the caller's, and always
    for a credential of one tenant: a breaker protects the nodes of all."""
    if caller.tenant:
        check_whole_service(caller)
    own_cluster(caller, scope.partition(":")[0])


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


def _node_reason(caller: Credential, log: str) -> str:
    if not caller.vouches:
        return f"a node's log needs a token with the scope 'agent'; {caller.name!r} has '{caller.scope}'"
    cluster, _, node = log.removeprefix(NODE_LOG).partition("/")
    return foreign(caller, f"the node {node!r}", cluster) if caller.cluster else ""

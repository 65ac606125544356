"""What a credential of one cluster or tenant may change: only what belongs to it. What it may see, the store knows."""

from diagnoser.model.access import Credential
from diagnoser.model.errors import OutOfScope
from diagnoser.model.jobs import stored_cluster


def cluster_for(caller: Credential, named: str) -> str:
    """As ``own_cluster``, and that of jobs that name none where neither says."""
    return stored_cluster(own_cluster(caller, named))


def own_cluster(caller: Credential, named: str) -> str:
    """The cluster that a request is about: the named one, else the caller's; "" when neither says.

    Raises OutOfScope when the request names another cluster than the caller's.
    """
    if not named:
        return caller.cluster
    if caller.cluster not in ("", named):
        raise OutOfScope(f"the token {caller.name!r} is of the cluster {caller.cluster!r}, not of {named!r}")
    return named


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
    for kind, name in (("cluster", caller.cluster), ("tenant", caller.tenant)):
        if name:
            whose = f"the token {caller.name!r} is of the {kind} {name!r}"
            raise OutOfScope(f"this concerns all clusters and tenants, and {whose}")

"""`token`: make, list, rotate and revoke the tokens that the service accepts, in its database."""

import time
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from diagnoser.adapters.passwords import new_secret
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, err, iso, minute, out, print_list
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.credentials import new_credential
from diagnoser.model.errors import NotFound
from diagnoser.model.spans import seconds

token_cli = typer.Typer(no_args_is_help=True, help="Manage the tokens that the service accepts.")

Answer = TypeVar("Answer")

_Name = Annotated[str, typer.Argument(help="Name of the token: the history shows it beside each action.")]


@token_cli.command()
def create(
    name: _Name,
    scope: Annotated[Scope, typer.Option(help="What it may do.")],
    cluster: Annotated[str, typer.Option(help="The only cluster that it may see or change anything of.")] = "",
    tenant: Annotated[
        str, typer.Option(help="The only tenant whose jobs it may see (scopes ingest, read, operate).")
    ] = "",
    expires: Annotated[str, typer.Option(help="How long it is valid, such as 90d or 12h. Default: for ever.")] = "",
) -> None:
    """Make a token and print its secret, which is stored nowhere: only its hash is."""
    secret, credential = new_secret(), new_credential(name, scope, cluster, tenant, expires, time.time())

    async def add(store: SqlStore) -> bool:
        is_first = not await store.tokens.list_all()
        await store.tokens.add(StoredToken(credential, hash_of(secret)))
        return is_first

    if with_store(add, "token create"):
        err.print("This is the first token: from now on the service asks everybody for one.")
    _print_secret(secret)


@token_cli.command()
def rotate(
    name: _Name,
    overlap: Annotated[str, typer.Option(help="How long the old secret stays valid, such as 24h.")] = "24h",
    expires: Annotated[
        str, typer.Option(help="How long the new secret is valid, such as 90d. Default: as long as the old one was.")
    ] = "",
) -> None:
    """Give a token a new secret and print it. The old one stays valid for a while."""
    now, secret, still = time.time(), new_secret(), seconds(overlap)

    async def change(store: SqlStore) -> Credential:
        by_name = {token.credential.name: token.credential for token in await store.tokens.list_all()}
        if name not in by_name:
            raise NotFound(f"there is no token {name!r}")
        before, until = by_name[name], None
        if expires:
            until = now + seconds(expires)
        elif before.expires is not None:
            until = now + before.expires - before.created
        return await store.tokens.rotate(name, hash_of(secret), until, now, still)

    with_store(change, "token rotate")
    _print_secret(secret)


@token_cli.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """Show all tokens: what each may do, when it was last used, when it ends. Secrets are not shown."""
    now = time.time()
    tokens = with_store(lambda store: store.tokens.list_all(), "token list")
    columns = ("name", "scope", "only for", "last used", "expires", "state")
    print_list(tokens, as_json, partial(_fields, now=now), columns, partial(_row, now=now))


@token_cli.command()
def revoke(name: _Name) -> None:
    """Make a token and its old secret stop working, within five seconds on every replica."""
    now = time.time()
    with_store(lambda store: store.tokens.revoke(name, now), "token revoke")
    out.print(f"{name} is revoked")


def _print_secret(secret: str) -> None:
    """Alone on standard output, so that a program can take it."""
    err.print("Its secret, shown this once. Send it as 'Authorization: Bearer <secret>':")
    out.print(secret, soft_wrap=True)


def _fields(token: StoredToken, now: float) -> dict[str, Any]:
    credential = token.credential
    until = used = None
    if token.old_until > now and credential.revoked is None:
        until, used = iso(token.old_until), iso(token.old_used)
    return {
        "name": credential.name,
        "scope": credential.scope.value,
        "cluster": credential.cluster,
        "tenant": credential.tenant,
        "created": iso(credential.created),
        "last_used": iso(credential.last_used),
        "expires": iso(credential.expires),
        "revoked": iso(credential.revoked),
        "old_secret_valid_until": until,
        "old_secret_last_used": used,
        "state": _state(token, now),
    }


def _row(token: StoredToken, now: float) -> tuple[str, ...]:
    credential = token.credential
    bounds = []
    if credential.cluster:
        bounds.append(f"cluster {credential.cluster}")
    if credential.tenant:
        bounds.append(f"tenant {credential.tenant}")
    last_used, expires = minute(credential.last_used), minute(credential.expires)
    return credential.name, credential.scope, ", ".join(bounds), last_used, expires, _state(token, now)


def _state(token: StoredToken, now: float) -> str:
    if fault := token.fault(token.hash, now):
        return fault.removeprefix("was ").removeprefix("has ")
    if token.old_until <= now:
        return "valid"
    return f"valid; old secret until {minute(token.old_until)}, last used {minute(token.old_used)}"

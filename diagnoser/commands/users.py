"""`users`: the people who may sign in at the pages with a password."""

import asyncio
import time
from typing import Annotated, Any

import typer

from diagnoser.commands.open_store import read_password, with_store
from diagnoser.commands.terminal import AsJson, err, iso, minute, out, print_list
from diagnoser.model.credentials import require_name
from diagnoser.model.errors import BadInput
from diagnoser.model.people import Role, User, UserChange, password_fault, prepared_password

users_cli = typer.Typer(no_args_is_help=True, help="Manage the people who may sign in at the pages.")

_Name = Annotated[str, typer.Argument(help="Name of the user: the history shows it beside each action.")]
_Role = Annotated[
    Role, typer.Option(help="viewer looks; operator also approves, resets and corrects; admin does everything.")
]


@users_cli.command()
def add(name: _Name, role: _Role) -> None:
    """Make a user. Ask for the password, or read it from the first line of standard input."""
    require_name(name, "user")
    hashed = _hashed(name)
    user = User(name, role, time.time())

    async def act(store: Any) -> bool:
        known = await store.users.has_users(), await store.tokens.list_all()
        await store.users.add(user, hashed)
        return not any(known)

    if with_store(act, "users add"):
        err.print("This is the first user: from now on the service asks everybody to sign in.")
    out.print(f"{name} is {_article(role)}")


@users_cli.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """Show all users, those of the identity provider included."""
    users = with_store(lambda store: store.users.list_all(), "users list")
    print_list(users, as_json, _fields, ("name", "role", "signs in", "last sign-in", "state"), _row)


def _row(user: User) -> tuple[str, ...]:
    state = "good"
    if user.disabled is not None:
        state = "disabled"
    return user.name, user.role, user.issuer or "with a password", minute(user.last_sign_in), state


@users_cli.command()
def disable(name: _Name) -> None:
    """Sign a user out everywhere, at once, and let the user sign in no more. The name stays taken: history names it."""
    _change(name, UserChange(disabled=True), "disable")
    out.print(f"{name} is disabled")


@users_cli.command()
def enable(name: _Name) -> None:
    """Let a disabled user sign in again."""
    _change(name, UserChange(disabled=False), "enable")
    out.print(f"{name} may sign in")


@users_cli.command()
def role(name: _Name, role: Annotated[Role, typer.Argument(help="viewer, operator or admin.")]) -> None:
    """Give a user another role. That of people of the identity provider is set anew with each sign-in."""
    _change(name, UserChange(role=role), "role")
    out.print(f"{name} is {_article(role)}")


@users_cli.command()
def password(name: _Name) -> None:
    """Give a user another password, asked for or read from standard input, and sign the user out everywhere."""
    _change(name, UserChange(password=_hashed(name)), "password")
    out.print(f"{name} has a new password, and is signed out everywhere")


def _change(name: str, change: UserChange, command: str) -> User:
    now = time.time()
    return with_store(lambda store: store.users.change(name, change, now), f"users {command}")


def _hashed(name: str) -> str:
    """Raises BadInput for a password that is easy to guess."""
    from diagnoser.adapters.passwords import Argon2Passwords

    given = read_password(name)
    if fault := password_fault(given, name):
        raise BadInput(fault)
    return asyncio.run(Argon2Passwords().hash(prepared_password(given)))


def _article(role: Role) -> str:
    return f"{'a' if role is Role.VIEWER else 'an'} {role}"


def _fields(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role.value,
        "issuer": user.issuer,
        "created": iso(user.created),
        "last_sign_in": iso(user.last_sign_in),
        "disabled": iso(user.disabled),
    }

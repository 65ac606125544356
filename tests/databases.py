"""Databases for tests: each its own, with the tables of the code, made without the history that leads to them."""

from pathlib import Path

from diagnoser.adapters.sql.store import SqlStore, open_store

_empty: list[bytes] = []
"""The first file that ``open_store`` made in this process: the others are its copies."""


async def sqlite_store(file: Path) -> SqlStore:
    """A store over a SQLite file, which is made where it is absent. The caller closes the store."""
    url = f"sqlite:///{file}"
    if not _empty:
        first = file.with_name("empty.db")
        await (await open_store(f"sqlite:///{first}")).close()
        _empty.append(first.read_bytes())
        first.unlink()
    _copy(file)
    return await open_store(url)


def _copy(file: Path) -> None:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_empty[0])

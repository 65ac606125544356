"""Saved views of lists."""

from dataclasses import asdict

from sqlalchemy import and_, delete, func, select

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, put_rows
from diagnoser.adapters.sql.tables import saved_views
from diagnoser.model.errors import BadInput
from diagnoser.model.views import ListName, SavedView


class ViewRepository(Repository):
    async def of_list(self, listed: ListName) -> list[SavedView]:
        """By name."""
        row = saved_views.c
        query = select(saved_views).where(row.listed == listed.value).order_by(row.name)
        return await self._db.records(query, SavedView)

    async def save(self, view: SavedView, limit: int) -> None:
        """In place of one of the same name. Raises BadInput where the list has ``limit`` others already."""
        row = saved_views.c
        others = select(func.count()).where(row.listed == view.listed.value, row.name != view.name)
        values = asdict(view) | {"listed": view.listed.value}
        async with self._db.writing() as connection:
            if (await connection.execute(others)).scalar_one() >= limit:
                raise BadInput(f"there are {limit} saved views of this list already: delete one first")
            await put_rows(connection, saved_views, [values])
            await note_change(connection, "view", f"{view.listed}/{view.name}", None, view)

    async def delete(self, listed: ListName, name: str) -> bool:
        """False when there is none."""
        mine = and_(saved_views.c.listed == listed.value, saved_views.c.name == name)
        async with self._db.writing() as connection:
            is_gone = bool((await connection.execute(delete(saved_views).where(mine))).rowcount)
            if is_gone:
                await note_change(connection, "view", f"{listed}/{name}", {"name": name}, None)
            return is_gone

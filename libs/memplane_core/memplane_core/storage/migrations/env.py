"""Alembic's entry: one transaction, under a lock, as the owner role."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import asyncpg
import sqlalchemy as sa
from alembic import context
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

_LOCK = 7_361_905_512
"""Any number that is ours: two migrations of one database take turns."""


def _run(connection: sa.Connection) -> None:
    app_role: str = context.config.attributes["app_role"]
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    found = connection.execute(
        sa.text("SELECT rolsuper OR rolbypassrls AS bypasses FROM pg_roles WHERE rolname = :role"), {"role": app_role}
    ).one_or_none()
    if found is None:
        raise RuntimeError(f"the runtime role {app_role!r} does not exist: CREATE ROLE {app_role} LOGIN PASSWORD '...'")
    if found.bypasses:
        raise RuntimeError(f"the runtime role {app_role!r} may bypass row-level security: ALTER ROLE it NOBYPASSRLS")
    context.configure(connection=connection, target_metadata=None)
    with context.begin_transaction():
        context.run_migrations()


async def _connect() -> Any:
    attributes = context.config.attributes
    connect = cast("Callable[..., Awaitable[Any]]", asyncpg.connect)  # whose own types are partly unknown
    return await connect(attributes["owner_url"], ssl=attributes["ssl"])


async def _main() -> None:
    # asyncpg reads the URL, so that it means the same here as it does to a service.
    engine = create_async_engine("postgresql+asyncpg://", async_creator=_connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


asyncio.run(_main())

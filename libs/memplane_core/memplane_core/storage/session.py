"""Connections to Postgres, each transaction inside one tenant."""

import struct
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, cast
from uuid import UUID

import asyncpg
import msgspec
import numpy as np
import structlog

from memplane_core.domain.errors import Conflict, ErasureUnderWay, MemplaneError, NotFound, Unavailable, quota_exceeded
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.metrics import POSTGRES_SECONDS, POSTGRES_WAIT_SECONDS
from memplane_core.observability.process import process_name
from memplane_core.observability.tracing import add_span
from memplane_core.settings import PostgresSettings
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.tls import ssl_of

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class Row(Protocol):
    """A row of an answer, by column name."""

    def __getitem__(self, column: str) -> Any: ...


class Connection(Protocol):
    """What is used of asyncpg's connection, inside a transaction."""

    async def execute(self, query: str, *args: object) -> str:
        """Run a statement; the answer is its command tag."""
        ...

    async def fetch(self, query: str, *args: object) -> list[Row]:
        """All rows."""
        ...

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        """The first row."""
        ...

    async def fetchval(self, query: str, *args: object) -> Any:
        """The first row's first column."""
        ...


OPERATOR: Final = TenantId(UUID(int=0))
"""In place of a tenant where whoever operates the installation does something before there is one."""

_VECTOR_HEAD = struct.Struct(">HH")

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # a statement that took too long, a server that shuts down or starts
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby, until it has taken over
)

_BROKEN = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg raises for a connection that was lost while nobody waited for an answer."""


_STATEMENTS = frozenset(("begin", "commit", "delete", "insert", "rollback", "select", "update", "with"))
"""First words of statements by which metrics tell them apart."""


class _Full(msgspec.Struct, frozen=True):
    """What such an error's detail says."""

    limit: int
    used: int


class _PooledConnection(asyncpg.Connection):
    """A connection that is given back without a round trip: nothing of ours outlives its transaction."""

    def get_reset_query(self) -> str:
        return ""


def pack_vector(vector: FloatArray) -> bytes:
    """A vector of shape (dim,) as pgvector's wire form: the dimension, two spare bytes, big-endian float32.

    Bound in binary, so that the server does not parse a text for every row it compares.
    """
    return _VECTOR_HEAD.pack(vector.shape[0], 0) + vector.astype(">f4").tobytes()


def unpack_vector(raw: bytes) -> FloatArray:
    """The reverse of `pack_vector`."""
    return np.frombuffer(raw, dtype=">f4", offset=_VECTOR_HEAD.size).astype(np.float32)


def _pack_json(value: object) -> bytes:
    return b"\x01" + exact_json(value)


def _unpack_json(raw: bytes) -> Any:
    return msgspec.json.decode(memoryview(raw)[1:])


def _same(raw: bytes) -> bytes:
    return raw


class _Done(Protocol):
    """What asyncpg tells of a statement that has ended."""

    query: str
    elapsed: float
    exception: BaseException | None


def _measure(done: _Done) -> None:
    """Count a statement that has ended, by its first word: all else in it may say whose it is."""
    word = done.query.split(maxsplit=1)[0].rstrip(";").lower()
    statement = word if word in _STATEMENTS else "other"
    outcome = "ok" if done.exception is None else "error"
    POSTGRES_SECONDS.labels(process_name(), statement, outcome).observe(done.elapsed)
    add_span(f"postgres {statement}", seconds=done.elapsed, ended_ns=time.time_ns())


async def _prepare(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=_pack_json,
        decoder=_unpack_json,
        format="binary",
    )
    connection.add_query_logger(_measure)
    await connection.set_type_codec("vector", schema="public", encoder=_same, decoder=unpack_vector, format="binary")


class Database:
    """A pool of connections of the runtime role."""

    def __init__(self, pool: asyncpg.Pool, settings: PostgresSettings, *, stored_memories: int | None = None) -> None:
        self._pool = pool
        self._timeout_ms = int(settings.statement_timeout_s * 1000)
        # Read by what counts memories as they are written, for a tenant without a limit of its own.
        self._quota = (
            "" if stored_memories is None else f", set_config('memplane.stored_memories', '{stored_memories:d}', true)"
        )
        self._acquire_s = settings.acquire_timeout_s

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: PostgresSettings, *, stored_memories: int | None = None
    ) -> AsyncGenerator["Database"]:
        """Connections for as long as the context lasts. Postgres may be away at first: see `ping`.

        Args:
            settings: Of the connections.
            stored_memories: Most that a tenant without a limit of its own may have stored.
        """
        pool = asyncpg.create_pool(
            settings.url.get_secret_value(),
            ssl=ssl_of(settings),
            min_size=settings.pool_min,
            max_size=settings.pool_max,
            timeout=settings.connect_timeout_s,
            command_timeout=settings.statement_timeout_s + 5,
            statement_cache_size=200 if settings.prepared_statements else 0,
            connection_class=_PooledConnection,
            init=_prepare,
        )
        async with pool:
            yield cls(pool, settings, stored_memories=stored_memories)

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction that sees and writes the rows of `tenant` alone; committed when the block ends without error.

        Raises:
            QuotaExceeded: It would leave the tenant with more stored than it may have. Told when the block ends.
            ErasureUnderWay: It would write about somebody who is being erased.
            Conflict: It would write what was made from a memory that was erased within the last day.
            NotFound: It would write a memory of a tenant that is gone.
            Unavailable: Postgres cannot be reached.
        """
        # The id is a UUID object, so its text cannot close the quotes. One message instead of three.
        opening = (
            f"BEGIN; SELECT set_config('memplane.tenant', '{tenant}', true),"
            f" set_config('statement_timeout', '{self._timeout_ms}', true){self._quota}"
        )
        async with self._transaction(opening) as connection:
            yield connection

    @asynccontextmanager
    async def system(self) -> AsyncGenerator[Connection]:
        """A transaction without a tenant: it sees no rows, and can call the functions that cross tenants.

        Raises:
            Unavailable: Postgres cannot be reached.
        """
        opening = f"BEGIN; SELECT set_config('statement_timeout', '{self._timeout_ms}', true)"
        async with self._transaction(opening) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, opening: str) -> AsyncGenerator[Connection]:
        asked = time.perf_counter()
        try:
            async with self._pool.acquire(timeout=self._acquire_s) as proxy:  # pyright: ignore[reportUnknownVariableType]
                POSTGRES_WAIT_SECONDS.labels(process_name()).observe(time.perf_counter() - asked)
                connection = cast("Connection", proxy)
                try:
                    await connection.execute(opening)
                    yield connection
                except BaseException:
                    # Where this fails the pool does it, or throws the connection away.
                    with suppress(Exception):
                        await connection.execute("ROLLBACK")
                    raise
                await connection.execute("COMMIT")
        except (*_AWAY, *_BROKEN) as error:
            # An argument that cannot be sent is ours to mend. A certificate that does not verify is a ValueError too.
            if isinstance(error, ValueError) and not isinstance(error, OSError):
                raise
            _log.warning("database_unavailable", error=type(error).__name__)
            raise Unavailable("the database cannot be reached; try again", retry_after=2) from error
        except asyncpg.PostgresError as error:
            told = _told(error)
            if told is None:
                raise
            raise told from error

    async def ping(self) -> None:
        """Return when Postgres answers. Raises Unavailable."""
        async with self.system() as connection:
            await connection.fetchval("SELECT 1")


def _told(error: asyncpg.PostgresError) -> MemplaneError | None:
    """What an error that the schema raises means to a caller; None for all others."""
    detail = str(getattr(error, "detail", ""))
    match getattr(error, "sqlstate", None):
        case "MPQ01":  # by what looks at quotas when a transaction ends
            full = msgspec.json.decode(detail, type=_Full)
            return quota_exceeded(str(error.args[0]), limit=full.limit, used=full.used)
        case "MPE01":  # by what keeps memories from being written about whoever is being erased
            return ErasureUnderWay(
                "the user or agent that this is about is being erased; try again when that is done",
                retry_after=5,
                id=detail,
            )
        case "MPE02":
            return Conflict("it is derived_from a memory that was erased, and would bring back what it said", id=detail)
        case "MPT01":
            return NotFound("this tenant does not exist any more")
        case _:
            return None


@asynccontextmanager
async def inside(tenant: TenantId, connection: Connection, *, outside: TenantId) -> AsyncGenerator[None]:
    """A part of a transaction of `outside` that is one of `tenant`: both are committed, or neither."""
    await connection.execute("SELECT set_config('memplane.tenant', $1, true)", str(tenant))
    yield
    await connection.execute("SELECT set_config('memplane.tenant', $1, true)", str(outside))


def is_contention(error: Exception) -> bool:
    """Whether a transaction was undone only because others were in its way: it may be run again."""
    return isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError | asyncpg.LockNotAvailableError)

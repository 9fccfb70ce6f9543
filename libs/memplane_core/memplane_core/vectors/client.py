"""Connections to Milvus: an asynchronous one for data in each event loop, and one in a thread for each DDL call."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry.trace import SpanKind
from pymilvus import AsyncMilvusClient, MilvusClient
from pymilvus.client import types

from memplane_core.domain.index import FloatArray
from memplane_core.observability.metrics import MILVUS_SECONDS
from memplane_core.observability.process import process_name
from memplane_core.observability.tracing import span
from memplane_core.settings import MilvusSettings
from memplane_core.vectors import schema
from memplane_core.vectors.faults import CollectionAbsent, translated
from memplane_core.vectors.searching import found_keys, search_request

T = TypeVar("T")

# pymilvus logs each failed call with its traceback. All of them reach the caller as errors, who logs what matters.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

_LITE_VERSION: Final = "milvus_lite"
"""A real server built for the PyPI wheel calls itself `v2.3.5-lite`, so nothing shorter will do."""

_CHANNEL: Final = {
    # Channels to one address share a connection and its back-off of up to 120 s, unless told otherwise: a new
    # channel to a server that has come back would fail for as long.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5000,
    "grpc.max_reconnect_backoff_ms": 1000,
    # Lite's server hangs up on clients that ping an idle connection more than once in five minutes.
    "grpc.keepalive_permit_without_calls": 0,
}


LoadState = Literal["absent", "released", "loading", "loaded"]


class Connection:
    """One event loop's connection. Its channel reconnects by itself when a call finds the server gone.

    Every method takes `timeout_s` at most and raises `faults.CollectionAbsent`, `CollectionNotLoaded` or another
    IndexUnavailable. Each is one call to the server, but for the first `upsert` into a collection, which asks for its
    schema.
    """

    def __init__(self, client: AsyncMilvusClient, settings: MilvusSettings) -> None:
        self._client: Any = client  # it is typed in part only, and wrongly where it matters
        self._timeout_s = settings.timeout_s
        self._metadata = (("dbname", settings.database),)

    async def version(self) -> str:
        """What the server calls itself."""
        async with self._call("asking for the server's version"):
            return await self._client.get_server_version(timeout=self._timeout_s)

    async def upsert(self, collection: str, records: list[dict[str, object]]) -> None:
        """Store rows whole."""
        async with self._call("upserting"):
            await self._client.upsert(collection, records, timeout=self._timeout_s)

    async def delete(self, collection: str, expression: str) -> None:
        """Remove the rows that the expression selects."""
        async with self._call("deleting"):
            await self._client.delete(collection, filter=expression, timeout=self._timeout_s)

    async def search(
        self, collection: str, vectors: Sequence[FloatArray], *, expression: str, limit: int, params: dict[str, object]
    ) -> list[list[str]]:
        """Keys of the nearest rows to each vector, best first, at bounded staleness."""
        request = search_request(collection, vectors, expression=expression, limit=limit, params=params)
        async with self._call("searching"):
            handler = await self._client._get_connection()
            # Asked for anew: where a call finds the server gone, pymilvus puts another channel in the place of its own.
            answer = await handler._async_stub.Search(request, timeout=self._timeout_s, metadata=self._metadata)
            return found_keys(answer)

    async def keys(self, collection: str, expression: str) -> list[str]:
        """Keys of the rows that the expression selects, at strong consistency."""
        return [row[schema.KEY] for row in await self._query(collection, expression, schema.KEY)]

    async def some_keys(self, collection: str, expression: str, *, most: int) -> list[str]:
        """Keys of `most` rows that the expression selects, or of all where there are fewer; in no order, as `keys`."""
        rows = await self._query(collection, expression, schema.KEY, limit=most)
        return [row[schema.KEY] for row in rows]

    async def collections(self) -> list[str]:
        """Names of all collections, ours or not."""
        async with self._call("listing collections"):
            return list(await self._client.list_collections(timeout=self._timeout_s))

    async def count(self, collection: str) -> int:
        """Rows stored, at strong consistency."""
        rows = await self._query(collection, "", "count(*)")
        return int(rows[0]["count(*)"])

    async def dimension(self, collection: str) -> int | None:
        """Length of the collection's vectors, 0 where it is none that we made; None where there is no collection."""
        try:
            async with self._call("looking for a collection"):
                description = await self._client.describe_collection(collection, timeout=self._timeout_s)
        except CollectionAbsent:
            return None
        fields = {field["name"]: field.get("params", {}) for field in description["fields"]}
        return int(fields[schema.VECTOR].get("dim", 0)) if fields.keys() >= schema.FIELDS else 0

    async def has_index(self, collection: str) -> bool:
        """Whether the collection's vectors are indexed, or going to be."""
        async with self._call("looking for an index"):
            return bool(await self._client.list_indexes(collection, timeout=self._timeout_s))

    async def load_state(self, collection: str) -> LoadState:
        """Whether the collection can be searched."""
        async with self._call("asking for a collection's state"):
            answer = await self._client.get_load_state(collection, timeout=self._timeout_s)
        match answer["state"]:
            case types.LoadState.Loaded:
                return "loaded"
            case types.LoadState.Loading:
                return "loading"
            case types.LoadState.NotExist:
                return "absent"
            case _:
                return "released"

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def _query(self, collection: str, expression: str, column: str, **options: int) -> list[dict[str, Any]]:
        async with self._call("reading"):
            return await self._client.query(
                collection,
                filter=expression,
                output_fields=[column],
                consistency_level="Strong",
                timeout=self._timeout_s,
                **options,
            )

    @asynccontextmanager
    async def _call(self, doing: str) -> AsyncGenerator[None]:
        with _measured(doing), translated(doing):
            async with asyncio.timeout(self._timeout_s):
                yield


class MilvusClients:
    """Hands out connections, makes them when first needed, and remembers whether the server is Lite."""

    def __init__(self, settings: MilvusSettings) -> None:
        self._settings = settings
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self.lite: bool | None = None

    async def connection(self) -> Connection:
        """The running loop's connection, made at the first call, which takes two calls to the server.

        Raises:
            IndexUnavailable: No server answered within the settings' `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            async with self._locks.setdefault(loop, asyncio.Lock()):
                connection = self._connections.get(loop) or await self._connect()
                self._connections[loop] = connection
        return connection

    async def in_thread(self, call: Callable[[Any], T], *, doing: str) -> T:
        """Run a DDL call, which the asynchronous client cannot do on every server.

        Args:
            call: Is given a MilvusClient of its own, whose types are wrong in places.
            doing: For the message of an error.

        Raises:
            IndexUnavailable: As `faults.translated`.
        """
        with _measured(doing), translated(doing):
            return await asyncio.to_thread(self._call, call)

    async def close(self) -> None:
        """Close the running loop's connection. Others close with their loops."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    async def _connect(self) -> Connection:
        client = AsyncMilvusClient(**_options(self._settings))
        connection = Connection(client, self._settings)
        try:
            version = await connection.version()
        except BaseException:
            await connection.close()
            raise
        self.lite = version.startswith(_LITE_VERSION)
        return connection

    def _call(self, call: Callable[[Any], T]) -> T:
        client = MilvusClient(**_options(self._settings))
        try:
            return call(client)
        finally:
            client.close()


@contextmanager
def _measured(doing: str) -> Generator[None]:
    began, outcome = time.perf_counter(), "error"
    try:
        with span(f"milvus {doing}", kind=SpanKind.CLIENT):
            yield
        outcome = "ok"
    finally:
        MILVUS_SECONDS.labels(process_name(), doing, outcome).observe(time.perf_counter() - began)


def _options(settings: MilvusSettings) -> dict[str, Any]:
    """What both clients are made with."""
    tls = {
        name: getattr(settings, name)
        for name in ("server_pem_path", "ca_pem_path", "client_pem_path", "client_key_path", "server_name")
        if getattr(settings, name)
    }
    return {
        "uri": settings.uri,
        "token": settings.token.get_secret_value(),
        "db_name": settings.database,
        "timeout": settings.timeout_s,
        "dedicated": True,
        "grpc_options": _CHANNEL,
        **tls,
    }

"""Makes, loads and drops collections."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from pymilvus import MilvusException

from memplane_core.background import together
from memplane_core.domain.collections import CollectionName
from memplane_core.domain.errors import IndexMismatch
from memplane_core.domain.index import Generation
from memplane_core.settings import MilvusSettings
from memplane_core.vectors import schema
from memplane_core.vectors.client import Connection, LoadState, MilvusClients
from memplane_core.vectors.faults import CollectionAbsent, translated

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_STATES_AT_ONCE: Final = 8


class Collections:
    """The life of collections on one Milvus. Safe when several tasks, loops or processes do the same at once."""

    def __init__(self, settings: MilvusSettings, clients: MilvusClients) -> None:
        self._settings = settings
        self._clients = clients
        self._made: set[str] = set()
        self._dims: dict[str, int] = {}
        self._loading: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[None]] = {}

    async def ensure(self, generation: Generation) -> None:
        """Return when the collection is made, indexed and loaded. One call to the server where it was before.

        Raises:
            IndexMismatch: It is there for vectors of another length.
            IndexUnavailable: Milvus is away, or was not done within `load_timeout_s`.
        """
        name = generation.collection
        connection = await self._clients.connection()
        async with self._deadline("making a collection"):
            if name in self._made and await connection.load_state(name) == "loaded":
                await self.check(generation)
                return
            self._forget(name)
            await self._make(connection, generation)
            self._made.add(name)
            await self.load(generation)

    async def check(self, generation: Generation, *, anew: bool = False) -> None:
        """Return when the collection is known to hold vectors of the generation's length: asks the server once.

        With `anew` it is asked again: somebody else may have put another collection in its place.

        Raises:
            CollectionAbsent: There is no collection.
            IndexMismatch: They have another length.
            IndexUnavailable: Milvus is away.
        """
        name = generation.collection
        dim = None if anew else self._dims.get(name)
        if dim is None:
            dim = await (await self._clients.connection()).dimension(name)
            if dim is None:
                raise CollectionAbsent("looking for a collection: there is none", retry_after=1)
            self._dims[name] = dim
        if dim != generation.dim:
            what = f"holds vectors of dimension {dim}" if dim else "is none that Memplane has made"
            raise IndexMismatch(
                f"the collection {name!r} {what}, and the model {generation.model!r} of its generation makes vectors of"
                f" dimension {generation.dim}; `memplane reindex` makes another collection"
            )

    async def load(self, generation: Generation | CollectionName) -> None:
        """Return when the collection is loaded; all who ask meanwhile wait for the same load.

        Raises:
            CollectionAbsent: There is none.
            IndexUnavailable: Milvus is away, or was not done within `load_timeout_s`.
        """
        await asyncio.shield(self.load_soon(generation))

    def load_soon(self, generation: Generation | CollectionName) -> asyncio.Task[None]:
        """Start loading the collection in the background, unless that is under way, and return the task."""
        place = (asyncio.get_running_loop(), generation.collection)
        task = self._loading.get(place)
        if task is None:
            task = asyncio.create_task(self._load(generation.collection), name=f"load {generation.collection}")
            self._loading[place] = task
            task.add_done_callback(lambda done: self._loaded(place, done))
        return task

    async def release(self, name: str) -> None:
        """Take the collection out of the server's memory; an absent one is no error. Raises IndexUnavailable."""
        timeout_s = self._settings.timeout_s
        with contextlib.suppress(CollectionAbsent):
            await self._clients.in_thread(
                lambda ddl: ddl.release_collection(name, timeout=timeout_s), doing="releasing a collection"
            )

    async def names(self) -> list[CollectionName]:
        """Our collections on the server. Raises IndexUnavailable."""
        connection = await self._clients.connection()
        return [name for text in await connection.collections() if (name := CollectionName.parse(text))]

    async def states(self) -> dict[CollectionName, LoadState]:
        """Each of our collections on the server, and whether it can be searched. Raises IndexUnavailable."""
        connection = await self._clients.connection()
        names = await self.names()
        turns = asyncio.Semaphore(_STATES_AT_ONCE)

        async def state(name: CollectionName) -> LoadState:
            async with turns:
                return await connection.load_state(name.collection)

        return dict(zip(names, await together(map(state, names)), strict=True))

    async def drop(self, name: str) -> None:
        """Remove the collection; an absent one is no error. Raises IndexUnavailable."""
        self._forget(name)
        timeout_s = self._settings.load_timeout_s
        await self._clients.in_thread(
            lambda ddl: ddl.drop_collection(name, timeout=timeout_s), doing="dropping a collection"
        )

    async def compact(self, name: str) -> None:
        """Ask the server to flush the collection and to compact it. Raises IndexUnavailable."""
        timeout_s = self._settings.timeout_s

        def ask(ddl: Any) -> None:
            ddl.flush(name, timeout=timeout_s)
            ddl.compact(name, timeout=timeout_s)

        await self._clients.in_thread(ask, doing="compacting a collection")

    async def close(self) -> None:
        """End the running loop's loads."""
        loop = asyncio.get_running_loop()
        tasks = [task for (owner, _), task in self._loading.items() if owner is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _loaded(self, place: tuple[asyncio.AbstractEventLoop, str], task: asyncio.Task[None]) -> None:
        self._loading.pop(place, None)
        if not task.cancelled():
            task.exception()  # those who wait for it are told; nobody else has to be

    def _forget(self, name: str) -> None:
        self._made.discard(name)
        self._dims.pop(name, None)

    async def _make(self, connection: Connection, generation: Generation) -> None:
        name = generation.collection
        if await connection.dimension(name) is None:
            await self._clients.in_thread(lambda ddl: self._create(ddl, generation), doing="making a collection")
        await self.check(generation)
        if not await connection.has_index(name):
            await self._clients.in_thread(lambda ddl: self._index(ddl, generation), doing="indexing a collection")

    def _create(self, ddl: Any, generation: Generation) -> None:
        name = generation.collection
        try:
            ddl.create_collection(
                name,
                schema=schema.collection_schema(generation.dim),
                consistency_level="Bounded",
                timeout=self._settings.load_timeout_s,
            )
        except MilvusException:
            # Somebody else may have been faster, which Lite calls an error, and a server if the shape is another.
            if not ddl.has_collection(name, timeout=self._settings.timeout_s):
                raise

    def _index(self, ddl: Any, generation: Generation) -> None:
        name = generation.collection
        params = schema.index_params(generation)
        try:
            ddl.create_index(name, params, sync=False, timeout=self._settings.load_timeout_s)
        except MilvusException:
            if not ddl.list_indexes(name, timeout=self._settings.timeout_s):
                raise

    async def _load(self, name: str) -> None:
        connection = await self._clients.connection()
        timeout_s = self._settings.timeout_s
        pause_s = _FIRST_PAUSE_S
        async with self._deadline("loading a collection"):
            while (state := await connection.load_state(name)) != "loaded":
                if state == "absent":
                    raise CollectionAbsent("loading a collection: there is none", retry_after=1)
                if state == "released":
                    await self._clients.in_thread(
                        lambda ddl: ddl.load_collection(name, _async=True, timeout=timeout_s),
                        doing="loading a collection",
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    @contextlib.asynccontextmanager
    async def _deadline(self, doing: str) -> AsyncGenerator[None]:
        with translated(doing):
            async with asyncio.timeout(self._settings.load_timeout_s):
                yield

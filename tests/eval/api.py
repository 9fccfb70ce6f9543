"""A tenant as an app sees it: memories written and searched through the public API, nothing else."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from tests.bench.progress import Bar
from tests.eval.sets import Question

from memplane_core.clients.http import ServiceHttp
from memplane_core.contracts.memories import BatchWrite, BatchWritten, MemoryWrite

POOL: Final = 200
"""Candidates asked for: what a search for ten results has by default, so that asking for more does not help."""

FRESH_S: Final = 11.0
"""After so long the index answers alone, and no longer Postgres for what has just been written."""

_BATCH_BYTES: Final = 20_000
"""What is embedded while the writer waits: more would be left to the worker."""

_BATCH: Final = 200
_WRITERS: Final = 2
_SEARCHERS: Final = 4
_TIMEOUT_S: Final = 60.0
_PATIENCE_S: Final = 300.0
_TRIES: Final = 5

Mode = Literal["hybrid", "dense", "lexical"]


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for beside the default; what is UNSET is not sent."""

    mode: Mode | UnsetType = UNSET
    candidates: int | UnsetType = POOL
    rerank: bool | UnsetType = UNSET


class UserFilter(msgspec.Struct, frozen=True):
    """Whose memories are searched."""

    user_id: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a search."""

    query: str
    top_k: int
    touch: bool
    now: datetime
    filters: UserFilter | UnsetType
    mode: Mode | UnsetType
    candidates: int | UnsetType
    rerank: bool | UnsetType


class Named(msgspec.Struct, frozen=True):
    """What is read of a found memory."""

    external_id: str


class Answer(msgspec.Struct, frozen=True):
    """What is read of the answer to a search."""

    results: list[Named]
    degraded: list[str]


class Api:
    """A tenant's way in.

    Args:
        urls: Of the gateways, used in turn.
        key: Of the tenant.
    """

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._doors = [ServiceHttp(url, service=f"the gateway at {url}") for url in urls]
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def close(self) -> None:
        """Give back the connections."""
        for door in self._doors:
            await door.close()

    async def write(self, memories: Sequence[MemoryWrite], bar: Bar) -> None:
        """Store all, in batches, and return when all are in the index."""
        one_of_few, done = asyncio.Semaphore(_WRITERS), 0

        async def write_one(n: int, batch: list[MemoryWrite]) -> None:
            nonlocal done
            async with one_of_few:
                await self._write_batch(n, batch)
            done += len(batch)
            bar.at(done)

        async with asyncio.TaskGroup() as group:
            for n, batch in enumerate(batches(memories)):
                group.create_task(write_one(n, batch))

    async def _write_batch(self, n: int, batch: list[MemoryWrite]) -> None:
        """Written again while the index is behind: an equal memory of the same name changes nothing, and is waited for.

        Raises:
            RuntimeError: A memory cannot be indexed, or is not for minutes.
        """
        body = msgspec.json.encode(BatchWrite(memories=batch, wait="index"))
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            written = msgspec.json.decode(await self._post("/v1/memories/batch", body, door=n), type=BatchWritten)
            states = {item.index_state for item in written.results}
            if states == {"indexed"}:
                return
            if "failed" in states or time.monotonic() > deadline:
                raise RuntimeError(f"of a batch of {len(batch)} memories some are not indexed: {states}")

    async def search(
        self, questions: Sequence[Question], bar: Bar, *, now: datetime, top_k: int, options: SearchOptions
    ) -> list[list[str]]:
        """The `external_id`s that each question finds, best first.

        Args:
            questions: Asked a few at a time.
            bar: Hears how many are answered.
            now: Clock of the ranking.
            top_k: Results that each asks for.
            options: Of every search.

        Raises:
            RuntimeError: An answer was degraded, or none.
        """
        one_of_few, done = asyncio.Semaphore(_SEARCHERS), 0

        async def ask(n: int, question: Question) -> list[str]:
            nonlocal done
            async with one_of_few:
                found = await self._search_one(n, question, now=now, top_k=top_k, options=options)
            done += 1
            bar.at(done)
            return found

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(n, question)) for n, question in enumerate(questions)]
        return [task.result() for task in tasks]

    async def _search_one(
        self, n: int, question: Question, *, now: datetime, top_k: int, options: SearchOptions
    ) -> list[str]:
        ask = Ask(
            query=question.text,
            top_k=top_k,
            touch=False,
            now=now.astimezone(UTC),
            filters=UNSET if question.user_id is None else UserFilter(question.user_id),
            mode=options.mode,
            candidates=options.candidates,
            rerank=options.rerank,
        )
        answer = msgspec.json.decode(
            await self._post("/v1/memories/search", msgspec.json.encode(ask), door=n), type=Answer
        )
        if answer.degraded:
            raise RuntimeError(f"the search for {question.text!r} was degraded by {answer.degraded}")
        return [found.external_id for found in answer.results]

    async def _post(self, path: str, body: bytes, *, door: int) -> bytes:
        """The answer's body; a service that is busy is asked again.

        Raises:
            RuntimeError: Anything but 200 in the end.
        """
        http = self._doors[door % len(self._doors)]
        tries = 0
        while True:
            answer = await http.call(
                "POST", path, timeout_s=_TIMEOUT_S, repeatable=True, headers=self._headers, body=body
            )
            tries += 1
            if answer.status == 200:
                return answer.body
            if answer.status != 503 or tries == _TRIES:
                raise RuntimeError(f"{path} answers {answer.status}: {answer.body[:500]!r}")
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))


def batches(memories: Sequence[MemoryWrite]) -> Iterator[list[MemoryWrite]]:
    """The memories in order, in groups that are embedded before the answer."""
    batch: list[MemoryWrite] = []
    size = 0
    for memory in memories:
        more = len(memory.content.encode())
        if batch and (size + more > _BATCH_BYTES or len(batch) == _BATCH):
            yield batch
            batch, size = [], 0
        batch.append(memory)
        size += more
    if batch:
        yield batch

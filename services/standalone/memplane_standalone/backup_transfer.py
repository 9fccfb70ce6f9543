"""Exports and imports over the public routes, which go on where a connection breaks."""

import asyncio
import hashlib
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import IO, Final
from uuid import UUID

import httpx2
import msgspec

from memplane_core.contracts.export import (
    HeaderLine,
    HistoryLine,
    Line,
    MemoryLine,
    ObservationLine,
    PolicyLine,
    TrailerLine,
)
from memplane_core.contracts.imports import ImportResult, OnConflict
from memplane_core.domain.memory import State
from memplane_standalone.admin import ApiError, problem_of

_ATTEMPTS: Final = 6
_PAUSE_S: Final = 2.0
_WAIT_S: Final = 300.0
_SPOOLED: Final = 8 * 1024 * 1024
_PIECE: Final = 256 * 1024
_SLOW_DOWN: Final = frozenset((429, 503))

Progress = Callable[[int], None]
"""Is told how many memories, or bytes, have been dealt with."""


class Transfer:
    """One tenant's data, out and in.

    Args:
        url: Of the gateway.
        key: Of the tenant, with the scope `memories:admin`.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}

    async def export(self, out: IO[bytes], *, query: dict[str, str], progress: Progress) -> TrailerLine:
        """Write a whole export, and return its trailer.

        Where the connection breaks it goes on after the last memory that came whole; the trailer is then of what was
        written.

        Raises:
            ApiError: The platform refuses, or breaks off again and again.
        """
        with tempfile.SpooledTemporaryFile[bytes](_SPOOLED) as group:
            return await self._export_to(_Writer(out, group, progress), query)

    async def _export_to(self, writer: "_Writer", query: dict[str, str]) -> TrailerLine:
        failures = 0
        while True:
            reached = writer.reached
            try:
                await self._export_from(writer, query)
            except (httpx2.HTTPError, _BrokenOffError, _BusyError) as error:
                failures = 1 if writer.reached != reached else failures + 1
                if failures >= _ATTEMPTS:
                    raise ApiError(f"the export broke off after {writer.memories} memories: {error!r}") from error
                await asyncio.sleep(_PAUSE_S)
            else:
                return writer.trailer

    async def _export_from(self, writer: "_Writer", query: dict[str, str]) -> None:
        writer.begin()
        after = {} if writer.reached is None else {"after": str(writer.reached)}
        timeout = httpx2.Timeout(30.0, read=_WAIT_S)
        async with (
            httpx2.AsyncClient(base_url=self._url, headers=self._headers, timeout=timeout, trust_env=False) as client,
            client.stream("GET", "/v1/export", params=query | after) as answer,
        ):
            if answer.status_code >= 400:
                await answer.aread()
                if answer.status_code in _SLOW_DOWN:
                    raise _BusyError(problem_of(answer))
                raise ApiError(problem_of(answer), status=answer.status_code)
            kept = b""
            async for piece in answer.aiter_bytes():
                *lines, kept = (kept + piece).split(b"\n")
                for line in lines:
                    writer.take(line + b"\n")
        writer.end()

    async def import_file(
        self, file: Path | IO[bytes], *, on_conflict: OnConflict, dry_run: bool, policy: bool, progress: Progress
    ) -> ImportResult:
        """Send a whole file; it is sent again from its beginning where the connection breaks.

        Args:
            file: Of the lines; one that is open already is sent once.
            on_conflict: What becomes of a memory that is there with other content.
            dry_run: Only check.
            policy: Take over the policy too.
            progress: Told of bytes.

        Raises:
            ApiError: The platform refuses, with what was stored by then, or breaks off again and again.
        """
        query = {"on_conflict": on_conflict, "dry_run": str(dry_run).lower(), "policy": str(policy).lower()}
        headers = {**self._headers, "Content-Type": "application/x-ndjson"}
        attempts = _ATTEMPTS if isinstance(file, Path) else 1
        for attempt in range(attempts):
            timeout = httpx2.Timeout(_WAIT_S, connect=30.0)
            try:
                async with httpx2.AsyncClient(base_url=self._url, timeout=timeout, trust_env=False) as client:
                    answer = await client.post(
                        "/v1/import", content=_pieces(file, progress), params=query, headers=headers
                    )
            except httpx2.HTTPError as error:
                if attempt == attempts - 1:
                    raise ApiError(f"the import broke off: {error!r}; send it again to go on") from error
            else:
                if answer.status_code < 400:
                    return msgspec.json.decode(answer.content, type=ImportResult)
                if answer.status_code not in _SLOW_DOWN or attempt == attempts - 1:
                    raise ApiError(problem_of(answer), status=answer.status_code)
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")


class _BrokenOffError(Exception):
    """The answer ended before its trailer."""


class _BusyError(Exception):
    """The platform asks to come again later."""


class _Writer:
    """Writes lines, each memory only once it is there with all of its history, which waits in `group`."""

    def __init__(self, out: IO[bytes], group: IO[bytes], progress: Progress) -> None:
        self._out = out
        self._group = group
        self._progress = progress
        self._pending: MemoryLine | None = None
        self._entries = 0
        self._opening: set[type[HeaderLine | PolicyLine]] = set()
        self._resumed = False
        self._given: TrailerLine | None = None
        self._all, self._records = hashlib.sha256(), hashlib.sha256()
        self._states: Counter[State] = Counter()
        self._history = 0
        self._observations = 0
        self._observed: UUID | None = None
        self.reached: UUID | None = None

    @property
    def memories(self) -> int:
        """How many have been written."""
        return self._states.total()

    @property
    def trailer(self) -> TrailerLine:
        """Of what has been written."""
        return TrailerLine(
            memories=self.memories,
            history=self._history,
            states=dict(self._states),
            records_sha256=self._records.hexdigest(),
            sha256=self._all.hexdigest(),
            observations=self._observations,
        )

    def begin(self) -> None:
        """A new answer follows; what has not come whole in the one before comes again."""
        self._resumed = bool(self._opening)
        self._drop_group()

    def take(self, raw: bytes) -> None:
        """The next line."""
        line: Line = msgspec.json.decode(raw, type=Line)  # pyright: ignore[reportArgumentType] - a union is a type too
        match line:
            case HeaderLine() | PolicyLine():
                if type(line) not in self._opening:
                    self._opening.add(type(line))
                    self._write(raw)
            case ObservationLine():
                if self._observed is None or line.id > self._observed:
                    self._observed = line.id
                    self._observations += 1
                    self._records.update(raw)
                    self._write(raw)
            case MemoryLine():
                self._flush()
                self._pending = line
                self._group.write(raw)
            case HistoryLine():
                self._entries += 1
                self._group.write(raw)
            case TrailerLine():
                self._flush()
                self._given = line

    def end(self) -> None:
        """The answer has ended. Raises _BrokenOffError where it was not whole."""
        given = self._given
        if given is None:
            raise _BrokenOffError("there was no trailer")
        mine = self.trailer
        if not self._resumed and mine != given:
            raise ApiError("the export is not what its trailer says: something was changed on the way")
        self._out.write(msgspec.json.encode(mine) + b"\n")
        self._out.flush()
        self._progress(self.memories)

    def _flush(self) -> None:
        if self._pending is None:
            return
        self._group.seek(0)
        while piece := self._group.read(_PIECE):
            self._write(piece)
            self._records.update(piece)
        self._states[self._pending.state] += 1
        self._history += self._entries
        self.reached = self._pending.id
        self._drop_group()
        self._progress(self.memories)

    def _drop_group(self) -> None:
        self._pending, self._entries = None, 0
        self._group.seek(0)
        self._group.truncate()

    def _write(self, piece: bytes) -> None:
        self._out.write(piece)
        self._all.update(piece)


async def _pieces(file: Path | IO[bytes], progress: Progress) -> AsyncGenerator[bytes]:
    source = file.open("rb") if isinstance(file, Path) else file
    sent = 0
    try:
        while piece := await asyncio.to_thread(source.read, _PIECE):
            yield piece
            sent += len(piece)
            progress(sent)
    finally:
        if isinstance(file, Path):
            source.close()

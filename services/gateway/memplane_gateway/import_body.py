"""Cuts the body of an import into parts of whole lines as it comes, holding no more than one of them."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec
from litestar.exceptions import InternalServerException

from memplane_core.contracts.export import LINE_BYTES
from memplane_core.contracts.imports import PART_BYTES, PART_LINES
from memplane_core.domain.errors import MalformedRequest, MemplaneError, UnsupportedMedia, invalid
from memplane_core.web.request import ServiceRequest

_TYPES: Final = frozenset(("application/x-ndjson", "application/ndjson", "application/jsonl"))


def check_type(request: ServiceRequest) -> None:
    """Raise UnsupportedMedia unless the body is said to be lines of JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in _TYPES:
        raise UnsupportedMedia("the body must be lines of JSON: send it with `Content-Type: application/x-ndjson`")


class BodyPart(msgspec.Struct, frozen=True):
    """Some of the lines of a body, each with its end."""

    lines: list[bytes]

    @property
    def body(self) -> bytes:
        """All of them."""
        return b"".join(self.lines)


class ImportBody:
    """The body of a request, in parts.

    Args:
        request: Whose body has not been read.

    Attributes:
        lines: How many have come.
    """

    def __init__(self, request: ServiceRequest) -> None:
        self._chunks = aiter(_chunks(request))
        self._whole = hashlib.sha256()
        self._above = hashlib.sha256()
        self.lines = 0

    @property
    def digest(self) -> bytes:
        """SHA-256 of all that has come."""
        return self._whole.digest()

    @property
    def sha256_above_last(self) -> str:
        """SHA-256 of all lines but the last that has come, in hexadecimal digits."""
        return self._above.hexdigest()

    async def parts(self) -> AsyncGenerator[BodyPart]:
        """The lines, so many at a time as are stored at once.

        Raises:
            InvalidRequest: A line is too long. What stands above it has been given.
            MalformedRequest: The request ended before its body did.
        """
        lines: list[bytes] = []
        size = 0
        async for line in self._split():
            if line is None:  # the next one is too long
                if lines:
                    yield BodyPart(lines)
                raise invalid(f"/lines/{self.lines + 1}", f"must be at most {LINE_BYTES:,} bytes long")
            self._count(line)
            lines.append(line)
            size += len(line)
            if size >= PART_BYTES or len(lines) >= PART_LINES:
                yield BodyPart(lines)
                lines, size = [], 0
        if lines:
            yield BodyPart(lines)

    async def drain(self) -> None:
        """Read on without looking, so that the connection is not broken off under an answer that is not read yet."""
        with suppress(MemplaneError):
            async for _ in self._chunks:
                pass

    async def rest(self) -> None:
        """Read all of it, for its digest. Raises MalformedRequest."""
        async for chunk in self._chunks:
            self._whole.update(chunk)

    def _count(self, line: bytes) -> None:
        self.lines += 1
        self._above = self._whole.copy()
        self._whole.update(line)

    async def _split(self) -> AsyncGenerator[bytes | None]:
        """Lines with their ends, the last one perhaps without; None where one has become too long."""
        kept = bytearray()
        async for chunk in self._chunks:
            searched = len(kept)
            kept += chunk
            start = 0
            while (end := kept.find(b"\n", max(start, searched))) >= 0:
                if end - start > LINE_BYTES:
                    yield None
                    return
                yield bytes(kept[start : end + 1])
                start = end + 1
            del kept[:start]
            if len(kept) > LINE_BYTES:
                yield None
                return
        if kept:
            yield bytes(kept)


async def _chunks(request: ServiceRequest) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except InternalServerException as error:  # what Litestar makes of a disconnect, as if it were our fault
        raise MalformedRequest("the request ended before its body did") from error

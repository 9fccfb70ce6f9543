"""Clients that send or read too slowly: how long they are waited for, and no longer.

Time counts only while the service waits for the client. A transfer may take `patience_s` and a second for each
`min_bytes_s` bytes of it, however long it is.
"""

import asyncio
import time
from types import TracebackType
from typing import Final, cast

from litestar.types import HTTPReceiveMessage, HTTPSendMessage, Receive, Send

from memplane_core.domain.errors import RequestTimeout

PIECE_BYTES: Final = 256 * 1024
"""Of an answer that is handed to the server at once; the next is handed over when this one has found room."""


class ClientTooSlow(Exception):
    """An answer was not read in time; nothing can be said to the client any more."""


class Pace:
    """How slow a client may be.

    Args:
        patience_s: Granted to every transfer.
        min_bytes_s: Granted on top is the time that its bytes take at this rate.
    """

    def __init__(self, *, patience_s: float, min_bytes_s: int) -> None:
        self._patience_s = patience_s
        self._min_bytes_s = min_bytes_s

    def receiving(self, receive: Receive) -> Receive:
        """`receive`, which raises RequestTimeout where the body does not come. Once it is there nothing is timed."""
        clock = _Clock(self._patience_s, self._min_bytes_s)
        complete = False

        async def paced() -> HTTPReceiveMessage:
            nonlocal complete
            if complete:
                return cast("HTTPReceiveMessage", await receive())
            try:
                async with clock.waiting():
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(f"the body did not come within {clock.allowed_s:.0f} s") from None
            if message["type"] == "http.request":
                clock.count(len(message.get("body", b"")))
                complete = not message.get("more_body", False)
            return cast("HTTPReceiveMessage", message)

        return cast("Receive", paced)

    def sending(self, send: Send) -> Send:
        """`send`, which hands long bodies over in pieces and raises ClientTooSlow where they are not read."""
        clock = _Clock(self._patience_s, self._min_bytes_s)
        streams = False

        async def put(piece: bytes, *, more: bool) -> None:
            try:
                async with clock.waiting():
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            except TimeoutError:
                raise ClientTooSlow(f"an answer was not read within {clock.allowed_s:.0f} s") from None
            clock.count(len(piece))

        async def paced(message: HTTPSendMessage) -> None:
            nonlocal streams
            if message["type"] != "http.response.body":
                await send(message)
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            streams = streams or more or len(body) > PIECE_BYTES
            if not streams:  # the server takes one piece at once
                await send(message)
                return
            while len(body) > PIECE_BYTES:
                piece, body = body[:PIECE_BYTES], body[PIECE_BYTES:]
                await put(piece, more=True)
            await put(body, more=more)

        return cast("Send", paced)


class _Clock:
    """Sums up waits against what is allowed for them together."""

    def __init__(self, patience_s: float, min_bytes_s: int) -> None:
        self.allowed_s = patience_s
        self._per_byte_s = 1 / min_bytes_s
        self._waited_s = 0.0

    def count(self, size: int) -> None:
        """Allow for `size` bytes that came through."""
        self.allowed_s += size * self._per_byte_s

    def waiting(self) -> "_Waiting":
        """Time what is done inside of a `with`. Raises TimeoutError as soon as that is more than is allowed."""
        return _Waiting(self)

    @property
    def left_s(self) -> float:
        """How long may still be waited."""
        return self.allowed_s - self._waited_s

    def spend(self, seconds: float) -> None:
        """Take off what was waited."""
        self._waited_s += seconds


class _Waiting:
    """A class, as a generator would cost every request more than all the rest of this."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._timeout = asyncio.timeout(clock.left_s)
        self._began = time.monotonic()

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._clock.spend(time.monotonic() - self._began)
        await self._timeout.__aexit__(kind, error, at)

"""What a Kubernetes Service does, in small: each new connection goes to one of those that say they are ready."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from memplane_core.embedded.ports import free_port
from memplane_core.embedded.probes import http_ok

_LOOK_EVERY_S: Final = 0.1
_CHUNK: Final = 65_536


class Balancer:
    """Forwards connections; those that are open stay where they are.

    Args:
        urls: Of the processes.

    Attributes:
        url: Where it listens.
        ready: Those that get new connections.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.ready: list[str] = []
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._up.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def _run(self) -> None:
        self._main = self._loop.create_task(self._serve())
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.close()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._accept, "127.0.0.1", self._port), asyncio.TaskGroup() as looking:
            for url in self._urls:
                looking.create_task(self._look(url))
            self._up.set()

    async def _look(self, url: str) -> None:
        while True:
            is_ready = await asyncio.to_thread(http_ok, f"{url}/readyz")
            if is_ready and url not in self.ready:
                self.ready.append(url)
            elif not is_ready and url in self.ready:
                self.ready.remove(url)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ready = self.ready
            host = urlsplit(ready[next(self._turn) % len(ready)])
            there = await asyncio.open_connection(host.hostname, host.port)
            await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))
        except (OSError, ZeroDivisionError):
            writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with suppress(OSError):
            writer.close()

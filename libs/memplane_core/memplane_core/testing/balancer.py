"""What a Kubernetes Service does, in small: each new connection goes to one of those that say they are ready."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from memplane_core.background import together
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
        self.url = ""
        self.ready: list[str] = []
        self._turn = itertools.count()
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(30), "it does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server, asyncio.TaskGroup() as group:
            looking = [group.create_task(self._look(url)) for url in self._urls]
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._up.set()
            await self._over.wait()
            for task in looking:
                task.cancel()

    async def _look(self, url: str) -> None:
        while True:
            is_ready = await asyncio.to_thread(http_ok, f"{url}/readyz")
            if is_ready and url not in self.ready:
                self.ready.append(url)
            elif not is_ready and url in self.ready:
                self.ready.remove(url)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = [writer]
        try:
            ready = self.ready
            host = urlsplit(ready[next(self._turn) % len(ready)])
            back, there = await asyncio.open_connection(host.hostname, host.port)
            opened.append(there)
            await together([_pass(reader, there), _pass(back, writer)])
        except (OSError, ZeroDivisionError):
            for one in opened:
                one.close()
        except BaseException:  # it is over while the connection is not
            for one in opened:
                one.transport.abort()
            raise


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with suppress(OSError):
            writer.close()

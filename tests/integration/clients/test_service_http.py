"""Calls of another service while it, or this process, stops."""

import asyncio

import pytest
from aiohttp import web

from memplane_core.clients.http import ServiceHttp, ServiceUnreachable

pytestmark = pytest.mark.anyio


async def test_a_call_that_is_cut_off_by_the_end_opens_no_connection_again() -> None:
    asked: list[str] = []
    begun = asyncio.Event()

    async def hold(request: web.Request) -> web.Response:
        asked.append(request.path)
        begun.set()
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/slow", hold)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = ServiceHttp("http://{}:{}".format(*runner.addresses[0][:2]), service="a service")
        calling = asyncio.create_task(http.call("GET", "/slow", timeout_s=30, repeatable=True))
        await begun.wait()
        await http.close()
        with pytest.raises(ServiceUnreachable):
            await calling
        with pytest.raises(ServiceUnreachable, match="stopping"):
            await http.call("GET", "/slow", timeout_s=30, repeatable=True)
    finally:
        await runner.cleanup()
    assert asked == ["/slow"]


async def test_a_call_that_was_read_and_cut_off_may_have_been_carried_out_though_the_next_try_is_refused() -> None:
    async def read_and_vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(read_and_vanish, "127.0.0.1", 0)
    http = ServiceHttp("http://{}:{}".format(*server.sockets[0].getsockname()), service="a service")
    try:
        with pytest.raises(ServiceUnreachable) as caught:
            await http.call("PUT", "/thing", timeout_s=30, repeatable=True)
        assert not caught.value.unsent
        with pytest.raises(ServiceUnreachable) as caught:
            await http.call("PUT", "/thing", timeout_s=30, repeatable=True)
        assert caught.value.unsent
    finally:
        await http.close()
        await server.wait_closed()

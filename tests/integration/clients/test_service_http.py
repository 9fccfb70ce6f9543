"""Calls of another service while this process stops."""

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

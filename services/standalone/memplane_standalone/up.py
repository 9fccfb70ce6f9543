"""`memplane up`: the platform in the foreground, until it is told to stop."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from rich.console import Console

from memplane_standalone.platform import Options, Running, platform
from memplane_standalone.progress import ConsoleReporter

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(options: Options, *, console: Console) -> int:
    """Run the platform until Ctrl-C or TERM, and return the exit code.

    Raises:
        HomeError: The home is in use or cannot be used.
        StartError: A part does not start.
        ApiError: The gateway does not hand out credentials.
    """
    reporter = ConsoleReporter(console)

    async def run_until_told(running: Running) -> int:
        home, url = running.home.path, running.credentials.url
        reporter.note(
            f"\nMemplane is ready at {url} after {reporter.elapsed():.1f} s.\n"
            f"Console: {running.credentials.console_url}   API: {url}/docs\n"
            f"Keys: {home / 'credentials.json'}   Logs: {running.home.logs}\n"
            "Stop with Ctrl-C."
        )
        await running.supervisor.watch()
        return 0

    return asyncio.run(with_platform(options, reporter, run_until_told))


async def with_platform(options: Options, reporter: ConsoleReporter, body: Callable[[Running], Awaitable[int]]) -> int:
    """Start the platform, do `body`, and stop the platform; also, and with code 0, on Ctrl-C, TERM or hang-up.

    Returns:
        What `body` returned.
    """
    told = asyncio.Event()
    running: list[Running] = []

    async def work() -> int:
        async with platform(options, reporter=reporter) as started:
            running.append(started)
            return await body(started)

    def stop() -> None:
        if told.is_set() and running:  # told twice: no more patience
            running[0].supervisor.kill()
        told.set()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    working = asyncio.create_task(work())
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if told.is_set() and not working.done():
        reporter.note("stopping")
        working.cancel()
    try:
        return await working
    except asyncio.CancelledError:
        return 0

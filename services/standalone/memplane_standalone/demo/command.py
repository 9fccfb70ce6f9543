"""The `memplane demo` command."""

import asyncio
from pathlib import Path

from rich.console import Console

from memplane_core.embedded.probes import http_ok
from memplane_standalone.admin import Api, ApiError
from memplane_standalone.demo.conversations import BadConversation, Conversation, bundled, from_locomo
from memplane_standalone.demo.run import run_demo
from memplane_standalone.home import DEFAULT_HOME, Credentials, read_credentials
from memplane_standalone.platform import Options, Running
from memplane_standalone.progress import ConsoleReporter
from memplane_standalone.up import with_platform

_LOCOMO = Path("../shared/data/locomo10.json")


def demo(*, home: Path = DEFAULT_HOME, port: int = 8080, locomo: Path | None = None, conversation: int = 3) -> int:
    """Remember a conversation, ask five questions about it, and show what is recalled and why.

    Uses the platform that runs on the home, and starts one for the demo where none does.

    Parameters
    ----------
    home
        Folder of the platform.
    port
        Of the platform, if it has to be started.
    locomo
        File of LoCoMo conversations; ../shared/data/locomo10.json where it is there, else a bundled sample.
    conversation
        Which of them, from 0.
    """
    try:
        chosen = _conversation(locomo, conversation)
    except BadConversation as error:
        raise ApiError(str(error)) from error
    console = Console()
    console.print(f"{chosen.id}: {len(chosen.turns)} turns, {len(chosen.questions)} questions", highlight=False)
    credentials = read_credentials(home)
    if credentials is not None and http_ok(f"{credentials.url}/readyz"):
        return asyncio.run(_ask(credentials, chosen, console))

    async def ask(running: Running) -> int:
        return await _ask(running.credentials, chosen, console)

    return asyncio.run(with_platform(Options(home=home, port=port), ConsoleReporter(console), ask))


def _conversation(path: Path | None, number: int) -> Conversation:
    if path is None and not _LOCOMO.is_file():
        return bundled()
    return from_locomo(path or _LOCOMO, number)


async def _ask(credentials: Credentials, conversation: Conversation, console: Console) -> int:
    async with Api(credentials.url, credentials.api_key, timeout_s=60.0) as api:
        await run_demo(api, conversation, console=console)
    return 0

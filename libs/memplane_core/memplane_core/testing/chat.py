"""A server that speaks OpenAI's `POST /chat/completions`, and says what a test wrote."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from memplane_core.clients.chat import LlmSettings

Trouble = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Question(msgspec.Struct, frozen=True):
    """What the server was asked.

    Attributes:
        data: The user's message, as the JSON that it is.
        authorization: Header of that name.
        body: All of the request.
    """

    system: str
    data: Any
    authorization: str
    body: dict[str, Any]


class ScriptedChat:
    """Answers each question with what `say` makes of it.

    Attributes:
        say: The text of an answer; may be changed at any time.
        troubles: Each is the answer to one request, before the first good one.
        offended_by: Tells which questions are refused with a 400.
        questions: All that were asked, in order, those too that met trouble.
        most_at_once: Most requests that were under way at one moment.
        holds: While it is clear, no request is answered.
    """

    def __init__(self, say: Callable[[Question], str]) -> None:
        self.say: Callable[[Question], str] = say
        self.troubles: list[Trouble] = []
        self.offended_by: Callable[[Question], bool] = lambda _: False
        self.questions: list[Question] = []
        self.most_at_once = 0
        self.holds = asyncio.Event()
        self.holds.set()
        self.url = ""
        self._now = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve on a free port for as long as the context lasts."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}/v1"
            yield
        finally:
            self.holds.set()
            await runner.cleanup()

    def settings(self, **changes: object) -> LlmSettings:
        """Of a client of this server."""
        return LlmSettings.model_validate({"url": self.url, "model": "scripted", "timeout_s": 5, **changes})

    async def asked(self) -> int:
        """How many questions have come so far."""
        return len(self.questions)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        system, user = (message["content"] for message in body["messages"])
        question = Question(system, json.loads(user), request.headers.get("Authorization", ""), body)
        self.questions.append(question)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            await self.holds.wait()
            if self.troubles:
                return await self.troubles.pop(0)(request)
            if self.offended_by(question):
                return web.json_response({"error": {"code": "bad_model", "message": user}}, status=400)
            return web.json_response(completion(self.say(question)))
        finally:
            self._now -= 1


def completion(text: str | None, *, usage: bool = True) -> dict[str, Any]:
    """The body of a good answer; with `usage`, of 100 tokens of the question and 10 of the answer."""
    answer: dict[str, Any] = {
        "id": "c-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    }
    return answer | ({"usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}} if usage else {})


def status(code: int, *, body: object = None, retry_after: str | None = None) -> Trouble:
    """An answer of this status."""

    async def answer(_: web.Request) -> web.StreamResponse:
        headers = {"Retry-After": retry_after} if retry_after else {}
        return web.json_response(body or {}, status=code, headers=headers)

    return answer


def saying(body: bytes) -> Trouble:
    """An answer of status 200 with this body."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return answer


async def hang_up(request: web.Request) -> web.StreamResponse:
    """No answer: the connection ends."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def insights(*found: tuple[str, Sequence[object]]) -> str:
    """What a model says that has come to these insights, each with the memories that it names."""
    return json.dumps(
        {"insights": [{"text": text, "sources": list(sources)} for text, sources in found]}, ensure_ascii=False
    )

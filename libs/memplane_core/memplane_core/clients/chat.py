"""Answers of a language model, from any server that speaks OpenAI's `POST /chat/completions`."""

import asyncio
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from pydantic import Field, SecretStr, field_validator

from memplane_core.clients.upstream import Upstream, UpstreamAway, UpstreamRefused, error_code
from memplane_core.domain.errors import Unavailable
from memplane_core.settings import Section

_SERVICE: Final = "the language model's server"


class LlmSettings(Section):
    """A language model, for what is better with one. There is none unless `url` and `model` are given.

    Attributes:
        url: Up to and without `/chat/completions`, as `https://host/v1`.
        model: The server's name for it.
        api_key: Sent as a bearer token; empty sends none.
        timeout_s: Longest wait for one answer, tries that failed included.
        concurrency: Most questions of a process at once.
        temperature: Sent where it is given; some models take none.
        max_tokens: Of an answer, its thoughts included; sent where it is given.
    """

    url: str
    model: Annotated[str, Field(min_length=1)]
    api_key: SecretStr = SecretStr("")
    timeout_s: float = Field(default=60.0, gt=0, le=100)
    concurrency: int = Field(default=4, ge=1, le=64)
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=16)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be like https://host/v1")
        return url


class ChatRefused(Exception):
    """The server will not answer this question; another try would end the same way. Quotes nothing of it."""


class ChatAnswer(msgspec.Struct, frozen=True):
    """What the model said, and the tokens that the server counted; 0 where it does not say."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    model: str
    messages: list[_Message]
    temperature: float | None = None
    max_tokens: int | None = None


class _Said(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Said


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct, frozen=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class ChatModel:
    """One model of one server. Make it anywhere, ask it in one event loop, and `close` it there."""

    def __init__(self, settings: LlmSettings) -> None:
        self._upstream = Upstream(settings.url, key=settings.api_key.get_secret_value(), service=_SERVICE)
        self._settings = settings
        self._places = asyncio.Semaphore(settings.concurrency)

    @property
    def concurrency(self) -> int:
        """How many questions it takes at once; more wait."""
        return self._settings.concurrency

    async def ask(self, *, system: str, user: str, within_s: float | None = None) -> ChatAnswer:
        """The model's answer to one question. Tries again, within the time, what may pass.

        Args:
            system: What it is to do.
            user: What it is to do it with.
            within_s: Longest that this may take, the wait for its turn included; as long as it takes where left out.

        Raises:
            ChatRefused: See there.
            Unavailable: No answer in time, or one that makes no sense. Quotes nothing of the question.
        """
        settings = self._settings
        request = _Request(
            settings.model,
            [_Message("system", system), _Message("user", user)],
            settings.temperature,
            settings.max_tokens,
        )
        body = msgspec.json.encode(request)
        try:
            async with asyncio.timeout(within_s), self._places:
                answer = await self._upstream.post("/chat/completions", body, timeout_s=settings.timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"{_SERVICE} has no time for this question", retry_after=30) from error
        except UpstreamRefused as error:
            raise ChatRefused(f"{_SERVICE} answers {error.answer.status}{error_code(error.answer)}") from error
        except UpstreamAway as error:
            raise Unavailable(f"{error}{error_code(error.answer)}", retry_after=error.retry_after) from error
        try:
            read = msgspec.json.decode(answer.body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{_SERVICE} gave an answer that cannot be read", retry_after=30) from None
        usage = read.usage or _Usage()
        return ChatAnswer(
            read.choices[0].message.content or "", max(0, usage.prompt_tokens), max(0, usage.completion_tokens)
        )

    async def close(self) -> None:
        """Give back the connections."""
        await self._upstream.close()

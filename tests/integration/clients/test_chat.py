"""The client of a language model, against a real server on this machine that fails first."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from pydantic import ValidationError

from memplane_core.clients.chat import ChatAnswer, ChatModel, ChatRefused, LlmSettings
from memplane_core.domain.errors import Unavailable
from memplane_core.testing.chat import ScriptedChat, Trouble, completion, hang_up, saying, status
from memplane_core.testing.rows import eventually

pytestmark = pytest.mark.anyio

SECRET = "the text of a memory"


@pytest.fixture
async def chat() -> AsyncGenerator[ScriptedChat]:
    scripted = ScriptedChat(lambda question: f"heard {question.data}")
    async with scripted.running():
        yield scripted


@asynccontextmanager
async def asking(chat: ScriptedChat, **changes: object) -> AsyncGenerator[ChatModel]:
    model = ChatModel(chat.settings(**changes))
    try:
        yield model
    finally:
        await model.close()


class TestAsking:
    async def test_the_answer_comes_with_what_it_cost(self, chat: ScriptedChat) -> None:
        async with asking(chat, api_key="k-1", temperature=0, max_tokens=64) as model:
            answer = await model.ask(system="repeat", user='"你好"')
        assert answer == ChatAnswer("heard 你好", 100, 10)
        [question] = chat.questions
        assert (question.system, question.authorization) == ("repeat", "Bearer k-1")
        assert {name: question.body[name] for name in ("model", "temperature", "max_tokens")} == {
            "model": "scripted",
            "temperature": 0,
            "max_tokens": 64,
        }

    async def test_what_is_not_set_is_not_sent(self, chat: ScriptedChat) -> None:
        async with asking(chat) as model:
            await model.ask(system="repeat", user="1")
        assert chat.questions[0].body.keys() == {"model", "messages"}
        assert chat.questions[0].authorization == ""

    async def test_an_answer_without_text_or_usage_is_an_empty_one(self, chat: ScriptedChat) -> None:
        chat.troubles = [_completion(None)]
        async with asking(chat) as model:
            assert await model.ask(system="", user="1") == ChatAnswer("", 0, 0)

    async def test_no_more_than_so_many_questions_are_under_way_at_once(self, chat: ScriptedChat) -> None:
        chat.holds.clear()
        async with asking(chat, concurrency=2) as model:
            waiting = [asyncio.create_task(model.ask(system="", user=str(n))) for n in range(7)]
            await eventually(chat.asked, lambda asked: asked == 2)
            chat.holds.set()
            await asyncio.gather(*waiting)
        assert (len(chat.questions), chat.most_at_once) == (7, 2)


class TestTrouble:
    async def test_what_passes_is_ridden_out(self, chat: ScriptedChat) -> None:
        chat.troubles = [status(429, retry_after="0.1"), status(500), hang_up]
        async with asking(chat) as model:
            assert (await model.ask(system="", user="1")).text == "heard 1"
        assert len(chat.questions) == 4

    async def test_no_longer_than_the_deadline(self, chat: ScriptedChat) -> None:
        chat.troubles = [status(429, retry_after="30")]
        async with asking(chat, timeout_s=10) as model:
            with pytest.raises(Unavailable, match="server answers 429"):
                await model.ask(system="", user="1")
        assert len(chat.questions) == 1

    async def test_one_that_never_answers(self, chat: ScriptedChat) -> None:
        chat.holds.clear()
        async with asking(chat, timeout_s=0.3) as model:
            with pytest.raises(Unavailable, match=r"did not answer within|had no answer within"):
                await model.ask(system="", user="1")

    async def test_nobody_listens(self) -> None:
        model = ChatModel(LlmSettings(url="http://127.0.0.1:9/v1", model="none", timeout_s=0.5))
        with pytest.raises(Unavailable):
            await model.ask(system="", user="1")
        await model.close()

    @pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}', b'{"choices": [{"message": 3}]}', b"\xff"])
    async def test_an_answer_that_is_none(self, chat: ScriptedChat, body: bytes) -> None:
        chat.troubles = [saying(body)]
        async with asking(chat) as model:
            with pytest.raises(Unavailable, match="cannot be read"):
                await model.ask(system="", user="1")

    async def test_a_wrong_key_is_no_fault_of_the_question(self, chat: ScriptedChat) -> None:
        chat.troubles = [status(401, body={"error": {"code": "invalid_api_key", "message": SECRET}})]
        async with asking(chat) as model:
            with pytest.raises(Unavailable) as away:
                await model.ask(system="", user="1")
        assert str(away.value) == "the language model's server answers 401 (invalid_api_key)"

    async def test_a_question_that_is_refused_is_not_asked_again_and_not_quoted(self, chat: ScriptedChat) -> None:
        chat.troubles = [status(400, body={"error": {"code": SECRET, "type": "content_filter", "message": SECRET}})]
        async with asking(chat) as model:
            with pytest.raises(ChatRefused) as refused:
                await model.ask(system="", user="1")
        assert str(refused.value) == "the language model's server answers 400 (content_filter)"
        assert len(chat.questions) == 1


class TestSettings:
    @pytest.mark.parametrize(
        "given", [{"url": "host/v1", "model": "m"}, {"url": "http://host/v1", "model": ""}, {"url": "http://host/v1"}]
    )
    def test_half_a_model_is_none(self, given: dict[str, str]) -> None:
        with pytest.raises(ValidationError):
            LlmSettings.model_validate(given)


def _completion(text: str | None) -> Trouble:
    return saying(json.dumps(completion(text, usage=False)).encode())

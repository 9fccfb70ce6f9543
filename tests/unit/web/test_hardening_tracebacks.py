"""Errors in logs: where they came from, and nothing of what they quote."""

from collections.abc import AsyncGenerator
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest
from litestar import get
from litestar.response import Stream

from memplane_core.domain.errors import Unavailable, invalid
from memplane_core.observability.tracebacks import describe, format_error
from memplane_core.settings import Settings
from memplane_core.web.app import build_app

pytestmark = pytest.mark.anyio

SECRET = "zqxjkvb"


def database_error() -> Exception:
    error: Any = asyncpg.UniqueViolationError(f"duplicate key: Key (external_id)=({SECRET}) already exists")
    error.table_name, error.constraint_name = "memory", "memory_external_id"
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError(SECRET), "ValueError"),
        (KeyError(SECRET), "KeyError"),
        (UnicodeEncodeError("utf-8", SECRET, 0, 1, SECRET), "UnicodeEncodeError"),
        (msgspec.ValidationError(SECRET), "msgspec.ValidationError"),
        (asyncpg.DataError(SECRET), "asyncpg.exceptions.DataError: SQLSTATE 22000"),
        (database_error(), "asyncpg.exceptions.UniqueViolationError: SQLSTATE 23505 memory memory_external_id"),
        (invalid("/content", SECRET), "memplane_core.domain.errors.InvalidRequest"),
        (Unavailable("the database is away"), "memplane_core.domain.errors.Unavailable: the database is away"),
        (AttributeError("no attribute 'x'"), "AttributeError: no attribute 'x'"),
        (ConnectionRefusedError(111, "Connection refused", SECRET), "ConnectionRefusedError: Connection refused"),
    ],
)
async def test_a_message_is_told_only_where_it_speaks_of_the_program(error: Exception, told: str) -> None:
    assert describe(error) == told


async def test_an_error_is_told_with_all_that_it_came_from() -> None:
    def parse() -> None:
        try:
            int(SECRET)
        except ValueError as error:
            raise RuntimeError("no number") from error

    with pytest.raises(RuntimeError) as caught:
        parse()
    told = format_error(caught.value)
    assert told.index("ValueError") < told.index("RuntimeError: no number")
    assert __file__ in told
    assert "invalid literal" not in told
    assert SECRET not in format_error(ExceptionGroup("both", [ValueError(SECRET), KeyError(SECRET)]))


@get("/fails", sync_to_thread=False)
def fails() -> None:
    raise ValueError(SECRET)


@get("/breaks", sync_to_thread=False)
def breaks() -> Stream:
    async def lines() -> AsyncGenerator[bytes]:
        yield b"first"
        raise ValueError(SECRET)

    return Stream(lines())


@get("/fine", sync_to_thread=False)
def fine() -> bytes:
    return b"x" * 1_000_000


async def test_an_error_that_nobody_expected_is_logged_and_answered_without_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app: Any = build_app([fails, breaks, fine], service="test", settings=Settings(), lifespan=[], checks={})
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/fails")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert SECRET not in answer.text
        await client.get("/breaks")
        assert len((await client.get("/fine")).content) == 1_000_000
    said = capsys.readouterr().out
    assert SECRET not in said
    logged = [msgspec.json.decode(line) for line in said.splitlines() if '"error"' in line]
    assert [(line["event"], line["route"]) for line in logged] == [
        ("request failed", "/fails"),
        ("answer broken off", "/breaks"),
    ]
    assert all("ValueError" in line["exception"] for line in logged)

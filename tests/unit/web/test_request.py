from typing import Any

import msgspec
import pytest
from litestar import Litestar, post
from litestar.params import JSONBody

from memplane_core.web.problems import EXCEPTION_HANDLERS, Problem
from memplane_core.web.request import ServiceRequest

pytestmark = pytest.mark.anyio


class Body(msgspec.Struct):
    name: str


@post("/")
async def take(data: JSONBody[Body]) -> str:
    return data.name


async def test_a_client_that_goes_away_while_it_sends_is_no_error_of_ours() -> None:
    app = Litestar([take], request_class=ServiceRequest, exception_handlers={**EXCEPTION_HANDLERS})
    received: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"na', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return received.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "state": {},
    }
    await app(scope, receive, send)

    assert sent[0]["status"] == 400
    assert msgspec.json.decode(sent[1]["body"], type=Problem).code == "malformed_request"

"""What goes to the retrieval service and comes back from it."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.integration.gateway.conftest import Gateway, bearer_of

pytestmark = pytest.mark.anyio

MEMORY = "/v1/memories/01990000-0000-7000-8000-000000000001"


async def headers_of(gateway: Gateway) -> dict[str, str]:
    key = await gateway.make_key(await gateway.make_tenant())
    return {**bearer_of(key), "Content-Type": "application/json"}


class TestPassingOn:
    async def test_body_and_headers_arrive_byte_for_byte(self, door: Gateway) -> None:
        body = '{ "content" : "\\u00fcber 退款 🎉",\n "metadata": {"b": 1.10, "a": 1e2} }'.encode()
        door.retrieval.respond = door.answering(201, b'{"id": 1.50}', ETag='"3"', Location="/x")
        answer = await door.client.post(
            "/v1/memories",
            content=body,
            headers={**await headers_of(door), "Idempotency-Key": "order 1"},
        )
        [received] = door.retrieval.received
        assert (received.method, received.path, received.query) == ("POST", "/v1/memories", [])
        assert received.body == body
        assert received.headers["Idempotency-Key"] == "order 1"
        assert received.headers["Content-Type"] == "application/json"
        assert "X-API-Key" not in received.headers
        assert (answer.status_code, answer.content) == (201, b'{"id": 1.50}')
        assert (answer.headers["etag"], answer.headers["location"]) == ('"3"', "/x")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"

    async def test_the_callers_key_never_leaves_the_gateway(self, door: Gateway) -> None:
        headers = await headers_of(door)
        await door.client.get(MEMORY, headers=headers)
        [received] = door.retrieval.received
        assert headers["Authorization"].split()[1] not in str(dict(received.headers))

    async def test_a_list_request_arrives_with_its_filters_encoded(self, door: Gateway) -> None:
        door.retrieval.respond = door.answering(200, b"{}")
        query = {"user_id": "a&b=c/ü 退", "scene": "x", "sort": "-priority", "limit": "7", "cursor": "c+d"}
        assert (await door.client.get("/v1/memories", params=query, headers=await headers_of(door))).status_code == 200
        [received] = door.retrieval.received
        assert received.query == list(query.items())

    @pytest.mark.parametrize(
        "query", ["user=u1", "user_id=", "limit=0", "limit=1001", "user_id=a&user_id=b", "sort=content", "actor=a%00"]
    )
    async def test_a_wrong_list_parameter_is_refused_here(self, door: Gateway, query: str) -> None:
        answer = await door.client.get(f"/v1/memories?{query}", headers=await headers_of(door))
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == query.partition("=")[0]
        assert door.retrieval.received == []

    async def test_a_problem_comes_back_as_it_is(self, door: Gateway) -> None:
        problem = b'{"code":"precondition_failed","request_id":"abc"}'
        door.retrieval.respond = door.answering(412, problem, "application/problem+json")
        answer = await door.client.patch(
            MEMORY, json={"pinned": True}, headers={**await headers_of(door), "If-Match": '"2"'}
        )
        assert (answer.status_code, answer.content) == (412, problem)
        assert answer.headers["content-type"] == "application/problem+json"
        assert door.retrieval.received[0].headers["If-Match"] == '"2"'

    async def test_a_busy_service_passes_on_when_to_come_back(self, door: Gateway) -> None:
        respond = door.answering(503, b"{}", "application/problem+json", **{"Retry-After": "7"})
        door.retrieval.respond = respond
        answer = await door.client.post("/v1/memories/search", json={"query": "a"}, headers=await headers_of(door))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")

    async def test_a_large_batch_passes_both_ways(self, door: Gateway) -> None:
        memories = [{"content": f"{n} " + "x" * 32_000} for n in range(400)]
        echoed: list[int] = []

        async def echo(request: web.Request) -> web.Response:
            body = await request.read()
            echoed.append(len(body))
            return web.Response(body=body, content_type="application/json")

        door.retrieval.respond = echo
        answer = await door.client.post(
            "/v1/memories/batch", json={"memories": memories}, headers=await headers_of(door), timeout=30
        )
        assert answer.status_code == 200
        assert echoed == [len(answer.content)]
        assert echoed[0] > 12_000_000


class TestRefusedBefore:
    @pytest.mark.parametrize(
        ("path", "body", "pointer"),
        [
            ("/v1/memories", {}, "/content"),
            ("/v1/memories", {"content": ""}, "/content"),
            ("/v1/memories", {"content": "退" * 10_923}, "/content"),
            ("/v1/memories", {"content": "a", "importance": 1.5}, "/importance"),
            ("/v1/memories", {"content": "a", "importanse": 1}, "/importanse"),
            ("/v1/memories", {"content": "a", "scene": ["b", "c\0"]}, "/scene/1"),
            ("/v1/memories/batch", {"memories": []}, "/memories"),
            ("/v1/memories/batch", {"memories": [{"content": "a"}, {"content": 1}]}, "/memories/1/content"),
            ("/v1/memories/search", {"query": "a", "top_k": 0}, "/top_k"),
            ("/v1/memories/search", {"query": "a", "filters": {"user": "x"}}, "/filters/user"),
            ("/v1/memories/search", {"query": "a", "filters": {"user_id": "x\0"}}, "/filters/user_id"),
        ],
    )
    async def test_a_bad_body_is_refused_by_field(
        self, door: Gateway, path: str, body: dict[str, Any], pointer: str
    ) -> None:
        answer = await door.client.post(path, json=body, headers=await headers_of(door))
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == pointer
        assert door.retrieval.received == []

    async def test_not_a_number_is_no_importance(self, door: Gateway) -> None:
        body = b'{"content": "a", "importance": NaN}'
        answer = await door.client.post("/v1/memories", content=body, headers=await headers_of(door))
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/importance")

    async def test_a_body_above_the_limit_of_its_route_is_a_413(self, door: Gateway) -> None:
        headers = await headers_of(door)
        body = b'{"content": "a"' + b" " * (256 * 1024) + b"}"
        answer = await door.client.post("/v1/memories", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        door.retrieval.respond = door.answering(200, b"{}")
        batch = b'{"memories": [{"content": "a"}]' + b" " * (256 * 1024) + b"}"
        assert (await door.client.post("/v1/memories/batch", content=batch, headers=headers)).status_code == 200

    async def test_an_id_that_is_none_is_not_found(self, door: Gateway) -> None:
        answer = await door.client.get("/v1/memories/nonsense", headers=await headers_of(door))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert answer.headers["content-type"] == "application/problem+json"


class TestTrouble:
    async def test_a_service_that_is_away_is_a_503_and_found_again_when_it_is_back(self, gateway: Gateway) -> None:
        async with gateway.embedding.running(), gateway.running() as client:
            headers = await headers_of(gateway)
            for _ in range(7):  # more than opens the breaker
                answer = await client.post("/v1/memories", json={"content": "a"}, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert "nothing was changed" in answer.json()["detail"]
                assert int(answer.headers["retry-after"]) >= 1
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["parts"]["postgres"]) == (503, "ok")
            async with gateway.retrieval.running():
                gateway.retrieval.respond = gateway.answering(201, b"{}")
                status, deadline = 503, asyncio.get_running_loop().time() + 30
                while status == 503 and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(0.05)
                    status = (await client.post("/v1/memories", json={"content": "a"}, headers=headers)).status_code
                assert status == 201
                assert len(gateway.retrieval.received) == 1

    async def test_a_write_whose_connection_breaks_is_not_repeated(self, door: Gateway) -> None:
        door.retrieval.respond = door.breaking_off()
        for method, path, body in (
            ("POST", "/v1/memories", {"content": "a"}),
            ("PATCH", MEMORY, {"pinned": True}),
            ("DELETE", MEMORY, None),
        ):
            door.retrieval.received.clear()
            answer = await door.client.request(method, path, json=body, headers=await headers_of(door))
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert "Idempotency-Key" in answer.json()["detail"]
            assert len(door.retrieval.received) == 1, method

    async def test_a_write_with_a_key_of_its_own_is_repeated(self, door: Gateway) -> None:
        headers = {**await headers_of(door), "Idempotency-Key": "order 1"}
        for method, path, body in (
            ("POST", "/v1/memories", {"content": "a"}),
            ("POST", "/v1/memories/batch", {"memories": [{"content": "a"}]}),
            ("PATCH", MEMORY, {"pinned": True}),
            ("DELETE", MEMORY, None),
        ):
            door.retrieval.received.clear()
            door.retrieval.respond = door.breaking_off(times=1, then=door.answering(200, b"{}"))
            assert (await door.client.request(method, path, json=body, headers=headers)).status_code == 200
            assert [received.headers["Idempotency-Key"] for received in door.retrieval.received] == ["order 1"] * 2
        door.retrieval.respond = door.breaking_off()
        answer = await door.client.delete(MEMORY, headers=headers)
        assert (answer.status_code, "may have carried this out" in answer.json()["detail"]) == (503, True)

    async def test_a_read_whose_connection_breaks_is_repeated(self, door: Gateway) -> None:
        headers = await headers_of(door)
        for method, path, body in (
            ("GET", MEMORY, None),
            ("GET", "/v1/memories", None),
            ("POST", "/v1/memories/search", {"query": "a"}),
        ):
            door.retrieval.received.clear()
            door.retrieval.respond = door.breaking_off(times=2, then=door.answering(200, b"{}"))
            assert (await door.client.request(method, path, json=body, headers=headers)).status_code == 200
            assert len(door.retrieval.received) == 3

    async def test_an_answer_past_the_deadline_is_a_504(self, door: Gateway) -> None:
        async def sleepy(_: web.Request) -> web.Response:
            await asyncio.sleep(60)
            return web.Response()

        door.retrieval.respond = sleepy
        headers = await headers_of(door)
        async with door.another(request_timeout_s=1) as client:
            began = asyncio.get_running_loop().time()
            answer = await client.post("/v1/memories", json={"content": "a"}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (504, "upstream_timeout")
            assert asyncio.get_running_loop().time() - began < 30
        assert len(door.retrieval.received) == 1

    async def test_a_batch_that_waits_for_the_index_has_more_time(self, door: Gateway) -> None:
        async def slow(_: web.Request) -> web.Response:
            await asyncio.sleep(0.6)
            return web.Response(body=b"{}", content_type="application/json")

        door.retrieval.respond = slow
        headers = await headers_of(door)
        async with door.another(request_timeout_s=0.3) as client:
            body: dict[str, Any] = {"memories": [{"content": "a"}]}
            assert (await client.post("/v1/memories/batch", json=body, headers=headers)).status_code == 504
            body["wait"] = "index"
            assert (await client.post("/v1/memories/batch", json=body, headers=headers)).status_code == 200

    @pytest.mark.parametrize(
        ("status", "expected", "code"),
        [(500, 500, "internal_error"), (502, 500, "internal_error"), (401, 503, "unavailable")],
    )
    async def test_a_fault_between_services_is_not_shown_to_callers_as_theirs(
        self, door: Gateway, status: int, expected: int, code: str
    ) -> None:
        door.retrieval.respond = door.answering(status, b"<html>stack trace</html>", "text/html")
        answer = await door.client.get(MEMORY, headers=await headers_of(door))
        assert (answer.status_code, answer.json()["code"]) == (expected, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "stack trace" not in answer.text

"""What the gateway says without a key: documentation, version, health."""

import re
from collections.abc import AsyncGenerator

import httpx2
import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.testing.process import ServiceProcess

pytestmark = pytest.mark.anyio

PAGES = ("/docs", "/docs/problems")


@pytest.fixture
async def pages(gateway: Gateway) -> AsyncGenerator[httpx2.AsyncClient]:
    async with gateway.running(docs=True) as client:
        yield client


class TestPages:
    @pytest.mark.parametrize("path", PAGES)
    async def test_a_page_names_no_other_host_and_may_load_from_none(
        self, pages: httpx2.AsyncClient, path: str
    ) -> None:
        page = await pages.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert not re.search(r"(?:https?:)?//\w", page.text)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self';" in policy
        assert "<script>" not in page.text

    @pytest.mark.parametrize("path", PAGES)
    async def test_all_that_a_page_refers_to_is_there(self, pages: httpx2.AsyncClient, path: str) -> None:
        page = (await pages.get(path)).text
        referred = set(re.findall(r'(?:src|href|spec-url)="(/[^"#]*)"', page))
        assert referred
        for target in referred:
            answer = await pages.get(target)
            assert answer.status_code == 200, target
            assert answer.content

    async def test_the_document_is_served_and_the_door_leads_to_the_docs(self, pages: httpx2.AsyncClient) -> None:
        document = (await pages.get("/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        root = await pages.get("/")
        assert (root.status_code, root.headers["location"]) == (302, "/docs")

    async def test_errors_are_explained_where_problems_point(self, pages: httpx2.AsyncClient) -> None:
        problem = (await pages.get("/v1/whoami")).json()
        path, _, anchor = problem["type"].partition("#")
        assert f'id="{anchor}"' in (await pages.get(path)).text

    async def test_the_pages_can_be_switched_off(self, door: Gateway) -> None:
        for path in (*PAGES, "/openapi.json", "/"):
            assert (await door.client.get(path)).status_code == 404
        assert (await door.client.get("/v1/version")).status_code == 200


class TestSystem:
    async def test_version_and_health_need_no_key(self, door: Gateway) -> None:
        assert (await door.client.get("/v1/version")).json()["name"] == "memplane"
        assert (await door.client.get("/healthz")).json() == {"status": "ok", "parts": {}}
        ready = await door.client.get("/readyz")
        parts = dict.fromkeys(("postgres", "retrieval", "cache"), "ok")
        assert (ready.status_code, ready.json()["parts"]) == (200, parts)

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nope", 404),
            ("PUT", "/v1/memories", 405),
            ("GET", "/docs/assets/app.py", 404),
            ("GET", "//admin//v1/tenants/", 404),
        ],
    )
    async def test_every_error_is_a_problem_document(self, door: Gateway, method: str, path: str, status: int) -> None:
        answer = await door.client.request(method, f"http://gateway{path}")
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert answer.json()["request_id"] == answer.headers["x-request-id"]

    @pytest.mark.parametrize("method", ["OPTIONS", "DELETE"])
    async def test_the_methods_of_a_path_are_all_listed(self, door: Gateway, method: str) -> None:
        key = await door.make_key(await door.make_tenant())
        answer = await door.client.request(method, "/v1/policy", headers=bearer_of(key))
        assert answer.status_code == (204 if method == "OPTIONS" else 405)
        assert set(answer.headers["allow"].split(", ")) == {"GET", "PATCH", "OPTIONS"}


async def test_the_process_serves_all_of_it(door: Gateway) -> None:
    tenant = await door.make_tenant()
    key = await door.make_key(tenant)
    door.retrieval.respond = door.answering(201, b'{"ok":true}', ETag='"1"')
    with ServiceProcess("memplane_gateway", env=door.environment(), ready_path="/healthz") as process:
        async with door.talking_to(process.url) as client:
            answer = await client.post("/v1/memories", json={"content": "a"}, headers=bearer_of(key))
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (201, b'{"ok":true}', '"1"')
            assert (await client.get("/admin/v1/tenants", headers=ADMIN)).status_code == 200
            missing = await client.delete("/v1/memories/nonsense", headers=bearer_of(key))
            assert missing.headers["content-type"] == "application/problem+json"

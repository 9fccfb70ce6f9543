"""Whoever looks at the console, as a browser would: cookies, forms and their stamps."""

import re
from typing import Any
from uuid import uuid4

import httpx2
from tests.integration.gateway.conftest import ADMIN, Gateway

from memplane_core.contracts.admin import KeyCreated, TenantView

STAMP = re.compile(r'name="stamp" value="([0-9a-f]{64})"')


class Browser:
    """What a browser does with forms and cookies."""

    def __init__(self, client: httpx2.AsyncClient, source: str) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}
        self.headers = {"X-Forwarded-For": source}
        self.set_cookies: list[str] = []
        self.stamp = ""

    async def get(self, path: str) -> httpx2.Response:
        return await self._ask("GET", path)

    async def post(self, path: str, *, stamp: str | None = None, **fields: str) -> httpx2.Response:
        given = {"stamp": self.stamp if stamp is None else stamp, "once": uuid4().hex, **fields}
        return await self._ask("POST", path, data=given)

    async def sign_in(self, key: str) -> httpx2.Response:
        await self.get("/console/sign-in")
        return await self.post("/console/sign-in", key=key)

    async def _ask(self, method: str, path: str, data: dict[str, str] | None = None) -> httpx2.Response:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {**self.headers, **({"Cookie": cookies} if cookies else {})}
        answer = await self.client.request(method, path, data=data, headers=headers)
        self.set_cookies = answer.headers.get_list("set-cookie")
        for cookie in self.set_cookies:
            name, _, value = cookie.split(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        if found := STAMP.search(answer.text):
            self.stamp = found[1]
        return answer


def browser(site: Gateway) -> Browser:
    number = uuid4().int
    return Browser(site.client, f"10.{number % 250}.{number // 250 % 250}.{number // 62_500 % 250}")


async def made(site: Gateway) -> tuple[TenantView, KeyCreated]:
    tenant = await site.make_tenant()
    return tenant, await site.make_key(tenant)


async def limits_of(site: Gateway, tenant: TenantView) -> dict[str, Any]:
    answer = await site.client.get(f"/admin/v1/tenants/{tenant.id}/limits", headers=ADMIN)
    return {name: value for name, value in answer.json()["limits"].items() if value is not None}

"""The admin routes, as the command line and the first start use them."""

from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

import httpx2
import msgspec

from memplane_core.contracts.admin import KeyCreate, KeyCreated, KeyPage, KeyView, TenantCreate, TenantPage, TenantView
from memplane_core.contracts.erasures import ErasureView
from memplane_core.contracts.job_runs import GenerationList, GenerationView, JobPage, JobStart, JobView
from memplane_core.domain.tenancy import Scope

Answer = TypeVar("Answer")

_PAGE = 200


class ApiError(Exception):
    """The platform refused, or cannot be reached; says why and what to do.

    Attributes:
        status: HTTP status of the refusal, 0 where there was no answer.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """JSON over HTTP with a bearer key. Use as an async context manager.

    Args:
        url: Of the gateway.
        key: Goes into `Authorization`.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout_s, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, answer: type[Answer], *, query: dict[str, str] | None = None) -> Answer:
        """GET. Raises ApiError."""
        return msgspec.json.decode(await self._send("GET", path, query=query), type=answer)

    async def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """POST. Raises ApiError."""
        return msgspec.json.decode(await self._send("POST", path, body=body), type=answer)

    async def delete(self, path: str) -> None:
        """DELETE. Raises ApiError."""
        await self._send("DELETE", path)

    async def _send(
        self, method: str, path: str, *, body: msgspec.Struct | None = None, query: dict[str, str] | None = None
    ) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = await self._client.request(method, path, content=content, headers=headers, params=query)
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ApiError(
                f"no answer from {self.url} ({reason}): start it with `memplane up`, or name another with --url"
            ) from error
        if response.status_code >= 400:
            raise ApiError(problem_of(response), status=response.status_code)
        return response.content


class AdminApi(Api):
    """Tenants, their keys, jobs and generations. Every method raises ApiError."""

    async def create_tenant(self, name: str) -> TenantView:
        """Make a tenant."""
        return await self.post("/admin/v1/tenants", TenantCreate(name=name), TenantView)

    async def tenants(self) -> list[TenantView]:
        """All tenants in the order they were made."""
        found: list[TenantView] = []
        cursor: str | None = None
        while True:
            page = await self.get("/admin/v1/tenants", TenantPage, query=_page(cursor))
            found += page.results
            if not (cursor := page.next_cursor):
                return found

    async def find_tenant(self, name_or_id: str) -> TenantView:
        """The tenant of this name or id."""
        for tenant in await self.tenants():
            if name_or_id in (tenant.name, str(tenant.id)):
                return tenant
        raise ApiError(f"there is no tenant {name_or_id!r}: see `memplane tenants list`", status=404)

    async def delete_tenant(self, tenant: UUID, *, name: str) -> ErasureView:
        """Delete a tenant of this name for good."""
        answer = await self._send("DELETE", f"/admin/v1/tenants/{tenant}", query={"name": name})
        return msgspec.json.decode(answer, type=ErasureView)

    async def create_key(self, tenant: UUID, *, name: str, scopes: list[Scope]) -> KeyCreated:
        """Make a key; its secret is in the answer and nowhere else."""
        return await self.post(f"/admin/v1/tenants/{tenant}/keys", KeyCreate(name=name, scopes=scopes), KeyCreated)

    async def keys(self, tenant: UUID) -> list[KeyView]:
        """A tenant's keys."""
        found: list[KeyView] = []
        cursor: str | None = None
        while True:
            page = await self.get(f"/admin/v1/tenants/{tenant}/keys", KeyPage, query=_page(cursor))
            found += page.results
            if not (cursor := page.next_cursor):
                return found

    async def revoke_key(self, tenant: UUID, key_id: str) -> None:
        """Make a key invalid for good."""
        await self.delete(f"/admin/v1/tenants/{tenant}/keys/{key_id}")

    async def start_job(self, tenant: UUID, start: JobStart) -> JobView:
        """Have something done for a tenant in the background."""
        return await self.post(f"/admin/v1/tenants/{tenant}/jobs", start, JobView)

    async def job(self, tenant: UUID, job_id: UUID) -> JobView:
        """A run as it is now."""
        return await self.get(f"/admin/v1/tenants/{tenant}/jobs/{job_id}", JobView)

    async def jobs(self, tenant: UUID, *, kind: str | None = None, limit: int) -> list[JobView]:
        """A tenant's latest runs, the newest first."""
        query = {"limit": str(limit), **({} if kind is None else {"kind": kind})}
        return (await self.get(f"/admin/v1/tenants/{tenant}/jobs", JobPage, query=query)).results

    async def cancel_job(self, tenant: UUID, job_id: UUID) -> JobView:
        """Have a run end before its next batch."""
        answer = await self._send("POST", f"/admin/v1/tenants/{tenant}/jobs/{job_id}/cancel")
        return msgspec.json.decode(answer, type=JobView)

    async def generations(self, tenant: UUID) -> list[GenerationView]:
        """A tenant's collections, the oldest first."""
        return (await self.get(f"/admin/v1/tenants/{tenant}/generations", GenerationList)).results


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""


def _page(cursor: str | None) -> dict[str, str]:
    return {"limit": str(_PAGE), **({"cursor": cursor} if cursor else {})}


def problem_of(response: httpx2.Response) -> str:
    """What a refusal says, in one line for people."""
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    said = problem.detail or problem.title or response.text[:200]
    hint = ": check the key (--admin-key, MEMPLANE_ADMIN_KEY or --home)" if response.status_code == 401 else ""
    return f"{response.status_code}: {said}{hint}"

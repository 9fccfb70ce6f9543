"""Requests whose body comes slowly, by a key that is revoked meanwhile."""

from collections.abc import AsyncIterator

import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/v1/memories", "/v1/keys"])
async def test_a_body_that_was_begun_before_it_changes_nothing_when_it_has_come_whole(
    door: Gateway, database: Database, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who sends a body slowly could write long after, by a key that was good when the first byte came."""
    monkeypatch.setattr("memplane_gateway.auth._AGAIN_S", 0)
    door.retrieval.respond = door.answering(201, b"{}")
    tenant = await door.make_tenant()
    key = await door.make_key(tenant)
    body = {"/v1/memories": b'{"content": "late"}', "/v1/keys": b'{"name": "late", "scopes": ["memories:read"]}'}

    async def slowly(*, revoked: bool) -> AsyncIterator[bytes]:
        yield body[path][:5]
        if revoked:
            assert (
                await door.client.delete(f"/admin/v1/tenants/{tenant.id}/keys/{key.id}", headers=ADMIN)
            ).status_code == 204
        yield body[path][5:]

    headers = {**bearer_of(key), "Content-Type": "application/json"}
    for revoked, status in ((False, 201), (True, 401)):
        answer = await door.client.post(path, content=slowly(revoked=revoked), headers=headers)
        assert answer.status_code == status, answer.text
    assert answer.json()["code"] == "unauthorized"
    assert len(door.retrieval.received) == (path == "/v1/memories")
    async with database.tenant(TenantId(tenant.id)) as connection:
        assert await connection.fetchval("SELECT count(*) FROM api_key") == 1 + (path == "/v1/keys")

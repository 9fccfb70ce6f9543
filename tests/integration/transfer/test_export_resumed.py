"""The command line's export goes on where the connection broke, and what it writes is one whole export."""

import asyncio
import hashlib
from io import BytesIO

import httpx2
import pytest
from tests.integration.transfer.conftest import Door, Exported, export, fill
from tests.integration.transfer.lines import counts, send

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_standalone.admin import ApiError
from memplane_standalone.backup_transfer import Transfer

pytestmark = pytest.mark.anyio


async def test_a_gateway_that_is_killed_in_the_middle_leaves_no_gap_and_nothing_twice(
    client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door, database: Database, tenant: TenantId
) -> None:
    ids = await fill(client, 1200, metadata={"filler": "x" * 500})
    async with database.tenant(tenant) as connection:
        await connection.execute(
            """
            INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
            SELECT $1, $2, n, 'updated', 'k', 'r', '{}' FROM generate_series(2, 900) AS n
            """,
            tenant,
            ids[300],
        )
        await connection.execute("UPDATE memory SET version = 900 WHERE tenant_id = $1 AND id = $2", tenant, ids[300])
    killed: list[int] = []

    def kill(memories: int) -> None:
        if memories >= 250 and not killed:
            killed.append(memories)
            door.gateway.kill()
            door.gateway.start()

    out = BytesIO()
    key = client.headers["Authorization"].removeprefix("Bearer ")
    trailer = await Transfer(door.gateway.url, key).export(out, query={}, progress=kill)
    whole = await export(client)
    found = Exported(out.getvalue())
    assert killed
    assert found.records == whole.records
    assert found.trailer == trailer
    assert trailer.records_sha256 == whole.trailer.records_sha256
    assert trailer.sha256 == hashlib.sha256(b"".join(found.raw[:-1])).hexdigest()
    assert counts(await send(other, found.body))["created"] == 1200


async def test_a_connection_that_breaks_behind_the_header_loses_no_policy(client: httpx2.AsyncClient) -> None:
    await fill(client, 2)
    whole = await export(client)
    answers = [whole.raw[0], whole.body]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(whole.body)}\r\n\r\n".encode() + answers.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        out = BytesIO()
        await Transfer(f"http://127.0.0.1:{port}", "key").export(out, query={}, progress=lambda _: None)
    assert (out.getvalue(), answers) == (whole.body, [])


async def test_a_refusal_is_told_and_not_tried_again(door: Door, tenant: TenantId) -> None:
    async with await door.client(tenant, scopes=["memories:read"]) as reader:
        key = reader.headers["Authorization"].removeprefix("Bearer ")
    with pytest.raises(ApiError, match="403"):
        await Transfer(door.gateway.url, key).export(BytesIO(), query={}, progress=lambda _: None)

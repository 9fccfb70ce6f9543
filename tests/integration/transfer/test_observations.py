"""What sessions hold, out and in: never missed, never twice, and never back once it is a memory."""

from typing import Any

import httpx2
import pytest
import uuid_utils.compat
from tests.integration.transfer.conftest import Door, as_line, export, fill
from tests.integration.transfer.lines import counts, header, memory, send, whole

pytestmark = pytest.mark.anyio

SESSION = {"session_id": "s", "user_id": "ana"}


async def observe(client: httpx2.AsyncClient, *texts: str, **session: str) -> list[str]:
    body = {**SESSION, **session, "observations": [{"content": text} for text in texts]}
    answer = await client.post("/v1/observations/batch", json=body)
    assert answer.status_code == 200, answer.text
    return [taken["id"] for taken in answer.json()["results"]]


async def held(client: httpx2.AsyncClient) -> list[str]:
    answer = await client.get("/v1/observations", params=SESSION)
    return [its["id"] for its in answer.json()["results"]]


def observation(**fields: Any) -> dict[str, Any]:
    at = "2026-05-08T13:56:00.123456Z"
    given: dict[str, Any] = {
        "kind": "observation", "id": str(uuid_utils.compat.uuid7()), "content": "seen", "actor": None, "scene": [],
        "source": None, "memory_type": "experience", "agent_id": None, "importance": 0.5, "metadata": {},
        "occurred_at": at, "occurred_given": False, "observed_at": at, "strengthened": 0, "unscored": False,
    }  # fmt: skip
    return given | SESSION | fields


async def test_order_survives_the_way_and_pages_of_them_are_not_missed(
    client: httpx2.AsyncClient, other: httpx2.AsyncClient
) -> None:
    ids = await observe(client, *(f"thing {n}" for n in range(5)))
    for n in range(51):
        await observe(client, *(f"more {n} {k}" for k in range(5)), session_id=f"s{n}")
    await fill(client, 3)
    before = await export(client)
    assert len(before.observations) == before.trailer.observations == 260
    assert counts(await send(other, before.body)) == {"created": 3, "history": 3, "observations": 260}
    assert await held(other) == ids
    assert (await export(other)).records == before.records
    # And go on: the oldest leaves first.
    await observe(other, "one more")
    assert await held(other) == [*ids[1:], (await held(other))[-1]]
    assert (await other.get(f"/v1/memories/{ids[0]}")).json()["content"] == "thing 0"


async def test_what_became_a_memory_while_it_was_exported_is_a_memory_alone(
    client: httpx2.AsyncClient, other: httpx2.AsyncClient
) -> None:
    await observe(client, "seen", "heard")
    first = await export(client)
    assert (await client.post("/v1/sessions/end", json=SESSION)).status_code == 200
    second = await export(client)
    opening, seen = first.raw[:2], [raw for raw in first.raw if b'"observation"' in raw[:40]]
    file = whole([*opening, *seen, *second.records])
    assert counts(await send(other, file)) == {"created": 2, "history": 2, "observations": 2}
    assert await held(other) == []
    assert (await export(other)).records == second.records
    # An older file does not make them observations again, here or there.
    for target in (client, other):
        assert counts(await send(target, first.body)) == {"observations_unchanged": 2}
        assert await held(target) == []
    foreseen = await send(other, first.body, dry_run=True)
    assert counts(foreseen) == {"observations_unchanged": 2}


async def test_a_quota_that_all_fits_into_takes_what_became_memories_between_two_files_or_in_one(
    client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
) -> None:
    await observe(client, "seen", "heard")
    first = await export(client)
    assert (await client.post("/v1/sessions/end", json=SESSION)).status_code == 200
    await observe(client, "felt")
    second = await export(client)
    tenant = (await other.get("/v1/whoami")).json()["tenant_id"]
    async with door.admin as admin:
        await admin.patch(f"/admin/v1/tenants/{tenant}/limits", json={"stored_memories": 3})
        assert counts(await send(other, first.body)) == {"observations": 2}
        assert counts(await send(other, second.body)) == {"created": 2, "history": 2, "observations": 1}
        usage = (await other.get("/v1/usage")).json()
        assert (usage["stored_memories"]["used"], usage["held_observations"]) == (3, 1)
        # What is one as well as the other in a single file is no more than the one.
        assert (await other.delete(f"/v1/observations/{second.observations[0].id}")).status_code == 204
        for memory_id in second.ids:
            assert (await other.delete(f"/v1/memories/{memory_id}")).status_code == 204
        opening, seen = first.raw[:2], [raw for raw in first.raw if b'"observation"' in raw[:40]]
        file = whole([*opening, *seen, *second.records])
        await admin.patch(f"/admin/v1/tenants/{tenant}/limits", json={"stored_memories": 2})
        refused = await send(other, file)
        assert (refused.status_code, refused.json()["quota"]) == (403, "stored_memories")
        assert await held(other) == []
        await admin.patch(f"/admin/v1/tenants/{tenant}/limits", json={"stored_memories": 3})
        assert counts(await send(other, file)) == {"created": 2, "history": 2, "observations": 3}
    assert (await other.get("/v1/usage")).json()["stored_memories"]["left"] == 0


async def test_a_persons_part_has_what_their_sessions_hold_and_a_resumed_one_does_not_give_it_again(
    client: httpx2.AsyncClient,
) -> None:
    [mine] = await observe(client, "seen")
    await observe(client, "of another", user_id="bob")
    [memory_id] = await fill(client, 1, user_id="ana")
    part = await export(client, user_id="ana")
    assert [str(line.id) for line in part.observations] == [mine]
    assert (part.trailer.observations, part.ids) == (1, [memory_id])
    rest = await export(client, after=str(memory_id))
    assert (rest.observations, rest.ids) == ([], [])


@pytest.mark.parametrize(
    ("lines", "pointer"),
    [
        ([memory(), observation()], "/lines/3/kind"),
        ([observation(id="01990000-0000-7000-8000-000000000001")] * 2, "/lines/3/id"),
        ([observation(id="01990000-0000-4000-8000-000000000001")], "/lines/2/id"),
        ([observation(metadata={"derived_from": "x"})], "/lines/2/metadata/derived_from"),
        ([observation(session_id=None)], "/lines/2/session_id"),
        ([observation(content="x" * 32_768 + "\u00e9")], "/lines/2/content"),
        ([observation(observed_at="2026-05-08T13:56:00")], "/lines/2/observed_at"),
        ([observation(observed_at="1969-12-31T23:59:59Z")], "/lines/2/observed_at"),
        ([observation(), observation(session_id="t"), observation()], "/lines/4/observed_at"),
        ([observation(observed_at="9999-12-31T23:59:59.999999Z")], "/lines/2/observed_at"),
    ],
)
async def test_a_line_that_no_export_has_is_told_by_its_place(
    other: httpx2.AsyncClient, lines: list[dict[str, Any]], pointer: str
) -> None:
    answer = await send(other, whole([header(), *map(as_line, lines)]))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


async def test_a_trailer_that_counts_them_wrong_is_told(other: httpx2.AsyncClient) -> None:
    body = whole([header(), as_line(observation())]).replace(b'"observations": 1', b'"observations": 0')
    answer = await send(other, body)
    assert (answer.status_code, counts(answer)) == (422, {"observations": 1})


async def test_no_session_is_given_more_than_can_be_taken_out_of_it_at_once(other: httpx2.AsyncClient) -> None:
    lines = [as_line(observation(observed_at=f"2026-05-08T13:56:00.{n:06}Z")) for n in range(1_001)]
    assert counts(await send(other, whole([header(), *lines[:1_000]]))) == {"observations": 1_000}
    refused = await send(other, whole([header(), *lines]))
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/lines/1002/session_id")
    assert len((await other.get("/v1/observations", params={**SESSION, "limit": "1000"})).json()["results"]) == 1_000
    await observe(other, "one more")
    assert len(await held(other)) == 5
    memories = (await other.get("/v1/memories", params={"limit": "1000"})).json()
    assert len(memories["results"]) == 996

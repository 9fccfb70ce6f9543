"""What an erasure of a person reaches in Postgres. Every function deletes a batch, and can be called again."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.erasures import Subject
from memplane_core.storage.jobs import ERASE, ERASE_TENANT
from memplane_core.storage.removals import remove_memories
from memplane_core.storage.session import Connection

CITES: Final = "derived_from"
"""The key of metadata that names the memories which one was made from: an id, or a list of ids."""

_OF_SUBJECT: Final = "($2::text IS NULL OR user_id = $2) AND ($3::text IS NULL OR agent_id = $3)"

STORES: Final[Mapping[str, str]] = {
    "memory": "memories",
    "memory_usage": "usage",
    "memory_scene": "scenes",
    "memory_words": "words",
    "chunk": "chunks",
    "history": "history",
    "outbox": "outbox",
    "merge_plan": "merge_plans",
}
"""Tables with rows of memories, and what receipts call them. A test holds them against the schema."""

_SWEPT: Final = frozenset(("merge_plan",))
"""Those whose rows do not go with the memory: `sweep_traces` deletes and counts them."""

SUBJECTS: Final[Mapping[str, str]] = {"observation": "observations", "reflection": "reflections"}
"""Tables that keep something by the name of a user or an agent and not by memory, likewise."""


class Erased(msgspec.Struct, frozen=True):
    """A batch that is gone.

    Attributes:
        seen: How many memories it had.
        counts: Rows, by what receipts call them.
        unsettled: The index was, or may just have been, told of one of them by a call that may take effect yet.
    """

    seen: int = 0
    counts: dict[str, int] = {}
    unsettled: bool = False


async def erase_memories(
    tenant: TenantId, connection: Connection, erasure_id: UUID, *, who: Subject, limit: int
) -> Erased:
    """Delete the next memories of `who`, whatever their state, with all that hangs on them, and tell the index."""
    rows = await connection.fetch(
        f"SELECT id FROM memory WHERE tenant_id = $1 AND {_OF_SUBJECT} ORDER BY id LIMIT $4 FOR UPDATE",
        tenant,
        who.user_id,
        who.agent_id,
        limit,
    )
    return await _erase(tenant, connection, erasure_id, [row["id"] for row in rows])


async def erase_citing(tenant: TenantId, connection: Connection, erasure_id: UUID, *, limit: int) -> Erased:
    """Delete memories, whoever's they are, whose metadata says that they were made from one that was erased.

    What cites those in turn is found by the next call.
    """
    rows = await connection.fetch(
        f"""
        WITH named AS MATERIALIZED (
            SELECT m.id, replace(source.id #>> '{{}}', '-', '') AS source FROM memory m
            CROSS JOIN LATERAL jsonb_path_query(m.metadata, 'lax $.{CITES}[*]') AS source(id)
            WHERE m.tenant_id = $1 AND m.metadata ? '{CITES}'
        ), cites AS MATERIALIZED (
            SELECT id, CASE WHEN source ~ '^[0-9A-Fa-f]{{32}}$' THEN source::uuid END AS source FROM named
        )
        SELECT id FROM memory WHERE tenant_id = $1 AND id IN (
            SELECT c.id FROM cites c
            JOIN erased_memory e ON e.tenant_id = $1 AND e.erasure_id = $2 AND e.memory_id = c.source)
        ORDER BY id LIMIT $3 FOR UPDATE
        """,
        tenant,
        erasure_id,
        limit,
    )
    erased = await _erase(tenant, connection, erasure_id, [row["id"] for row in rows])
    return msgspec.structs.replace(erased, counts=erased.counts | {"citing": erased.seen}) if erased.seen else erased


async def _erase(tenant: TenantId, connection: Connection, erasure_id: UUID, ids: Sequence[UUID]) -> Erased:
    if not ids:
        return Erased()
    counted = ", ".join(
        f"(SELECT count(*) FROM {table} WHERE tenant_id = $1"
        f" AND {'id' if table == 'memory' else 'memory_id'} = ANY($2)) AS {name}"
        for table, name in STORES.items()
        if table not in _SWEPT
    )
    row = await connection.fetchrow(
        f"""
        SELECT {counted}, EXISTS (
            SELECT FROM outbox o WHERE o.tenant_id = $1 AND o.memory_id = ANY($2::uuid[])
              AND o.done_at IS NULL AND o.failed_at IS NULL AND (o.attempts > 0 OR drain.held)) AS unsettled
        FROM (SELECT EXISTS (
            SELECT FROM lease WHERE tenant_id = $1 AND name = 'drain' AND expires_at > clock_timestamp()) AS held
        ) drain
        """,
        tenant,
        ids,
    )
    assert row is not None
    await connection.execute(
        "INSERT INTO erased_memory (tenant_id, erasure_id, memory_id) SELECT $1, $2, unnest($3::uuid[])"
        " ON CONFLICT DO NOTHING",
        tenant,
        erasure_id,
        ids,
    )
    await remove_memories(tenant, connection, ids)
    counts = {name: row[name] for table, name in STORES.items() if table not in _SWEPT and row[name]}
    return Erased(len(ids), counts, row["unsettled"])


async def sweep_traces(tenant: TenantId, connection: Connection, erasure_id: UUID) -> dict[str, int]:
    """Delete what still is there of memories that are gone: plans to merge them, and what came in between.

    Removals that the outbox has to tell the index stay until it has told them; they know no more than ids.
    """
    found: dict[str, int] = {}
    for table, name in STORES.items():
        if table == "memory":
            continue
        spared = "AND op = 'upsert'" if table == "outbox" else ""
        gone = await connection.fetchval(
            f"""
            WITH gone AS (
                DELETE FROM {table} USING erased_memory e
                WHERE {table}.tenant_id = $1 AND e.tenant_id = $1 AND e.erasure_id = $2
                  AND {table}.memory_id = e.memory_id {spared}
                RETURNING 1
            ) SELECT count(*) FROM gone
            """,
            tenant,
            erasure_id,
        )
        if gone:
            found[name] = gone
    return found


async def blank_history(tenant: TenantId, connection: Connection, *, who: Subject) -> int:
    """Take old values out of the histories of memories that have become somebody else's, from when they were theirs.

    That something was changed, when, and by which key is left.

    Returns:
        How many entries were blanked.
    """
    before = """
        coalesce((SELECT o.changes -> '{0}' FROM history o
            WHERE o.tenant_id = $1 AND o.memory_id = h.memory_id AND o.version >= h.version AND o.changes ? '{0}'
            ORDER BY o.version LIMIT 1), to_jsonb(m.{0}))
    """
    blanked = await connection.fetchval(
        f"""
        WITH moved AS MATERIALIZED (
            SELECT DISTINCT memory_id FROM history
            WHERE tenant_id = $1 AND changes ?| '{{user_id,agent_id}}'::text[]
              AND (changes ->> 'user_id' = $2 OR changes ->> 'agent_id' = $3)
        ), theirs AS MATERIALIZED (
            SELECT h.memory_id, h.version FROM moved
            JOIN history h ON h.tenant_id = $1 AND h.memory_id = moved.memory_id
            JOIN memory m ON m.tenant_id = $1 AND m.id = h.memory_id
            WHERE h.changes <> '{{}}'
              AND ($2::text IS NULL OR {before.format("user_id")} = to_jsonb($2::text))
              AND ($3::text IS NULL OR {before.format("agent_id")} = to_jsonb($3::text))
        ), blanked AS (
            UPDATE history h SET changes = '{{}}' FROM theirs t
            WHERE h.tenant_id = $1 AND h.memory_id = t.memory_id AND h.version = t.version
            RETURNING 1
        ) SELECT count(*) FROM blanked
        """,
        tenant,
        who.user_id,
        who.agent_id,
    )
    return int(blanked)


async def forget_repeats(
    tenant: TenantId, connection: Connection, erasure_id: UUID, *, also: Collection[str] = ()
) -> int:
    """Delete what is kept for repeats of requests that named memories that are gone, in whatever they came to.

    Args:
        tenant: Whose requests.
        connection: A transaction of the tenant.
        erasure_id: Knows the memories.
        also: Ids of other things that the subject has named: what asked for them goes too.

    Returns:
        How many.
    """
    return int(
        await connection.fetchval(
            """
            WITH named AS (
                SELECT i.key, value #>> '{}' AS id FROM idempotency i
                CROSS JOIN LATERAL jsonb_path_query(i.outcome, 'lax $.** ? (@.type() == "string")') AS value
                WHERE i.tenant_id = $1
                UNION ALL
                SELECT key, substring(route FROM '[0-9A-Fa-f-]{36}') FROM idempotency WHERE tenant_id = $1
            ), about AS (
                SELECT n.key FROM named n
                JOIN erased_memory e ON e.tenant_id = $1 AND e.erasure_id = $2 AND e.memory_id::text = lower(n.id)
                UNION
                SELECT key FROM named WHERE id = ANY($3::text[])
            ), gone AS (
                DELETE FROM idempotency i USING about WHERE i.tenant_id = $1 AND i.key = about.key RETURNING 1
            ) SELECT count(*) FROM gone
            """,
            tenant,
            erasure_id,
            list(also),
        )
    )


class Revoked(msgspec.Struct, frozen=True):
    """Keys that were bound to a subject.

    Attributes:
        ids: Public ids.
        late: One of them was good a moment ago: a gateway may not know yet that it is revoked.
    """

    ids: list[str]
    late: bool


async def revoke_keys(
    tenant: TenantId, connection: Connection, *, who: Subject, subject: str, trusted_s: float
) -> Revoked:
    """Revoke the keys that are bound to `who`, and let them name it no more.

    Args:
        tenant: Whose keys.
        connection: A transaction of the tenant.
        who: Is being erased.
        subject: Its HMAC, which they are bound to from now on.
        trusted_s: For so long a gateway may trust a key that is revoked.
    """
    bound = [
        f"bind_{name} = {parameter}"
        for name, parameter, value in (("user_id", "$2", who.user_id), ("agent_id", "$3", who.agent_id))
        if value is not None
    ]
    rows = await connection.fetch(
        f"""
        UPDATE api_key SET revoked_at = coalesce(revoked_at, clock_timestamp()), name = 'erased',
            bind_user_id = CASE WHEN bind_user_id = $2 THEN $4 ELSE bind_user_id END,
            bind_agent_id = CASE WHEN bind_agent_id = $3 THEN $4 ELSE bind_agent_id END
        WHERE tenant_id = $1 AND {" AND ".join(bound)}
        RETURNING id, revoked_at > clock_timestamp() - make_interval(secs => $5)
            AND coalesce(expires_at > clock_timestamp(), true) AS late
        """,
        tenant,
        who.user_id,
        who.agent_id,
        f"erased {subject}",
        trusted_s,
    )
    return Revoked([row["id"] for row in rows], any(row["late"] for row in rows))


async def observed_of(tenant: TenantId, connection: Connection, *, who: Subject) -> list[str]:
    """Ids of what sessions of `who` have observed and still hold."""
    rows = await connection.fetch(
        f"SELECT id::text AS id FROM observation WHERE tenant_id = $1 AND {_OF_SUBJECT}",
        tenant,
        who.user_id,
        who.agent_id,
    )
    return [row["id"] for row in rows]


async def forget_subject(tenant: TenantId, connection: Connection, *, who: Subject) -> dict[str, int]:
    """Delete what else is kept by the names of users and agents; returns how many rows, as receipts call them."""
    gone: dict[str, int] = {}
    for table, name in SUBJECTS.items():
        gone[name] = await connection.fetchval(
            f"""
            WITH gone AS (DELETE FROM {table} WHERE tenant_id = $1 AND {_OF_SUBJECT} RETURNING 1)
            SELECT count(*) FROM gone
            """,
            tenant,
            who.user_id,
            who.agent_id,
        )
    return gone


class JobTraces(msgspec.Struct, frozen=True):
    """What became of runs that name a subject.

    Attributes:
        deleted: Ids of those that had ended.
        living: Those that have not; they were asked to end.
    """

    deleted: list[str]
    living: int


async def forget_jobs(tenant: TenantId, connection: Connection, erasure_id: UUID, *, who: Subject) -> JobTraces:
    """Delete the runs of jobs that name `who`, or a memory that is gone, in whatever they keep.

    A run that has merely come to such a memory goes on: it soon stands at another, and forgets that when it ends.
    """
    rows = await connection.fetch(
        "SELECT id, state, to_jsonb(j) AS kept, to_jsonb(j) - CASE WHEN state IN ('queued', 'running')"
        " THEN 'checkpoint' ELSE '' END AS lasting FROM job j WHERE tenant_id = $1 AND kind <> ALL($2::text[])",
        tenant,
        [ERASE, ERASE_TENANT],
    )
    ids = {row["memory_id"] for row in await _mentioned(tenant, connection, erasure_id, rows)}
    naming = [row for row in rows if _names(row["kept"], who) or not ids.isdisjoint(_texts(row["lasting"]))]
    ended = [row["id"] for row in naming if row["state"] not in ("queued", "running")]
    living = [row["id"] for row in naming if row["state"] in ("queued", "running")]
    await connection.execute("DELETE FROM job WHERE tenant_id = $1 AND id = ANY($2::uuid[])", tenant, ended)
    await connection.execute(
        "UPDATE job SET cancel_asked = true, not_before = clock_timestamp() WHERE tenant_id = $1"
        " AND id = ANY($2::uuid[]) AND state IN ('queued', 'running')",
        tenant,
        living,
    )
    return JobTraces([str(job_id) for job_id in ended], len(living))


async def _mentioned(
    tenant: TenantId, connection: Connection, erasure_id: UUID, rows: Sequence[Mapping[str, Any]] | Sequence[Any]
) -> Sequence[Any]:
    """Which of the texts in these rows are ids of erased memories."""
    texts = {text for row in rows for text in _texts(row["lasting"]) if len(text) == 36}
    return await connection.fetch(
        "SELECT memory_id::text AS memory_id FROM erased_memory"
        " WHERE tenant_id = $1 AND erasure_id = $2 AND memory_id::text = ANY($3::text[])",
        tenant,
        erasure_id,
        list(texts),
    )


def _names(value: object, who: Subject) -> bool:
    """Whether something that a run keeps names all of `who`, wherever it says `user_id` or `agent_id`."""
    wanted = {"user_id": who.user_id, "agent_id": who.agent_id}
    return all(given is None or given in _under(value, name) for name, given in wanted.items())


def _under(value: object, name: str) -> Collection[str]:
    """All texts below keys of that name."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, below in cast("dict[str, object]", value).items():
            found |= set(_texts(below)) if key == name else set(_under(below, name))
    elif isinstance(value, list):
        for below in cast("list[object]", value):
            found |= set(_under(below, name))
    return found


def _texts(value: object) -> Collection[str]:
    """All texts in a JSON value, those of keys too."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        mapping = cast("dict[str, object]", value)
        return {text for key, below in mapping.items() for text in (key, *_texts(below))}
    if isinstance(value, list):
        return {text for below in cast("list[object]", value) for text in _texts(below)}
    return ()

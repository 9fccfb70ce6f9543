"""Pages of all that a tenant has: what sessions hold, memories in every state, and their histories.

Each page is a short transaction.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from memplane_core.contracts.export import ExportPlace, HistoryLine, MemoryLine, ObservationLine
from memplane_core.domain.filters import Filter, matches
from memplane_core.domain.merge_ledger import Ledger
from memplane_core.domain.observations import as_memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.filter_sql import conditions, fetch_matching, needs_usage
from memplane_core.storage.observations import observations_after
from memplane_core.storage.session import Connection, Row

_OBSERVATIONS: Final = 100
_MEMORIES: Final = 200
_HISTORY: Final = 500
_BYTES: Final = 1_000_000
"""Of texts in one page, and of JSON as Postgres keeps it, compressed: the one that goes beyond is the last."""

_FIRST: Final = UUID(int=0)
"""Before every id."""

_COLUMNS: Final = """
    m.id, m.external_id, m.content, m.actor, m.scene, m.source, m.memory_type, m.user_id, m.agent_id, m.session_id,
    m.importance, u.priority, m.pinned, m.metadata, m.occurred_at, m.occurred_given,
    m.dedup_key IS NOT NULL AS distinct, m.expires_at, m.valid_from, m.valid_to, m.superseded_by, m.created_at,
    m.updated_at, u.last_accessed_at, u.access_count, u.helpful, u.not_helpful, u.moved_at AS priority_moved_at,
    m.unscored, m.version, m.state, m.merged_into, m.purge_at, m.merges
"""


class ExportPage(msgspec.Struct, frozen=True):
    """Lines in the order of an export.

    Attributes:
        place: Where the next page begins; None where nothing is left.
    """

    lines: Sequence[ObservationLine | MemoryLine | HistoryLine]
    place: ExportPlace | None


async def export_page(
    tenant: TenantId,
    connection: Connection,
    *,
    where: Filter,
    place: ExportPlace | None,
    history: bool,
    owned_by: Collection[str] = (),
) -> ExportPage:
    """Observations first; then memories in the order of ids, expired and hidden ones too, each with its history.

    A memory is given as it is when its page is read, with the history up to then. What is deleted between pages may
    be there without all of its history.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        where: What the memories match, and observations as the memories that they would become.
        place: Where the page before ended; None begins.
        history: Whether histories are wanted.
        owned_by: Fields that say whose a memory is: what its history tells of former owners is left out.

    Raises:
        Unavailable: The metadata of too many memories would have to be read.
    """
    if place is None or place.held:
        held, more = await _observations(tenant, connection, where=where, after=None if place is None else place.id)
        if more is not None:
            return ExportPage(held, ExportPlace(id=more, held=True))
        page = await export_page(
            tenant, connection, where=where, place=ExportPlace(id=_FIRST), history=history, owned_by=owned_by
        )
        return msgspec.structs.replace(page, lines=[*held, *page.lines])
    if place.version is not None:
        rest = {place.id: place.upto or 0}
        entries, more = await _history(tenant, connection, rest, after=place.version, owned_by=owned_by)
        left = ExportPlace(id=place.id, version=entries[-1].version, upto=place.upto) if more else None
        return ExportPage(entries, left or ExportPlace(id=place.id))
    found = await _memories(tenant, connection, where=where, after=place.id)
    if not found or not history:
        return ExportPage(found, ExportPlace(id=found[-1].id) if found else None)
    versions = {memory.id: memory.version for memory in found}
    entries, more = await _history(tenant, connection, versions, after=0, owned_by=owned_by)
    if not more:
        return ExportPage(_interleaved(found, entries), ExportPlace(id=found[-1].id))
    last = entries[-1]
    whole = [memory for memory in found if memory.id <= last.memory_id]
    cut = ExportPlace(id=last.memory_id, version=last.version, upto=versions[last.memory_id])
    return ExportPage(_interleaved(whole, entries), cut)


def _interleaved(found: Sequence[MemoryLine], entries: Sequence[HistoryLine]) -> list[MemoryLine | HistoryLine]:
    """Each memory, and behind it its history."""
    lines: list[MemoryLine | HistoryLine] = []
    n = 0
    for memory in found:
        lines.append(memory)
        while n < len(entries) and entries[n].memory_id == memory.id:
            lines.append(entries[n])
            n += 1
    return lines


async def _observations(
    tenant: TenantId, connection: Connection, *, where: Filter, after: UUID | None
) -> tuple[list[ObservationLine], UUID | None]:
    """Those that come next in the order of ids and match, and the last that was looked at where there may be more."""
    found = await observations_after(tenant, connection, after=after, limit=_OBSERVATIONS)
    lines = [
        ObservationLine(
            **msgspec.structs.asdict(its.observation), occurred_given=its.occurred_given, unscored=its.unscored
        )
        for its in found
        if matches(where, as_memory(its.observation))
    ]
    return lines, found[-1].observation.id if len(found) == _OBSERVATIONS else None


async def _memories(tenant: TenantId, connection: Connection, *, where: Filter, after: UUID) -> list[MemoryLine]:
    values: list[Any] = [tenant, _MEMORIES, _BYTES]
    matching = conditions(where, values)
    values.append(after)
    matching += f" AND m.id > ${len(values)}::uuid"
    usage = "JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id" if needs_usage(where) else ""
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        WITH next AS MATERIALIZED (
            SELECT m.id, octet_length(m.content) + pg_column_size(m.metadata)
                + coalesce(pg_column_size(m.merges), 0) AS size
            FROM memory m {usage}
            WHERE m.tenant_id = $1{matching} ORDER BY m.id LIMIT $2
        ), page AS MATERIALIZED (
            SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS total FROM next) sized
            WHERE total - size < $3
        )
        SELECT {_COLUMNS} FROM memory m JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
        WHERE m.tenant_id = $1 AND m.id = ANY(ARRAY(SELECT id FROM page))
          AND u.memory_id = ANY(ARRAY(SELECT id FROM page))
        ORDER BY m.id
        """,
        where=where,
        values=values[1:],
    )
    return [_memory_line(row) for row in rows]


async def _history(
    tenant: TenantId,
    connection: Connection,
    versions: dict[UUID, int],
    *,
    after: int,
    owned_by: Collection[str],
) -> tuple[list[HistoryLine], bool]:
    """Entries of these memories up to these versions, and whether there are more; `after` is for a single memory."""
    rows = await connection.fetch(
        """
        WITH next AS MATERIALIZED (
            SELECT h.memory_id, h.version, h.event, h.key_id, h.request_id, h.at, h.changes
            FROM unnest($2::uuid[], $3::int[]) AS w(id, upto)
            JOIN history h ON h.tenant_id = $1 AND h.memory_id = w.id AND h.version <= w.upto AND h.version > $4
            WHERE h.version > coalesce((
                SELECT max(o.version) FROM history o
                WHERE cardinality($5::text[]) > 0 AND o.tenant_id = $1 AND o.memory_id = w.id AND o.changes ?| $5), 0)
            ORDER BY h.memory_id, h.version LIMIT $6 + 1
        )
        SELECT * FROM (
            SELECT *, row_number() OVER place AS n, count(*) OVER () AS there, pg_column_size(changes) AS size,
                sum(pg_column_size(changes)) OVER place AS total
            FROM next WINDOW place AS (ORDER BY memory_id, version)
        ) sized
        WHERE n <= $6 AND total - size < $7 ORDER BY n
        """,
        tenant,
        list(versions),
        list(versions.values()),
        after,
        list(owned_by),
        _HISTORY,
        _BYTES,
    )
    return [_history_line(row) for row in rows], bool(rows) and rows[0]["there"] > len(rows)


def _memory_line(row: Row) -> MemoryLine:
    given = {name: row[name] for name in MemoryLine.__struct_fields__}
    if given["merges"] is not None:
        given["merges"] = msgspec.convert(given["merges"], Ledger)
    return MemoryLine(**given)


def _history_line(row: Row) -> HistoryLine:
    return HistoryLine(**{name: row[name] for name in HistoryLine.__struct_fields__})

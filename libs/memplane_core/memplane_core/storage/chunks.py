"""Chunks of memories' texts in one generation."""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from memplane_core.domain.chunking import Chunk
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, pack_vector


class OwnedChunk(msgspec.Struct, frozen=True):
    """A chunk of one revision of a memory."""

    memory_id: UUID
    rev: int
    chunk: Chunk


def chunk_columns(owned: Iterable[OwnedChunk]) -> tuple[list[object], ...]:
    """Chunks by column: memory, revision, number, start and end of the span, vector."""
    rows = [
        (
            its.memory_id,
            its.rev,
            its.chunk.n,
            its.chunk.window.start,
            its.chunk.window.end,
            None if its.chunk.vector is None else pack_vector(its.chunk.vector),
        )
        for its in owned
    ]
    return tuple([row[column] for row in rows] for column in range(6))


async def insert_chunks(
    tenant: TenantId, connection: Connection, owned: Iterable[OwnedChunk], *, generation: int
) -> None:
    """Store chunks whose places are free."""
    await connection.execute(
        """
        INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, embedding)
        SELECT $1, $2, memory_id, rev, n, span_start, span_end, embedding
        FROM unnest($3::uuid[], $4::int[], $5::int[], $6::int[], $7::int[], $8::vector[])
            AS c(memory_id, rev, n, span_start, span_end, embedding)
        """,
        tenant,
        generation,
        *chunk_columns(owned),
    )

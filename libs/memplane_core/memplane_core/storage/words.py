"""Words in Postgres: what a memory's text is scored by, and the marks by which it is looked up."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec
import numpy as np

from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import TERM_BYTES, term
from memplane_core.storage.session import Connection

PER_WORD: Final = 500
"""Most memories that one word nominates. A word that more of them have tells little, and is counted no further."""


LOOKED_UP: Final = 64
"""Most words of a query that nominate: a look-up each."""


class Owner(msgspec.Struct, frozen=True):
    """Whose a memory is. A search within one owner looks up no one else's words."""

    user_id: str | None
    agent_id: str | None
    session_id: str | None


class Words(msgspec.Struct, frozen=True):
    """One memory's words: its packed terms, and whose it is."""

    memory_id: UUID
    terms: bytes
    owner: Owner


def term_marks(tenant: TenantId, terms: bytes) -> list[int]:
    """Distinct terms as the 32-bit integers they are looked up by, mixed with the tenant's id.

    Tenants share partitions of the index: so mixed, one tenant's common words are not another's.
    """
    return (np.unique(np.frombuffer(terms, ">i4")).astype(np.int32) ^ _salt(tenant)).tolist()


def owner_marks(tenant: TenantId, owner: Owner) -> list[int]:
    """The marks of whose a memory is; none of what is None. No word has a space in it, so that none is the same."""
    named = (("user", owner.user_id), ("agent", owner.agent_id), ("session", owner.session_id))
    return term_marks(tenant, b"".join(term(f"{kind} {name}") for kind, name in named if name is not None))


def session_of(owner: Owner) -> int | None:
    """One number for user, agent and session: the same words in another user's mouth are another session."""
    if owner.session_id is None:
        return None
    named = "\x1f".join((owner.user_id or "", owner.agent_id or "", owner.session_id))
    return int.from_bytes(hashlib.md5(named.encode(), usedforsecurity=False).digest()[:8], signed=True)


def word_columns(tenant: TenantId, words: Iterable[Words]) -> tuple[list[object], ...]:
    """Words by column: memory, packed terms, marks as the text of an array, and session."""
    rows = [
        (
            its.memory_id,
            its.terms,
            _array([*term_marks(tenant, its.terms), *owner_marks(tenant, its.owner)]),
            session_of(its.owner),
        )
        for its in words
    ]
    return tuple([row[column] for row in rows] for column in range(4))


async def replace_words(tenant: TenantId, connection: Connection, words: Sequence[Words]) -> None:
    """Give memories other words."""
    await connection.execute(
        """
        INSERT INTO memory_words (tenant_id, memory_id, terms, marks, session)
        SELECT $1, memory_id, terms, marks::int4[], session
        FROM unnest($2::uuid[], $3::bytea[], $4::text[], $5::int8[]) AS w(memory_id, terms, marks, session)
        ON CONFLICT (tenant_id, memory_id) DO UPDATE
        SET terms = EXCLUDED.terms, marks = EXCLUDED.marks, session = EXCLUDED.session
        """,
        tenant,
        *word_columns(tenant, words),
    )


class Moved(msgspec.Struct, frozen=True):
    """A memory that has another owner, and the same words."""

    memory_id: UUID
    before: Owner
    after: Owner


async def move_words(tenant: TenantId, connection: Connection, moved: Sequence[Moved]) -> None:
    """Let memories be looked up under their new owners, and no longer under the old ones."""
    await connection.execute(
        """
        UPDATE memory_words w
        SET marks = ARRAY(SELECT unnest(w.marks) EXCEPT SELECT unnest(m.before::int4[])) || m.after::int4[],
            session = m.session
        FROM unnest($2::uuid[], $3::text[], $4::text[], $5::int8[]) AS m(memory_id, before, after, session)
        WHERE w.tenant_id = $1 AND w.memory_id = m.memory_id
        """,
        tenant,
        [its.memory_id for its in moved],
        [_array(owner_marks(tenant, its.before)) for its in moved],
        [_array(owner_marks(tenant, its.after)) for its in moved],
        [session_of(its.after) for its in moved],
    )


async def nominate(tenant: TenantId, connection: Connection, terms: bytes, *, owner: Owner, limit: int) -> list[UUID]:
    """The memories that share most with these terms, the rarest words counting most; hidden ones may be among them.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        terms: Of the query, packed, the most telling first: `LOOKED_UP` of them are looked up.
        owner: Only memories of all that is named.
        limit: Most that are nominated.
    """
    rows = await connection.fetch(
        "SELECT nominate_by_words($1, $2::int4[], $3::int4[], $4, $5) AS id",
        tenant,
        term_marks(tenant, terms[: LOOKED_UP * TERM_BYTES]),
        owner_marks(tenant, owner),
        PER_WORD,
        limit,
    )
    return [row["id"] for row in rows]


def _salt(tenant: TenantId) -> np.int32:
    return np.frombuffer(term(str(tenant)), ">i4").astype(np.int32)[0]


def _array(marks: Iterable[int]) -> str:
    return f"{{{','.join(map(str, marks))}}}"

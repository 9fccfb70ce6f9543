"""What a memory is, when two are one, and what a change of it asks of the index."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.errors import invalid

CONTENT_BYTES: Final = 32_768
METADATA_BYTES: Final = 16 * 1024
METADATA_DEPTH: Final = 64
ENTITY_BYTES: Final = 256
LABEL_BYTES: Final = 128
DEFAULT_IMPORTANCE: Final = 0.5
DEFAULT_PRIORITY: Final = 3
DEFAULT_TYPE: Final = "experience"

State = Literal["active", "forgotten", "merged"]
IndexState = Literal["pending", "indexed", "failed"]

TEXT_FIELDS: Final = frozenset({"content", "actor", "occurred_at"})
"""Changing one of these changes the indexed text: it has to be embedded again."""

INDEX_FIELDS: Final = TEXT_FIELDS | {"user_id", "agent_id", "session_id", "memory_type", "expires_at"}
"""Changing one of these changes what the index holds: `rev` grows."""

IDENTITY_FIELDS: Final = TEXT_FIELDS | {"user_id", "agent_id", "session_id", "memory_type", "valid_from", "valid_to"}
"""What makes two memories one."""


class Memory(msgspec.Struct, kw_only=True):
    """A memory as it is kept and returned: `content` to the byte, times in UTC.

    Attributes:
        version: Grows with every change; the ETag.
        valid_from: From when on what it says is so; null is ever since.
        valid_to: When that ended; null is not yet.
        superseded_by: The memory that says what has been so since `valid_to`.
        index_state: `pending` until the index has been told of the newest form, `failed` where the text cannot be
            embedded; `index_error` then says why.
    """

    id: UUID
    external_id: str | None
    content: str
    actor: str | None
    scene: list[str]
    source: str | None
    memory_type: str
    user_id: str | None
    agent_id: str | None
    session_id: str | None
    importance: float
    priority: int
    pinned: bool
    metadata: dict[str, Any]
    occurred_at: datetime
    expires_at: datetime | None
    valid_from: datetime | None
    valid_to: datetime | None
    superseded_by: UUID | None
    created_at: datetime
    updated_at: datetime
    last_accessed_at: datetime
    access_count: int
    version: int
    state: State
    merged_into: UUID | None
    purge_at: datetime | None
    index_state: IndexState
    index_error: str | None


def begun(fields: Mapping[str, Any], *, at: datetime) -> Memory:
    """A memory as it is when it begins.

    Args:
        fields: All that whoever writes it may set, by name.
        at: When that is.
    """
    return Memory(
        **fields,
        superseded_by=None,
        created_at=at,
        updated_at=at,
        last_accessed_at=at,
        access_count=0,
        version=1,
        state="active",
        merged_into=None,
        purge_at=None,
        index_state="pending",
        index_error=None,
    )


def head_of(actor: str | None, occurred_at: datetime) -> str:
    """What goes before each window of a memory's indexed text: `[8 May 2023, 13:56] actor: `, the time in UTC."""
    at = occurred_at.astimezone(UTC)
    date = f"[{at.day} {_MONTHS[at.month - 1]} {at.year}, {at:%H:%M}] "
    return f"{date}{actor}: " if actor else date


_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def dedup_key(
    *,
    content: str,
    actor: str | None,
    memory_type: str,
    user_id: str | None,
    agent_id: str | None,
    session_id: str | None,
    occurred_at: datetime | None,
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
) -> bytes:
    """Digest of what makes two memories one, 32 bytes. `occurred_at` is None where the caller gave none.

    Every part is preceded by its length, and None is not the empty string: no two different memories share their input.
    """
    parts = [user_id, agent_id, session_id, actor, memory_type, occurred_at and utc_text(occurred_at), content]
    if valid_from is not None or valid_to is not None:
        parts += [valid_from and utc_text(valid_from), valid_to and utc_text(valid_to)]
    digest = hashlib.sha256()
    for part in parts:
        if part is None:
            digest.update(b"-;")
        else:
            raw = part.encode()
            digest.update(b"%d;" % len(raw))
            digest.update(raw)
    return digest.digest()


def utc_text(moment: datetime) -> str:
    """A moment in UTC, the same text for the same moment whatever its offset was."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def to_utc(moment: datetime | float, *, pointer: str) -> datetime:
    """A given time as UTC: a naive one is UTC already, a number is epoch seconds.

    Raises:
        InvalidRequest: It lies outside of the years 1 to 9999.
    """
    try:
        if isinstance(moment, datetime):
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return datetime.fromtimestamp(moment, UTC)
    except (OverflowError, ValueError, OSError):
        raise invalid(pointer, "must be a time between the years 1 and 9999") from None

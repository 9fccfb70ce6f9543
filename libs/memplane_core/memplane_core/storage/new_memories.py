"""Memories that are still to be stored."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from memplane_core.domain.memory import State
from memplane_core.domain.merge_ledger import Ledger


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory brings along that was kept somewhere else before.

    Attributes:
        rev: Revision of its indexed form, one that the index has never been told of here.
        moved_at: When maintenance last moved its priority.
        merges: What it has taken from those that were merged into it.
    """

    version: int
    rev: int
    state: State
    merged_into: UUID | None
    purge_at: datetime | None
    created_at: datetime
    updated_at: datetime
    last_accessed_at: datetime
    access_count: int
    helpful: int
    not_helpful: int
    moved_at: datetime | None
    merges: Ledger | None
    superseded_by: UUID | None = None


class NewMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory to insert.

    Attributes:
        dedup_key: None where it may have twins.
        unscored: Nobody gave its importance, and a language model is to say what it is.
        past: None where it begins now: active, at version 1, with a history that says so. One that has a past brings
            its history itself.
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
    occurred_given: bool
    expires_at: datetime | None
    dedup_key: bytes | None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    unscored: bool = False
    past: Past | None = None

    @property
    def rev(self) -> int:
        """Revision of its indexed form."""
        return 1 if self.past is None else self.past.rev

    @property
    def is_active(self) -> bool:
        """Whether it is to be found."""
        return self.past is None or self.past.state == "active"

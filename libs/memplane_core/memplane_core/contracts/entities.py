"""Whom memories are about: users, agents and sessions."""

from datetime import datetime
from typing import Literal

import msgspec

EntityType = Literal["user", "agent", "session"]


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A user, an agent or a session that active memories name.

    Attributes:
        id: As the memories have it: their `user_id`, `agent_id` or `session_id`.
        memories: How many active memories name it.
        last_activity_at: When one of them was last written or changed.
    """

    type: EntityType
    id: str
    memories: int
    last_activity_at: datetime


class EntityPage(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of ids; `next_cursor` is null on the last page."""

    results: list[Entity]
    next_cursor: str | None

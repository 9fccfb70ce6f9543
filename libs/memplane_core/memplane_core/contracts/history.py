"""Bodies of a memory's history."""

from datetime import datetime
from typing import Any

import msgspec


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a memory.

    Attributes:
        version: That the memory had from then on.
        event: `created`, `updated`, `superseded`, `forgotten`, `merged` or `restored`; of a memory that others were
            merged into `absorbed`, and `gave_back` once they were restored.
        key_id: Of the API key that did it.
        request_id: `X-Request-Id` of that answer.
        changes: Old values of the fields that changed, by name, and as `memories` the ids of those others; empty where
            it was created.
    """

    version: int
    event: str
    key_id: str
    request_id: str
    at: datetime
    changes: dict[str, Any]


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; `next_cursor` is null on the last page."""

    results: list[HistoryEntry]
    next_cursor: str | None

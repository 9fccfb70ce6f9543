"""Candidates of one search, from wherever they came, one a memory."""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexHit
from memplane_core.domain.ranking import Candidate, Origin
from memplane_core.storage.candidates import Checked, StoredHit


class Hit(msgspec.Struct, frozen=True):
    """A memory's best chunk of one revision."""

    rev: int
    cosine: float
    origin: Origin


class Pool:
    """Keeps each memory's newest revision, and of that its best chunk: a stale row never speaks for its memory."""

    def __init__(self) -> None:
        self._hits: dict[UUID, Hit] = {}

    def add_stored(self, hits: Iterable[StoredHit], *, origin: Origin) -> None:
        """Add what Postgres scored."""
        for hit in hits:
            self._add(hit.memory_id, Hit(hit.rev, hit.cosine, origin))

    def add_indexed(self, hits: Iterable[IndexHit]) -> None:
        """Add what the index found."""
        for hit in hits:
            self._add(hit.key.memory_id, Hit(hit.key.rev, hit.cosine, "index"))

    def _add(self, memory_id: UUID, hit: Hit) -> None:
        known = self._hits.get(memory_id)
        if known is None or (hit.rev, hit.cosine) > (known.rev, known.cosine):
            self._hits[memory_id] = hit

    def revisions(self) -> dict[UUID, int]:
        """The revision that was found, by memory."""
        return {memory_id: hit.rev for memory_id, hit in self._hits.items()}

    def candidates(self, checked: dict[UUID, Checked]) -> list[Candidate]:
        """Those that passed the check and were found at their newest revision, ready to be ranked."""
        return [
            Candidate(
                memory_id=memory_id,
                cosine=self._hits[memory_id].cosine,
                origin=self._hits[memory_id].origin,
                importance=found.importance,
                priority=found.priority,
                last_accessed_at=found.last_accessed_at,
            )
            for memory_id, found in checked.items()
            if found.rev == self._hits[memory_id].rev
        ]

"""What the services need of the world, as Protocols. In-memory implementations are in `testing/`."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from memplane_core.domain.collections import CollectionName, KeyPage
from memplane_core.domain.embedding import EmbedItem, Lane, ModelProfile, ModelProfiles, Window
from memplane_core.domain.errors import QuotaExceeded, quota_exceeded
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId


class EmbeddedText(msgspec.Struct, frozen=True):
    """A text's windows and their vectors, shape (len(windows), dim); both empty for a poison text, with its `error`."""

    windows: list[Window]
    vectors: FloatArray
    error: str | None = None


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    async def embed_query(self, tenant: TenantId, text: str, *, model: str, timeout_s: float) -> FloatArray:
        """A vector of shape (dim,). Raises EmbeddingUnavailable, or InvalidRequest for a text it cannot take."""
        ...

    async def embed_passages(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
    ) -> list[EmbeddedText]:
        """Windows and vectors for each item, in order. Raises EmbeddingUnavailable."""
        ...

    async def profiles(self) -> ModelProfiles:
        """The models served. Raises EmbeddingUnavailable."""
        ...

    async def profile(self, model: str) -> ModelProfile:
        """One model's profile, cached for good. Raises EmbeddingUnavailable, or NotFound for an unknown model."""
        ...


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's quota of tokens for today and what it has used of it."""

    limit: int
    used: int

    @property
    def left(self) -> int:
        """Tokens that may still be embedded."""
        return max(self.limit - self.used, 0)

    def exceeded(self, because: str = "") -> QuotaExceeded:
        """The error for a request that does not fit."""
        return quota_exceeded("tokens_a_day", limit=self.limit, used=self.used, because=because)


class TokenMeter(Protocol):
    """Allows and counts what is embedded for a tenant."""

    async def allowance(self, tenant: TenantId) -> Allowance | None:
        """What is left for today; None: there is no quota. Raises QuotaExceeded where nothing is left."""
        ...

    async def spent(self, tenant: TenantId, tokens: int) -> None:
        """Count tokens that were embedded."""
        ...


class Reranker(Protocol):
    """Reads a query and a text together: slower than vectors by far, and better at telling which text answers it."""

    async def rerank(self, tenant: TenantId, query: str, texts: Sequence[str], *, timeout_s: float) -> FloatArray:
        """How well each text answers the query, 0 to 1, higher is better: shape (len(texts),).

        Args:
            tenant: Whose turn it uses.
            query: As it was asked.
            texts: At most `contracts.embedding.MAX_RERANK_TEXTS`, each with what the model should know of it.
            timeout_s: Longest wait.

        Raises:
            EmbeddingUnavailable: No answer in time, or too much is waiting.
            NotFound: No reranker is switched on.
            InvalidRequest: A query, or texts, that it cannot take.
        """
        ...


class VectorIndex(Protocol):
    """A rebuildable index of chunk vectors, one collection for a tenant's generation.

    Every method raises IndexUnavailable where the server cannot be reached or the collection is not loaded; a later
    call may succeed. What it holds may be behind or ahead of Postgres: callers check each hit there.
    """

    @property
    def batch_rows(self) -> int:
        """Most rows that `upsert` should be given at once."""
        ...

    async def ensure(self, tenant: TenantId, generation: Generation) -> None:
        """Make the collection and its index if absent, and load it. Idempotent; safe when two do it at once."""
        ...

    async def check_dimension(self, tenant: TenantId, generation: Generation) -> None:
        """Return where the collection, if there is one, holds vectors of the generation's length.

        Raises:
            IndexMismatch: It does not, so nothing can be stored in it or found by it.
        """
        ...

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        """Store rows whole; an equal key is replaced. Keys must be distinct."""
        ...

    async def delete(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> None:
        """Remove rows; an absent key is no error, and an absent collection neither."""
        ...

    async def search(
        self, tenant: TenantId, generation: Generation, vector: FloatArray, *, limit: int, where: IndexFilter
    ) -> list[UUID]:
        """The memory of each of the `limit` (1..16,384) nearest chunks by cosine, best first, at bounded staleness.

        A memory comes as often as it has chunks among them; fewer than `limit` were found if it gives fewer.
        """
        ...

    async def search_many(
        self, tenant: TenantId, generation: Generation, vectors: Sequence[FloatArray], *, limit: int, where: IndexFilter
    ) -> list[list[UUID]]:
        """What `search` gives for each vector, in their order; cheaper than one after the other. For background work.

        A server works on all of them before it turns to the next call: give it few at a time.
        """
        ...

    async def keys_present(
        self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]
    ) -> frozenset[IndexKey]:
        """Which of the keys are stored, read at strong consistency: for proofs and repair, not for hot paths."""
        ...

    async def count(self, tenant: TenantId, generation: Generation) -> int:
        """Rows stored, at strong consistency; 0 where the collection is absent."""
        ...

    async def keys_after(
        self, tenant: TenantId, generation: Generation | CollectionName, after: str = "", *, limit: int
    ) -> KeyPage:
        """All keys that follow `after` in the order of their texts, up to some key: at most `limit` (1..16,383).

        Read at strong consistency, page after page from `""` on; few large pages cost less than many small ones. A row
        that is there from the first page to the last is in exactly one of them, whatever happens to others meanwhile.
        An absent collection has no keys.
        """
        ...

    async def keys_of(
        self, tenant: TenantId, generation: Generation, where: IndexFilter, *, limit: int
    ) -> list[IndexKey]:
        """Keys of rows that pass the filter, at most `limit` (1..16,383), in no order, at strong consistency.

        An absent collection has none. For proofs and repair.
        """
        ...

    async def compact(self, tenant: TenantId, generation: Generation) -> bool:
        """Ask the server to give back the room of rows that were removed; False where it does not take that.

        It does so in its own time: what was removed is found by nobody before that either.
        """
        ...

    async def drop(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Remove the collection; an absent one is no error."""
        ...

    async def release(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Take the collection out of the server's memory; an absent one is no error.

        The next search raises IndexUnavailable and has it loaded; writing loads it too.
        """
        ...

    async def collections(self) -> list[CollectionName]:
        """All collections there are, those of tenants and generations that are gone too."""
        ...

    async def loaded(self) -> list[CollectionName]:
        """Those that take up the server's memory."""
        ...

    async def ping(self) -> None:
        """Return when the server answers; for readiness."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class Kicker(Protocol):
    """Tells the workers that a tenant has something to index. May lose a kick: the sweep finds the work anyway."""

    def kick(self, tenant: TenantId) -> None:
        """Ask for a drain soon; returns at once and never raises."""
        ...

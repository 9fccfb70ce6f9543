"""Bodies of the memory routes, the same at the gateway and behind it.

A field that is left out (`UNSET`) keeps its value in a PATCH or an upsert and takes its default in a new memory.
Lengths given here are in code points, which OpenAPI can say; `contracts.checks` checks the limits in bytes.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.filters import Filters
from memplane_core.domain.memory import IndexState, Memory
from memplane_core.domain.observations import Observation
from memplane_core.domain.ranking import Origin, Preset, Weights

Content = Annotated[str, msgspec.Meta(min_length=1, max_length=32_768, description="1 to 32,768 bytes of UTF-8")]
EntityId = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="at most 256 bytes of UTF-8")]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=128, description="at most 128 bytes of UTF-8")]
Scene = Annotated[list[Label], msgspec.Meta(max_length=32)]
Importance = Annotated[float, msgspec.Meta(ge=0, le=1)]
Priority = Annotated[int, msgspec.Meta(ge=1, le=5)]
Moment = datetime | float
"""RFC 3339, or epoch seconds. A naive time is UTC."""

GivenValidAt = Annotated[
    str | float,
    msgspec.Meta(
        description="Only memories that hold at this moment, RFC 3339 or epoch seconds; `any` for all whenever they "
        "held. When left out, what holds now."
    ),
]
"""Raw: `domain.validity.valid_at_of` reads it."""

OnDuplicate = Literal["return", "update", "create"]


class MemoryFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller may set, whether writing or patching."""

    actor: EntityId | UnsetType | None = UNSET
    scene: Scene | UnsetType = UNSET
    source: Label | UnsetType | None = UNSET
    memory_type: Label | UnsetType = UNSET
    user_id: EntityId | UnsetType | None = UNSET
    agent_id: EntityId | UnsetType | None = UNSET
    session_id: EntityId | UnsetType | None = UNSET
    importance: Importance | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    occurred_at: Moment | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET
    valid_from: Moment | UnsetType | None = UNSET
    valid_to: Moment | UnsetType | None = UNSET


class MemoryWrite(MemoryFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One memory to store.

    Attributes:
        supersedes: Id of a memory of the same user and agent that is so no longer: its `valid_to` becomes the
            `valid_from` of this one, which is its `occurred_at` where it names none.
    """

    content: Content
    external_id: EntityId | None = None
    on_duplicate: OnDuplicate = "return"
    supersedes: UUID | None = None


class MemoryPatch(MemoryFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to one memory; what is not named stays."""

    content: Content | UnsetType = UNSET


class BatchWrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1 to 1,000 memories, stored all or none.

    Attributes:
        wait: `index` holds the answer until all is searchable in the index, 30 seconds at most.
    """

    memories: Annotated[list[MemoryWrite], msgspec.Meta(min_length=1, max_length=1000)]
    wait: Literal["index"] | None = None


MemoryView = Memory
"""What is returned is what is kept."""


class WrittenMemory(MemoryView, kw_only=True):
    """The answer to a write. `deduplicated` says that an equal memory was there and is returned instead."""

    deduplicated: bool


class BatchItem(msgspec.Struct, kw_only=True):
    """What became of one memory of a batch.

    Attributes:
        status: What `POST /v1/memories` would have answered.
        version: Null, like `index_state`, where a repeated request finds that the memory is gone by now.
    """

    status: Literal[200, 201, 202]
    id: UUID
    version: int | None
    deduplicated: bool
    index_state: IndexState | None


class BatchWritten(msgspec.Struct, kw_only=True):
    """One item for each memory of the request, in its order."""

    results: list[BatchItem]


Mode = Literal["hybrid", "dense", "lexical"]
TopK = Annotated[int, msgspec.Meta(ge=1, le=1000)]

Degraded = Literal["dense", "fresh", "index", "top_k", "rerank"]
"""What an answer had to do without: the query's vector, some fresh rows, the index, more candidates, the reranker."""


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session: all three together name it. What a key is bound to is filled in."""

    session_id: EntityId
    user_id: EntityId | UnsetType | None = UNSET
    agent_id: EntityId | UnsetType | None = UNSET


class RecallFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the memories, whatever is made of those that are found.

    Attributes:
        query: What they are about: 1 to 8,192 bytes of UTF-8.
        top_k: Most memories that are found.
        filters: What they must match; all of them when left out.
        mode: `dense` by meaning alone, `lexical` by words alone, `hybrid` by both.
        weights: Of the parts of a score, the policy's when left out; not together with `preset`.
        preset: A ranking known by name: `dbgpt` adds similarity, recency and 0.15 x importance.
        min_relevance: Leaves out what is less relevant than this, 0..1; the policy's when left out.
        now: Clock of the ranking, for replays; the server's own when left out.
        valid_at: The moment at which what is found must hold, or `any`; `now` when left out.
        touch: False leaves no trace of this search in what it found.
        rerank: True has the best candidates read once more by the installation's reranker, where it has one.
        include_short_term: A session whose observations are returned besides, whatever the query is.
    """

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=8192)]
    top_k: TopK = 10
    filters: Filters = {}
    mode: Mode = "hybrid"
    weights: Weights | None = None
    preset: Preset | None = None
    min_relevance: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    now: Moment | None = None
    valid_at: GivenValidAt | None = None
    touch: bool = True
    rerank: bool = False
    include_short_term: SessionRef | None = None

    def as_search(self) -> "SearchRequest":
        """The search alone: it leaves no trace, and what the session holds is no part of it."""
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in self.__struct_fields__ if name in SearchRequest.__struct_fields__
        }
        fields |= {"touch": False, "include_short_term": None}
        return SearchRequest(**fields)


class SearchRequest(RecallFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the memories.

    Attributes:
        explain: True returns the parts of each score.
        candidates: How many meaning and words each nominate; the server's choice when left out.
    """

    explain: bool = False
    candidates: Annotated[int, msgspec.Meta(ge=1, le=16_384)] | None = None


class ScoreParts(msgspec.Struct, kw_only=True, omit_defaults=False):
    """How a score came about.

    Attributes:
        cosine: Of the query's vector and the best chunk's, -1..1; null without one of the two.
        dense: The cosine seen against the pool's best, 0..1.
        lexical: Shared words by BM25 against the pool's best, with a part of its neighbours' in the session.
        actor: 1 where the query names exactly one known actor and the memory is theirs.
        dated: 1 where it happened at the time that the query names, falling to 0 over two weeks around it.
        session: How well the best of its session match; its own match where it has no session.
        informativeness: A little for length and for saying when, a little off for ending in a question.
        match: What the signals of likeness come to, 1 for the pool's best.
        recency: `(1 - decay_rate) ** hours` since the last access.
        importance: As it was set, 0..1.
        priority: 0 for 1, 1 for 5.
        rerank: The reranker's opinion, 0..1; null where it was not asked.
        origin: Where the candidate was found.
    """

    cosine: float | None
    dense: float
    lexical: float
    actor: float
    dated: float
    session: float
    informativeness: float
    match: float
    recency: float
    importance: float
    priority: float
    rerank: float | None
    origin: Origin


class FoundMemory(MemoryView, kw_only=True):
    """A memory with its place in the ranking.

    Attributes:
        score: Orders the results; comparable within one answer only.
        relevance: 0..1, absolute: how likely it has to do with the query at all.
    """

    score: float
    relevance: float
    explain: ScoreParts | UnsetType = UNSET


class SearchResponse(msgspec.Struct, kw_only=True):
    """Best first. `degraded` names what could not be asked.

    Attributes:
        short_term: What the session that was named holds, oldest first; none of it is among the results.
    """

    results: list[FoundMemory]
    degraded: list[Degraded]
    short_term: list[Observation] | UnsetType = UNSET


class MemoryPage(msgspec.Struct, kw_only=True):
    """In the order asked for; `next_cursor` is null on the last page."""

    results: list[MemoryView]
    next_cursor: str | None

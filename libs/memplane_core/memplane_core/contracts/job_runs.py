"""Bodies of the job routes, and what each kind of job keeps of them."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.maintenance_runs import ExpireStart, PrioritiesStart, PruneStart, PurgeStart
from memplane_core.contracts.policy import MergeRules
from memplane_core.contracts.reflect_runs import ReflectStart
from memplane_core.domain.indexing import IndexType

WEEK_S: Final = 7 * 24 * 3600
YEAR_S: Final = 365 * 24 * 3600


class ReindexStart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="reindex"
):
    """Make a new collection from Postgres and let it answer searches once it is complete; nothing stops meanwhile.

    Attributes:
        model: To embed with from now on; the tenant's own where it is left out.
        index_type: Of the collection; the installation's where it is left out.
        index_params: What the index is built with; what the installation, or the type, has where it is left out.
        reembed: Embed every memory again even if the model stays. Else its vectors are taken over.
        to_generation: Go back to a generation that is still kept, instead of making one.
        grace_s: For how long the generation that answers now is kept up to date, so that one can go back to it.
        dry_run: Only tell what would be done.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    index_type: IndexType | None = None
    index_params: dict[str, int] | None = None
    reembed: bool = False
    to_generation: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    grace_s: Annotated[int, msgspec.Meta(ge=10, le=YEAR_S)] = WEEK_S
    dry_run: bool = False


class ReconcileStart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="reconcile"
):
    """Compare the collections with Postgres both ways, and mend what differs; nothing stops meanwhile.

    The result counts, over all generations that are kept: `checked` rows of both sides; rows `missing` from the index
    and `stale` ones that it ought not to hold; memories `unqueued`, which were never embedded, and `wordless`, which
    words did not find; `lost` collections; memories `requeued` to be sent again and rows `removed`.

    Attributes:
        dry_run: Only count: `requeued` and `removed` are what would have been.
    """

    dry_run: bool = False


class MergeStart(MergeRules, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="merge"):
    """Make one of memories that tell the same more than once.

    Looked at is what was changed since the last run by the same rules. The result counts memories `looked_at`, those
    `waiting` for the index, which the next run looks at, and how many were `merged` away into how many `clusters`. The
    sample is two of each of some clusters: the memory that stays, and one that was merged into it.

    Attributes:
        full: Look at all memories once more.
        dry_run: Only count what would be merged.
    """

    full: bool = False
    dry_run: bool = False


JobStart = (
    PrioritiesStart | PruneStart | ExpireStart | PurgeStart | ReindexStart | ReconcileStart | MergeStart | ReflectStart
)
"""The body that starts a job, its kind told by `kind`."""


class ReindexParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a reindex works by: everything that was left out has been looked up when it was asked for.

    Attributes:
        to_generation: Where it is given, only it and `grace_s` count.
    """

    model: str
    dim: int
    index_type: str
    index_params: dict[str, int]
    reembed: bool
    to_generation: int | None
    grace_s: int


class MergeParams(MergeRules, frozen=True, kw_only=True):
    """What a merge works by."""

    full: bool = False


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is, in what its kind counts: memories; for a reconcile, in each generation.

    Attributes:
        total: Null until it is known.
    """

    done: int
    total: int | None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job.

    Attributes:
        state: `queued` and `running` until it has ended.
        cancel_asked: It ends before its next batch.
        params: What it works by.
        result: What it did so far, in numbers.
        sample: Ids of some of the memories that it touched, or would, at most 20.
        error: Why it failed, or what holds it up just now.
        started_by: Public id of the key that asked for it, `admin`, or `memplane` where nobody did.
    """

    id: UUID
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    dry_run: bool
    cancel_asked: bool
    params: dict[str, Any]
    progress: Progress
    result: dict[str, int]
    sample: list[UUID]
    error: str | None
    started_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, the newest first."""

    results: list[JobView]
    next_cursor: str | None


class GenerationView(msgspec.Struct, frozen=True, kw_only=True):
    """One physical collection of a tenant.

    Attributes:
        state: `building`, `active`, `kept` until `drop_at`, or `dropping`.
        collection: Its name in the vector index; there once `indexed` is true.
        chunks: Stored in Postgres for it, in all.
        embedded: Those of them that have vectors.
        pending: Memories that the index has not been told of yet, counted up to 100,000, as are the next two.
        failed: Memories that it can never hold; their `index_error` says why.
        removals: Revisions that it has to lose yet.
        lag_s: Age of the oldest thing that it has not been told of, in seconds.
    """

    number: int
    state: Literal["building", "active", "kept", "dropping"]
    model: str
    dim: int
    index_type: str
    index_params: dict[str, int]
    collection: str
    indexed: bool
    chunks: int
    embedded: int
    pending: int
    failed: int
    removals: int
    lag_s: float
    created_at: datetime
    drop_at: datetime | None


class GenerationList(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's generations, the oldest first; those that are gone are left out."""

    results: list[GenerationView]


class Activation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Going back to a generation.

    Attributes:
        grace_s: For how long the one that answers now is kept up to date.
    """

    grace_s: Annotated[int, msgspec.Meta(ge=10, le=YEAR_S)] = WEEK_S

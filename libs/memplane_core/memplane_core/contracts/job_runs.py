"""Bodies of the job routes, and what each kind of job keeps of them."""

from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.errors import invalid

IndexType = Literal["HNSW", "IVF_FLAT", "AUTOINDEX"]

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


JobStart = ReindexStart
"""One body a kind, told apart by `kind`."""


class ReindexParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a reindex works by: everything that was left out has been looked up when it was asked for.

    Attributes:
        to_generation: Where it is given, only it and `grace_s` count.
    """

    model: str
    dim: int
    index_type: IndexType
    index_params: dict[str, int]
    reembed: bool
    to_generation: int | None
    grace_s: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is, in what its kind counts: memories, for a reindex.

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
        error: Why it failed, or what holds it up just now.
        started_by: Public id of the key that asked for it, or `admin`.
    """

    id: UUID
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    dry_run: bool
    cancel_asked: bool
    params: dict[str, object]
    progress: Progress
    result: dict[str, int]
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


_TAKEN: Final[dict[IndexType, dict[str, range]]] = {
    "HNSW": {"M": range(2, 2049), "efConstruction": range(8, 4097)},
    "IVF_FLAT": {"nlist": range(1, 65_537), "nprobe": range(1, 65_537)},
    "AUTOINDEX": {},
}

INDEX_PARAMS: Final[dict[IndexType, dict[str, int]]] = {
    "HNSW": {"M": 16, "efConstruction": 200},
    "IVF_FLAT": {"nlist": 128, "nprobe": 16},
    "AUTOINDEX": {},
}
"""What an index of each type is built with where nobody says anything else."""


def check_index_params(index_type: IndexType, params: dict[str, int]) -> None:
    """Raise InvalidRequest for a parameter that an index of this type does not take, or not in that size."""
    taken = _TAKEN[index_type]
    for name, value in params.items():
        pointer = "/index_params/" + name.replace("~", "~0").replace("/", "~1")
        if name not in taken:
            there_are = ", ".join(taken) or "none"
            raise invalid(pointer, f"is no parameter of {index_type}; there are: {there_are}")
        if value not in taken[name]:
            raise invalid(pointer, f"must be from {taken[name].start} to {taken[name].stop - 1}")

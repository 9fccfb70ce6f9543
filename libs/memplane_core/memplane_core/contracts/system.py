"""How the parts of an installation are: as they tell each other, and as operators are told."""

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

REPORTS_KEY: Final = "mp:reports"
"""Valkey hash, in the cache's database: the latest `WorkerReport` of each worker process, by its id."""

REPORT_EVERY_S: Final = 5.0
"""Seconds between two reports of a worker."""

REPORT_GOOD_S: Final = 30.0
"""A worker that has not reported for so long is not there any more."""

PartState = Literal["ok", "unavailable", "unknown"]


class Health(msgspec.Struct):
    """What `/healthz` and `/readyz` answer.

    Attributes:
        status: `ok`; `degraded` where a part is away that the service can do without; `unavailable`; `draining` where
            it is about to end.
        parts: Of each whether it is `ok` or `unavailable`.
    """

    status: str
    parts: dict[str, str]


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker sees.

    Attributes:
        worker: Its id, new with each start.
        at: When it looked, in epoch seconds.
        parts: `ok` or `unavailable`, by part: `postgres`, `broker`, `index`, `cache`, `beat`.
        queues: Messages that wait, by queue; empty where the broker is away.
        access_s: Age of the oldest recall that is not in Postgres yet, in seconds.
    """

    worker: str
    at: float
    parts: dict[str, PartState]
    queues: dict[str, int]
    access_s: float


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the installation.

    Attributes:
        name: `gateway`, `retrieval`, `embedding`, `worker`, `beat`, `postgres`, `index`, `broker` or `cache`.
        status: `unknown` where nobody is there who could tell.
        seen_by: What each of those who ask it says.
        advice: What to do; null where it is `ok`.
    """

    name: str
    status: PartState
    seen_by: dict[str, PartState]
    advice: str | None


class TenantLag(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose index is behind: rows that wait, and the age of the oldest in seconds."""

    tenant_id: UUID
    pending: int
    oldest_s: float


class IndexView(msgspec.Struct, frozen=True, kw_only=True):
    """How far the index is behind Postgres.

    Attributes:
        lag_s: Age of the oldest write that searches by meaning find among fresh rows only, in seconds.
        pending: Rows of the outbox that the index has not been told of, of generations being built too; counted up to
            100,000.
        failed: Rows that it can never hold, likewise.
        oldest_s: Age of the oldest of `pending`.
        behind: The tenants furthest behind, at most ten.
    """

    lag_s: float
    pending: int
    failed: int
    oldest_s: float
    behind: list[TenantLag]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that wait in a queue of the broker."""

    name: str
    waiting: int


class JobsView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a kind that have not ended.

    Attributes:
        runs: Of all tenants.
        held_up: Those of them whose last step has to be tried again.
        waits_s: For how long one that could go on has not been worked on, in seconds.
    """

    kind: str
    state: str
    runs: int
    held_up: int
    waits_s: float


class GenerationsView(msgspec.Struct, frozen=True, kw_only=True):
    """Generations of all tenants: those that answer, those kept besides, being built, and being dropped."""

    active: int = 0
    kept: int = 0
    building: int = 0
    dropping: int = 0


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process that is alive, and the seconds since it has told so."""

    id: str
    seen_s: float
    access_s: float


class ExpiringKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key that ends within a week, and that nothing has replaced."""

    tenant_id: UUID
    id: str
    expires_at: datetime


class SystemView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole installation at a moment.

    Attributes:
        status: `ok`; `degraded` where a part is not `ok` without which requests are still answered; `unavailable`.
        index: Null while Postgres is away, like `generations`, `jobs` and `expiring_keys`.
        queues: Empty while no worker reports.
    """

    status: Literal["ok", "degraded", "unavailable"]
    version: str
    at: datetime
    parts: list[PartView]
    workers: list[WorkerView]
    queues: list[QueueView]
    index: IndexView | None
    generations: GenerationsView | None
    jobs: list[JobsView] | None
    expiring_keys: list[ExpiringKey] | None

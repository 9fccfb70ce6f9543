"""Admin routes for a tenant's generations: the collections that answer, may answer again, or are being built."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, PathParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.job_runs import Activation, GenerationList, GenerationView, JobView, ReindexStart
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import refill
from memplane_core.storage.generations import GenerationLife, generation_lives
from memplane_core.storage.refill import ChunkCount, Waiting
from memplane_core.storage.session import Database
from memplane_core.storage.tenants import no_tenant
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.job_kinds import JobKinds
from memplane_gateway.jobs import queue_job

_TAGS: Final = ["Administration"]

Number = Annotated[int, PathParameter(ge=1, le=2**31 - 1, description="Of the generation.")]


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/generations",
    operation_id="listGenerations",
    summary="List a tenant's generations",
    tags=_TAGS,
    responses={200: answer(GenerationList, "The oldest first."), **problems(401, 404, 503)},
)
async def list_generations(tenant_id: FromPath[UUID], database: NamedDependency[Database]) -> GenerationList:
    """The collections of a tenant: of which model each is, which one answers, and how far the index is behind."""
    tenant = TenantId(tenant_id)
    async with database.tenant(tenant) as connection:
        lives = await generation_lives(tenant, connection)
        if not lives:
            raise no_tenant(tenant)
        chunks = await refill.count_chunks(tenant, connection)
        waiting = {
            life.generation.number: await refill.waiting(tenant, connection, generation=life.generation.number)
            for life in lives
            if life.life != "dropped"
        }
    return GenerationList(
        results=[
            _view(life, chunks.get(number, ChunkCount(0, 0)), waiting[number])
            for life in lives
            if (number := life.generation.number) in waiting
        ]
    )


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/generations/{number:int}/activate",
    operation_id="activateGeneration",
    summary="Go back to a generation",
    tags=_TAGS,
    status_code=202,
    responses={
        202: answer(JobView, "A `reindex` that goes back to it. `Location` tells how it goes."),
        **problems(400, 401, 404, 409, 413, 422, 503),
    },
)
async def activate_generation(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    number: Number,
    data: JSONBody[Activation],
    *,
    database: NamedDependency[Database],
    kinds: NamedDependency[JobKinds],
    idempotency_key: IdempotencyKey = None,
) -> Response[JobView]:
    """Let a generation that is still kept answer searches again. It has been kept up to date, and is proved first."""
    start = ReindexStart(to_generation=number, grace_s=data.grace_s)
    path = f"/admin/v1/tenants/{tenant_id}/jobs"
    return await queue_job(
        request, TenantId(tenant_id), database, kinds=kinds, start=start, key=idempotency_key, jobs_path=path
    )


def _view(life: GenerationLife, chunks: ChunkCount, waiting: Waiting) -> GenerationView:
    assert life.life != "dropped"
    generation = life.generation
    return GenerationView(
        number=generation.number,
        state="active" if life.active else life.life,
        model=generation.model,
        dim=generation.dim,
        index_type=generation.index_type,
        index_params=generation.index_params,
        collection=generation.collection,
        indexed=generation.state == "ready",
        chunks=chunks.chunks,
        embedded=chunks.embedded,
        pending=waiting.pending,
        failed=waiting.failed,
        removals=waiting.removals,
        lag_s=round(waiting.oldest_s, 3),
        created_at=life.created_at,
        drop_at=life.drop_at,
    )


GENERATION_ROUTES: Final[Sequence[ControllerRouterHandler]] = (list_generations, activate_generation)

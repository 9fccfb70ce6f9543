"""Routes for jobs: a tenant's own, and the same for whoever operates the installation."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.job_runs import JobPage, JobStart, JobView, Progress
from memplane_core.domain.errors import NotFound
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import jobs
from memplane_core.storage.idempotency import Effect
from memplane_core.storage.jobs import JobRecord
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.tenants import require_tenant
from memplane_core.web.repeats import Once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.deeds import carry_out, deed_of, done_before
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.job_kinds import JobKinds
from memplane_gateway.queries import id_of, refuse_unknown
from memplane_gateway.tenants import PageCursor, PageLimit

_TAGS: Final = ["Jobs"]
_ADMIN_TAGS: Final = ["Administration"]
_STARTED: Final = "Queued: within seconds a worker begins. `Location` tells how it goes."

KindQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="Only runs of exactly this kind.")
]


@post(
    "/v1/jobs",
    operation_id="startJob",
    summary="Start a job",
    tags=_TAGS,
    status_code=202,
    responses={202: answer(JobView, _STARTED), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def start_job(
    request: ServiceRequest,
    data: JSONBody[JobStart],
    *,
    database: NamedDependency[Database],
    kinds: NamedDependency[JobKinds],
    idempotency_key: IdempotencyKey = None,
) -> Response[JobView]:
    """Have something done in the background. One run of a kind at a time.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    return await queue_job(
        request, principal.tenant, database, kinds=kinds, start=data, key=idempotency_key, jobs_path="/v1/jobs"
    )


@get(
    "/v1/jobs",
    operation_id="listJobs",
    summary="List jobs",
    tags=_TAGS,
    responses={200: answer(JobPage, "The newest first."), **problems(401, 403, 422, 503)},
)
async def list_jobs(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    kind: KindQuery = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> JobPage:
    """Page through all runs, those that have ended too.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    refuse_unknown(request, ("kind", "limit", "cursor"))
    return await _page(principal.tenant, database, kind=kind, limit=limit, cursor=cursor)


@get(
    "/v1/jobs/{job_id:uuid}",
    operation_id="getJob",
    summary="Get a job",
    tags=_TAGS,
    responses={200: answer(JobView, "The run as it is now."), **problems(401, 403, 404, 503)},
)
async def get_job(request: ServiceRequest, job_id: FromPath[UUID], *, database: NamedDependency[Database]) -> JobView:
    """How a run is getting on, or how it ended.

    Needs the scope `memories:admin`.
    """
    return await _get(request.require("memories:admin").tenant, database, job_id)


@post(
    "/v1/jobs/{job_id:uuid}/cancel",
    operation_id="cancelJob",
    summary="Cancel a job",
    tags=_TAGS,
    status_code=202,
    responses={
        202: answer(JobView, "It ends before its next batch, and what must not stay of it is undone."),
        **problems(401, 403, 404, 409, 422, 503),
    },
)
async def cancel_job(
    request: ServiceRequest,
    job_id: FromPath[UUID],
    *,
    database: NamedDependency[Database],
    idempotency_key: IdempotencyKey = None,
) -> Response[JobView]:
    """Ask a run to end. Once it is done that is a 409.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    return await _cancel(request, principal.tenant, database, job_id=job_id, key=idempotency_key)


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/jobs",
    operation_id="startTenantJob",
    summary="Start a job of a tenant",
    tags=_ADMIN_TAGS,
    status_code=202,
    responses={202: answer(JobView, _STARTED), **problems(400, 401, 404, 409, 413, 422, 503)},
)
async def start_tenant_job(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    data: JSONBody[JobStart],
    *,
    database: NamedDependency[Database],
    kinds: NamedDependency[JobKinds],
    idempotency_key: IdempotencyKey = None,
) -> Response[JobView]:
    """Have something done for a tenant in the background. One run of a kind at a time."""
    path = f"/admin/v1/tenants/{tenant_id}/jobs"
    return await queue_job(
        request, TenantId(tenant_id), database, kinds=kinds, start=data, key=idempotency_key, jobs_path=path
    )


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/jobs",
    operation_id="listTenantJobs",
    summary="List the jobs of a tenant",
    tags=_ADMIN_TAGS,
    responses={200: answer(JobPage, "The newest first."), **problems(401, 404, 422, 503)},
)
async def list_tenant_jobs(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    *,
    database: NamedDependency[Database],
    kind: KindQuery = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> JobPage:
    """Page through all runs of a tenant, those that have ended too."""
    refuse_unknown(request, ("kind", "limit", "cursor"))
    tenant = TenantId(tenant_id)
    async with database.tenant(tenant) as connection:
        await require_tenant(tenant, connection)
    return await _page(tenant, database, kind=kind, limit=limit, cursor=cursor)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/jobs/{job_id:uuid}",
    operation_id="getTenantJob",
    summary="Get a job of a tenant",
    tags=_ADMIN_TAGS,
    responses={200: answer(JobView, "The run as it is now."), **problems(401, 404, 503)},
)
async def get_tenant_job(
    tenant_id: FromPath[UUID], job_id: FromPath[UUID], *, database: NamedDependency[Database]
) -> JobView:
    """How a run is getting on, or how it ended."""
    return await _get(TenantId(tenant_id), database, job_id)


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/jobs/{job_id:uuid}/cancel",
    operation_id="cancelTenantJob",
    summary="Cancel a job of a tenant",
    tags=_ADMIN_TAGS,
    status_code=202,
    responses={
        202: answer(JobView, "It ends before its next batch, and what must not stay of it is undone."),
        **problems(401, 404, 409, 422, 503),
    },
)
async def cancel_tenant_job(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    job_id: FromPath[UUID],
    *,
    database: NamedDependency[Database],
    idempotency_key: IdempotencyKey = None,
) -> Response[JobView]:
    """Ask a run to end. Once it is done that is a 409."""
    return await _cancel(request, TenantId(tenant_id), database, job_id=job_id, key=idempotency_key)


async def queue_job(
    request: ServiceRequest,
    tenant: TenantId,
    database: Database,
    *,
    kinds: JobKinds,
    start: JobStart,
    key: str | None,
    jobs_path: str,
) -> Response[JobView]:
    """Queue a run. Nobody is told: the workers look for what is due every few seconds.

    Raises:
        Conflict: One of that kind has not ended.
        InvalidRequest, NotFound, EmbeddingUnavailable, NoLanguageModel: See `JobKinds`.
        IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
    """
    before = await done_before(request, tenant, database, key=key)
    if before is None:
        prepared = await kinds.prepare(tenant, start)

        async def create(connection: Connection) -> Effect:
            job = await jobs.create_job(
                tenant,
                connection,
                kind=prepared.kind,
                params=prepared.params,
                dry_run=prepared.dry_run,
                started_by=deed_of(request.scope).actor,
            )
            return Effect(str(job.id))

        details = {"kind": prepared.kind, "dry_run": prepared.dry_run}
        queued = await carry_out(request, tenant, database, key=key, act=create, details=details)
    else:
        queued = Once(before, replayed=True)
    view = await _get(tenant, database, UUID(queued.outcome.id))
    return Response(view, headers={"Location": f"{jobs_path}/{view.id}", **queued.headers})


async def _page(tenant: TenantId, database: Database, *, kind: str | None, limit: int, cursor: str | None) -> JobPage:
    before = id_of(cursor)
    async with database.tenant(tenant) as connection:
        found = await jobs.list_jobs(tenant, connection, before=before, limit=limit + 1, kind=kind)
    page = [_view(job) for job in found[:limit]]
    return JobPage(results=page, next_cursor=page[-1].id.hex if len(found) > limit else None)


async def _get(tenant: TenantId, database: Database, job_id: UUID) -> JobView:
    async with database.tenant(tenant) as connection:
        return _found(await jobs.get_job(tenant, connection, job_id), job_id)


async def _cancel(
    request: ServiceRequest, tenant: TenantId, database: Database, *, job_id: UUID, key: str | None
) -> Response[JobView]:
    async def ask(connection: Connection) -> Effect:
        _found(await jobs.ask_cancel(tenant, connection, job_id), job_id)
        return Effect(str(job_id))

    asked = await carry_out(request, tenant, database, key=key, act=ask)
    return Response(await _get(tenant, database, job_id), headers=asked.headers)


def _found(job: JobRecord | None, job_id: UUID) -> JobView:
    if job is None:
        raise NotFound(f"there is no job with the id {str(job_id)!r}")
    return _view(job)


def _view(job: JobRecord) -> JobView:
    return JobView(
        id=UUID(int=job.id.int),
        kind=job.kind,
        state=job.state,
        dry_run=job.dry_run,
        cancel_asked=job.cancel_asked,
        params=job.params,
        progress=Progress(done=job.done, total=job.total),
        result=job.result,
        sample=[UUID(int=memory_id.int) for memory_id in job.sample],
        error=job.error,
        started_by=job.started_by,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


JOB_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    start_job,
    list_jobs,
    get_job,
    cancel_job,
    start_tenant_job,
    list_tenant_jobs,
    get_tenant_job,
    cancel_tenant_job,
)

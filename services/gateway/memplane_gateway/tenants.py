"""Admin routes for tenants."""

import unicodedata
from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from uuid_utils.compat import uuid7

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.contracts.admin import TenantCreate, TenantPage, TenantView
from memplane_core.domain.embedding import ModelProfiles
from memplane_core.domain.errors import EmbeddingUnavailable, invalid
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import tenants
from memplane_core.storage.idempotency import Effect
from memplane_core.storage.session import OPERATOR, Connection, Database, inside
from memplane_core.storage.tenants import TenantRecord
from memplane_core.web.repeats import fingerprint_of, once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.deeds import deed_of, tell
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.queries import id_of, refuse_unknown
from memplane_gateway.settings import IndexDefaults

_TAGS: Final = ["Administration"]

PageLimit = Annotated[int, QueryParameter(ge=1, le=1000, description="Most items in one answer.")]
PageCursor = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="`next_cursor` of the answer before.")
]


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that cannot be told from another, or cannot be stored."""
    if name != name.strip():
        raise invalid("/name", "must not begin or end with a space")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise invalid("/name", "must not hold control characters")


@post(
    "/admin/v1/tenants",
    operation_id="createTenant",
    summary="Create a tenant",
    tags=_TAGS,
    status_code=201,
    responses={201: answer(TenantView, "The new tenant."), **problems(400, 401, 409, 413, 422, 503)},
)
async def create_tenant(
    request: ServiceRequest,
    data: JSONBody[TenantCreate],
    database: NamedDependency[Database],
    *,
    embedder: NamedDependency[HttpEmbedder],
    index_defaults: NamedDependency[IndexDefaults],
    idempotency_key: IdempotencyKey = None,
) -> Response[TenantView]:
    """Make a tenant: an organisation or app with memories of its own. Then make it a key."""
    check_name(data.name)
    tenant = TenantId(uuid7())
    model = default_model(await embedder.profiles())
    generation = Generation(
        tenant=tenant,
        number=1,
        model=model[0],
        dim=model[1],
        index_type=index_defaults.index_type,
        index_params=index_defaults.index_params,
        state="absent",
    )

    async def create(connection: Connection) -> Effect:
        # Whether the request came before is kept where nobody's tenant is: until now this one has not been.
        async with inside(tenant, connection, outside=OPERATOR):
            await tenants.create_tenant(tenant, connection, name=data.name, generation=generation)
            await tell(connection, deed_of(request.scope), tenant=tenant, target=str(tenant))
        return Effect(str(tenant))

    fingerprint = None if idempotency_key is None else await fingerprint_of(request)
    made = await once(OPERATOR, database, fingerprint, kind=Effect, act=create)
    return Response(await _get(TenantId(UUID(made.outcome.id)), database), headers=made.headers)


def default_model(profiles: ModelProfiles) -> tuple[str, int]:
    """Name and dimensions of the model that a new tenant gets. Raises EmbeddingUnavailable where it is not served."""
    for model in profiles.models:
        if model.name == profiles.default:
            return model.name, model.dim
    raise EmbeddingUnavailable(f"the embedding service does not serve its own default model {profiles.default!r}")


@get(
    "/admin/v1/tenants",
    operation_id="listTenants",
    summary="List tenants",
    tags=_TAGS,
    responses={200: answer(TenantPage, "In the order they were made."), **problems(401, 422, 503)},
)
async def list_tenants(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> TenantPage:
    """Page through all tenants."""
    refuse_unknown(request, ("limit", "cursor"))
    after = id_of(cursor)
    async with database.system() as connection:
        found = await tenants.list_tenants(connection, after=after, limit=limit + 1)
    page = [_view(tenant) for tenant in found[:limit]]
    return TenantPage(results=page, next_cursor=page[-1].id.hex if len(found) > limit else None)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}",
    operation_id="getTenant",
    summary="Get a tenant",
    tags=_TAGS,
    responses={200: answer(TenantView, "The tenant."), **problems(401, 404, 503)},
)
async def get_tenant(tenant_id: FromPath[UUID], database: NamedDependency[Database]) -> TenantView:
    """One tenant by its id."""
    return await _get(TenantId(tenant_id), database)


async def _get(tenant: TenantId, database: Database) -> TenantView:
    async with database.tenant(tenant) as connection:
        return _view(await tenants.require_tenant(tenant, connection))


def _view(tenant: TenantRecord) -> TenantView:
    return TenantView(id=tenant.id, name=tenant.name, created_at=tenant.created_at)


TENANT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (create_tenant, list_tenants, get_tenant)

"""Routes that erase: a person of a tenant, and a tenant."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar
from uuid import UUID

import msgspec
from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.checks import check_ids
from memplane_core.contracts.erasures import ErasurePage, ErasureStart, ErasureView
from memplane_core.domain.errors import NotFound, Unavailable, invalid
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.keys import Keyring
from memplane_core.storage import erasures
from memplane_core.storage.erasures import Begun, ErasureRecord, Subject, receipt_digest
from memplane_core.storage.idempotency import Effect, Fingerprint
from memplane_core.storage.session import OPERATOR, Connection, Database, inside, is_contention
from memplane_core.storage.tenants import get_tenant, no_tenant
from memplane_core.web.repeats import fingerprint_of, once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import KeyDirectory
from memplane_gateway.deeds import carry_out, deed_of, tell
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.queries import id_of, refuse_unknown
from memplane_gateway.tenants import PageCursor, PageLimit

T = TypeVar("T")

_TAGS: Final = ["Erasure"]
_ADMIN_TAGS: Final = ["Administration"]
_TRIES: Final = 3
_BEGUN: Final = (
    "From now on writes about the subject are refused, until it is done. One of the same subject that is under way "
    "answers instead. `Location` tells how it goes."
)

UserQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=256, description="Only erasures of exactly this user.")
]
AgentQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=256, description="Only erasures of exactly this agent.")
]
Confirmation = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=128, description="The tenant's name, without which nothing is deleted."),
]


@post(
    "/v1/erasures",
    operation_id="startErasure",
    summary="Erase a user or an agent",
    tags=_TAGS,
    status_code=202,
    responses={202: answer(ErasureView, _BEGUN), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def start_erasure(
    request: ServiceRequest,
    data: JSONBody[ErasureStart],
    *,
    database: NamedDependency[Database],
    keyring: NamedDependency[Keyring],
    idempotency_key: IdempotencyKey = None,
) -> Response[ErasureView]:
    """Erase for good all that is kept of a user, of an agent, or of what is both one's and the other's.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    tenant = principal.tenant
    if data.user_id is None and data.agent_id is None:
        raise invalid("", "name a user_id, an agent_id, or both")
    check_ids(data, "user_id", "agent_id")
    who = Subject(user_id=data.user_id, agent_id=data.agent_id)
    subject = marks_of(tenant, keyring, who)[0]

    async def begin(connection: Connection) -> Effect:
        begun = await erasures.begin(tenant, connection, who, subject=subject, started_by=principal.key_id)
        return Effect(str(begun.id))

    def sealed(fingerprint: Fingerprint) -> Fingerprint:
        # It is kept for a day, and whoever reads it could try names.
        return msgspec.structs.replace(
            fingerprint,
            key=keyring.marks(fingerprint.key.encode())[0],
            body_hash=bytes.fromhex(keyring.marks(fingerprint.body_hash)[0]),
        )

    begun = await _unhindered(
        lambda: carry_out(
            request,
            tenant,
            database,
            key=idempotency_key,
            act=begin,
            details={"kind": who.kind, "subject": subject},
            sealed=sealed,
        )
    )
    view = await _get(tenant, database, UUID(begun.outcome.id))
    return Response(view, headers={"Location": f"/v1/erasures/{view.id}", **begun.headers})


@get(
    "/v1/erasures",
    operation_id="listErasures",
    summary="List erasures",
    tags=_TAGS,
    responses={200: answer(ErasurePage, "The newest first."), **problems(401, 403, 422, 503)},
)
async def list_erasures(
    request: ServiceRequest,
    database: NamedDependency[Database],
    keyring: NamedDependency[Keyring],
    *,
    user_id: UserQuery = None,
    agent_id: AgentQuery = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> ErasurePage:
    """Page through all erasures, or through those of a subject, which only who names it finds.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    refuse_unknown(request, ("user_id", "agent_id", "limit", "cursor"))
    who = Subject(user_id=user_id, agent_id=agent_id)
    subjects = None if user_id is None and agent_id is None else marks_of(principal.tenant, keyring, who)
    before = id_of(cursor)
    async with database.tenant(principal.tenant) as connection:
        found = await erasures.list_erasures(
            principal.tenant, connection, before=before, limit=limit + 1, subjects=subjects
        )
    page = [_view(erasure) for erasure in found[:limit]]
    return ErasurePage(results=page, next_cursor=page[-1].id.hex if len(found) > limit else None)


@get(
    "/v1/erasures/{erasure_id:uuid}",
    operation_id="getErasure",
    summary="Get an erasure",
    tags=_TAGS,
    responses={200: answer(ErasureView, "As it is now."), **problems(401, 403, 404, 503)},
)
async def get_erasure(
    request: ServiceRequest, erasure_id: FromPath[UUID], *, database: NamedDependency[Database]
) -> ErasureView:
    """How an erasure is getting on, or its receipt.

    Needs the scope `memories:admin`.
    """
    return await _get(request.require("memories:admin").tenant, database, erasure_id)


@delete(
    "/admin/v1/tenants/{tenant_id:uuid}",
    operation_id="deleteTenant",
    summary="Delete a tenant",
    tags=_ADMIN_TAGS,
    status_code=202,
    responses={
        202: answer(
            ErasureView,
            "From now on there is no such tenant, and its name is free. All that it had is being erased, which "
            "`Location` tells of. So it is where the tenant was deleted before.",
        ),
        **problems(401, 404, 409, 422, 503),
    },
)
async def delete_tenant(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    database: NamedDependency[Database],
    *,
    keyring: NamedDependency[Keyring],
    directory: NamedDependency[KeyDirectory],
    name: Confirmation = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[ErasureView]:
    """Erase a tenant for good: its memories, collections, keys, settings and jobs. The audit and the receipt stay."""
    refuse_unknown(request, ("name",))
    if name is None:
        raise invalid("name", "must be given: the name of the tenant that is to be deleted")
    tenant = TenantId(tenant_id)

    async def begin(connection: Connection) -> Effect:
        # What was asked for is kept where nobody's tenant is: this one's own is about to go.
        async with inside(tenant, connection, outside=OPERATOR):
            begun = await _begin_tenant(tenant, connection, name=name, keyring=keyring)
            if begun.made:
                await tell(connection, deed_of(request.scope), tenant=tenant, target=str(tenant))
        return Effect(str(begun.id))

    fingerprint = None if idempotency_key is None else await fingerprint_of(request)
    begun = await _unhindered(lambda: once(OPERATOR, database, fingerprint, kind=Effect, act=begin))
    directory.forget_tenant(tenant)
    headers = {"Location": f"/admin/v1/tenants/{tenant}/erasure", **begun.headers}
    return Response(await _tenant_erasure(tenant, database), headers=headers)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/erasure",
    operation_id="getTenantErasure",
    summary="Get the erasure of a tenant",
    tags=_ADMIN_TAGS,
    responses={200: answer(ErasureView, "As it is now."), **problems(401, 404, 503)},
)
async def get_tenant_erasure(tenant_id: FromPath[UUID], *, database: NamedDependency[Database]) -> ErasureView:
    """How the erasure of a deleted tenant is getting on, or its receipt."""
    return await _tenant_erasure(TenantId(tenant_id), database)


def marks_of(tenant: TenantId, keyring: Keyring, who: Subject) -> list[str]:
    """HMACs by which an erasure of `who` is known, under each pepper, the newest first."""
    return keyring.marks(msgspec.json.encode(["subject", tenant.hex, who.user_id, who.agent_id]))


async def _begin_tenant(tenant: TenantId, connection: Connection, *, name: str, keyring: Keyring) -> Begun:
    found = await get_tenant(tenant, connection)
    if found is None:
        known = await erasures.tenant_erasure(tenant, connection)
        if known is None:
            raise no_tenant(tenant)
        return Begun(known.id, made=False)
    if found.name != name:
        raise invalid("name", "is not the name of this tenant")
    subject = keyring.marks(msgspec.json.encode(["tenant", tenant.hex, name]))[0]
    return await erasures.begin_tenant(tenant, connection, subject=subject, started_by="admin")


async def _unhindered(work: Callable[[], Awaitable[T]]) -> T:
    """Try again where writers were in the way. Raises Unavailable where they stay there."""
    for _ in range(_TRIES):
        try:
            return await work()
        except Exception as error:
            if not is_contention(error):
                raise
    raise Unavailable("writes of this tenant are in the way; try again", retry_after=2)


async def _get(tenant: TenantId, database: Database, erasure_id: UUID) -> ErasureView:
    async with database.tenant(tenant) as connection:
        found = await erasures.get_erasure(tenant, connection, erasure_id)
    if found is None:
        raise NotFound(f"there is no erasure with the id {str(erasure_id)!r}")
    return _view(found)


async def _tenant_erasure(tenant: TenantId, database: Database) -> ErasureView:
    async with database.tenant(tenant) as connection:
        found = await erasures.tenant_erasure(tenant, connection)
    if found is None:
        raise NotFound(f"no tenant with the id {str(tenant)!r} was deleted")
    return _view(found)


def _view(erasure: ErasureRecord) -> ErasureView:
    return ErasureView(
        id=erasure.id,
        state=erasure.state,
        kind=erasure.kind,
        subject=f"hmac-sha256:{erasure.subject}",
        phase=erasure.phase,
        pass_number=erasure.pass_,
        erased=erasure.counts,
        error=erasure.error,
        started_by=erasure.started_by,
        created_at=erasure.created_at,
        started_at=erasure.started_at,
        finished_at=erasure.finished_at,
        receipt=erasure.receipt,
        receipt_sha256=None if erasure.receipt is None else receipt_digest(erasure.receipt),
    )


ERASURE_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    start_erasure,
    list_erasures,
    get_erasure,
    delete_tenant,
    get_tenant_erasure,
)

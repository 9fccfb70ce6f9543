"""What is told about memories: their history, and whom they are about."""

import base64
import binascii
from typing import Annotated, Final
from uuid import UUID

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from memplane_core.contracts.entities import Entity, EntityPage, EntityType
from memplane_core.contracts.history import HistoryPage
from memplane_core.domain.binding import sees
from memplane_core.domain.errors import NotFound, invalid
from memplane_core.storage import memories
from memplane_core.storage.entities import entity_page
from memplane_core.storage.history import history_page
from memplane_core.storage.session import Database
from memplane_core.web.request import ServiceRequest

PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]

_NO_CURSOR: Final = "must be the next_cursor of an earlier page of this list"


@get("/v1/memories/{memory_id:uuid}/history")
async def memory_history(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    database: NamedDependency[Database],
    *,
    limit: PageSize = 100,
    cursor: FromQuery[str | None] = None,
) -> HistoryPage:
    """What became of one memory, the newest first."""
    principal = request.require("memories:read", bound=True)
    before = _version(cursor)
    async with database.tenant(principal.tenant) as connection:
        memory = (await memories.read(principal.tenant, connection, [memory_id])).get(memory_id)
        if memory is None or not sees(principal, memory):
            raise NotFound("there is no memory of this id")
        found = await history_page(
            principal.tenant, connection, memory_id, before=before, limit=limit + 1, owned_by=principal.bind
        )
    results = list(found[:limit])
    return HistoryPage(results=results, next_cursor=str(results[-1].version) if len(found) > limit else None)


def _version(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < len(str(2**31))):
        raise invalid("cursor", _NO_CURSOR)
    return int(cursor)


@get("/v1/entities")
async def list_entities(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    entity_type: Annotated[EntityType, QueryParameter(name="type")],
    limit: PageSize = 100,
    cursor: FromQuery[str | None] = None,
) -> EntityPage:
    """Users, agents or sessions that active memories name, in the order of ids."""
    principal = request.require("memories:read", bound=True)
    after = _entity_id(entity_type, cursor)
    async with database.tenant(principal.tenant) as connection:
        found = await entity_page(
            principal.tenant, connection, entity_type, after=after, limit=limit + 1, bind=principal.bind
        )
    results = list(found[:limit])
    return EntityPage(results=results, next_cursor=_cursor(results[-1]) if len(found) > limit else None)


def _cursor(last: Entity) -> str:
    return base64.urlsafe_b64encode(f"{last.type}:{last.id}".encode()).decode()


def _entity_id(entity_type: EntityType, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        type_, _, id_ = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise invalid("cursor", _NO_CURSOR) from None
    if type_ != entity_type or "\0" in id_:
        raise invalid("cursor", _NO_CURSOR)
    return id_


RECORD_ROUTES: Final = [memory_history, list_entities]

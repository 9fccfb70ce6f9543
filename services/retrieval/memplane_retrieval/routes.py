"""The memory routes, as the gateway forwards them."""

from typing import Annotated, Final
from uuid import UUID

from litestar import Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from memplane_core.contracts.checks import check_batch, check_patch, check_recall, check_write
from memplane_core.contracts.filters import query_filter, query_moment
from memplane_core.contracts.lists import ListRequest, Sort
from memplane_core.contracts.memories import (
    BatchItem,
    BatchWrite,
    BatchWritten,
    MemoryPage,
    MemoryPatch,
    MemoryWrite,
    SearchRequest,
    SearchResponse,
    WrittenMemory,
)
from memplane_core.domain.binding import narrowed, sees
from memplane_core.domain.errors import NotFound
from memplane_core.domain.filters import Filter, parse_filter
from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.validity import ValidAt, valid_at_of
from memplane_core.storage import lists, memories
from memplane_core.storage.idempotency import WriteOutcome
from memplane_core.storage.session import Database
from memplane_core.web.repeats import REPLAYED, fingerprint_of
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.cursors import Cursors
from memplane_retrieval.generations import Generations
from memplane_retrieval.headers import etag_of, if_match_of
from memplane_retrieval.patch import Patcher
from memplane_retrieval.search import Searcher
from memplane_retrieval.short_term import ShortTerm
from memplane_retrieval.waiting import IndexWait
from memplane_retrieval.write import Writer

SINGLE_BODY_BYTES: Final = 256 * 1024
BATCH_BODY_BYTES: Final = 48 * 1024 * 1024

PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]


@post("/v1/memories", request_max_body_size=SINGLE_BODY_BYTES)
async def write_memory(
    request: ServiceRequest, data: JSONBody[MemoryWrite], writer: NamedDependency[Writer]
) -> Response[WrittenMemory]:
    """Store one memory."""
    principal = request.require("memories:write", bound=True)
    check_write(data)
    fingerprint = await fingerprint_of(request)
    written = await writer.write(principal, [data], batch=False, fingerprint=fingerprint)
    [outcome] = written.outcome
    memory = written.memories.get(outcome.id)
    if memory is None:
        raise NotFound("the memory that this request wrote before is not there any more", id=outcome.id)
    body = WrittenMemory(
        **{name: getattr(memory, name) for name in Memory.__struct_fields__}, deduplicated=outcome.deduplicated
    )
    headers = {"ETag": etag_of(memory.version)}
    if written.replayed:
        headers[REPLAYED] = "true"
    return Response(body, status_code=outcome.status, headers=headers)


@post("/v1/memories/batch", status_code=200, request_max_body_size=BATCH_BODY_BYTES)
async def write_batch(
    request: ServiceRequest,
    data: JSONBody[BatchWrite],
    writer: NamedDependency[Writer],
    index_wait: NamedDependency[IndexWait],
) -> Response[BatchWritten]:
    """Store 1 to 1,000 memories, all or none."""
    principal = request.require("memories:write", bound=True)
    check_batch(data)
    fingerprint = await fingerprint_of(request)
    written = await writer.write(principal, data.memories, batch=True, fingerprint=fingerprint)
    known = written.memories
    if data.wait == "index":
        known = known | await index_wait.until_indexed(principal.tenant, list(known))
    results = [_batch_item(outcome, known.get(outcome.id)) for outcome in written.outcome]
    headers = {REPLAYED: "true"} if written.replayed else {}
    return Response(BatchWritten(results=results), status_code=200, headers=headers)


def _batch_item(outcome: WriteOutcome, memory: Memory | None) -> BatchItem:
    return BatchItem(
        status=outcome.status,
        id=outcome.id,
        version=memory and memory.version,
        deduplicated=outcome.deduplicated,
        index_state=memory and memory.index_state,
    )


@post("/v1/memories/search", status_code=200, request_max_body_size=SINGLE_BODY_BYTES)
async def search_memories(
    request: ServiceRequest,
    data: JSONBody[SearchRequest],
    searcher: NamedDependency[Searcher],
    short_term: NamedDependency[ShortTerm],
) -> SearchResponse:
    """Recall the memories that a query is about, and what a session holds where it asks for that."""
    principal = request.require("memories:read", bound=True)
    check_recall(data)
    session = data.include_short_term
    if session is None:
        return await searcher.search(principal, data)
    # The session first: what becomes a memory in between is then in both, and not in neither.
    held = await short_term.read(principal, session, pointer="/include_short_term/")
    found = await searcher.search(principal, data)
    recalled = {memory.id for memory in found.results}
    found.short_term = [its for its in held if its.id not in recalled]
    return found


@get("/v1/memories")
async def list_memories(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    generations: NamedDependency[Generations],
    user_id: FromQuery[str | None] = None,
    agent_id: FromQuery[str | None] = None,
    session_id: FromQuery[str | None] = None,
    memory_type: FromQuery[str | None] = None,
    external_id: FromQuery[str | None] = None,
    actor: FromQuery[str | None] = None,
    source: FromQuery[str | None] = None,
    scene: FromQuery[str | None] = None,
    sort: FromQuery[Sort] = "-created_at",
    limit: PageSize = 100,
    cursor: FromQuery[str | None] = None,
    valid_at: FromQuery[str | None] = None,
) -> MemoryPage:
    """Active memories whose fields have these values."""
    principal = request.require("memories:read", bound=True)
    where = query_filter(
        {
            "user_id": user_id,
            "agent_id": agent_id,
            "session_id": session_id,
            "memory_type": memory_type,
            "external_id": external_id,
            "actor": actor,
            "source": source,
            "scene": scene,
        }
    )
    page = ListRequest(sort=sort, limit=limit, cursor=cursor)
    held = valid_at_of(query_moment(valid_at), pointer="valid_at")
    policy = await generations.policy(principal.tenant)
    where = narrowed(principal, where, require_user=policy.require_user, pointer="")
    return await _page(principal.tenant, database, where=where, page=page, valid_at=held, pointer="cursor")


@post("/v1/memories/list", status_code=200, request_max_body_size=SINGLE_BODY_BYTES)
async def list_matching_memories(
    request: ServiceRequest,
    data: JSONBody[ListRequest],
    *,
    database: NamedDependency[Database],
    generations: NamedDependency[Generations],
) -> MemoryPage:
    """Memories that match a filter of any kind: active ones, or those that are hidden in one way."""
    principal = request.require("memories:read", bound=True)
    policy = await generations.policy(principal.tenant)
    where = narrowed(principal, parse_filter(data.filters), require_user=policy.require_user)
    # Whoever looks for what is hidden wants to bring it back, whenever it held.
    asked = "any" if data.valid_at is None and data.state != "active" else data.valid_at
    held = valid_at_of(asked, pointer="/valid_at")
    return await _page(principal.tenant, database, where=where, page=data, valid_at=held, pointer="/cursor")


async def _page(
    tenant: TenantId, database: Database, *, where: Filter, page: ListRequest, valid_at: ValidAt, pointer: str
) -> MemoryPage:
    cursors = Cursors(where, page.sort, state=page.state, valid_at=valid_at)
    order = lists.Order.of(page.sort)
    after = cursors.place_of(page.cursor, pointer=pointer)
    async with database.tenant(tenant) as connection:
        # One more than asked for says whether there is a next page.
        found = await lists.list_page(
            tenant,
            connection,
            where=where,
            order=order,
            after=after,
            limit=page.limit + 1,
            state=page.state,
            valid_at=valid_at,
        )
    results = found[: page.limit]
    last = cursors.cursor_of(order.place_of(results[-1])) if len(found) > page.limit else None
    return MemoryPage(results=results, next_cursor=last)


@get("/v1/memories/{memory_id:uuid}")
async def get_memory(
    request: ServiceRequest, memory_id: FromPath[UUID], database: NamedDependency[Database]
) -> Response[Memory]:
    """One memory."""
    principal = request.require("memories:read", bound=True)
    async with database.tenant(principal.tenant) as connection:
        found = await memories.read(principal.tenant, connection, [memory_id])
    memory = found.get(memory_id)
    if memory is None or not sees(principal, memory):
        raise NotFound("there is no memory of this id")
    return Response(memory, headers={"ETag": etag_of(memory.version)})


@patch("/v1/memories/{memory_id:uuid}", request_max_body_size=SINGLE_BODY_BYTES)
async def patch_memory(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    data: JSONBody[MemoryPatch],
    patcher: NamedDependency[Patcher],
) -> Response[Memory]:
    """Change the named fields of one memory."""
    principal = request.require("memories:write", bound=True)
    check_patch(data)
    fingerprint = await fingerprint_of(request)
    patched = await patcher.patch(
        principal, memory_id, patch=data, if_match=if_match_of(request), fingerprint=fingerprint
    )
    memory = patched.outcome
    return Response(memory, headers={"ETag": etag_of(memory.version), **patched.headers})


@delete("/v1/memories/{memory_id:uuid}")
async def delete_memory(
    request: ServiceRequest, memory_id: FromPath[UUID], patcher: NamedDependency[Patcher]
) -> Response[None]:
    """Delete one memory for good."""
    principal = request.require("memories:write", bound=True)
    fingerprint = await fingerprint_of(request)
    deleted = await patcher.delete(principal, memory_id, if_match=if_match_of(request), fingerprint=fingerprint)
    return Response(None, status_code=204, headers=deleted.headers)


ROUTES: Final = [
    write_memory,
    write_batch,
    search_memories,
    list_memories,
    list_matching_memories,
    get_memory,
    patch_memory,
    delete_memory,
]

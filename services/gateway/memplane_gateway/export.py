"""Hands a tenant all that it has, line by line, without ever holding more than a page of it."""

import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast
from uuid import UUID

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.export import (
    FORMAT,
    FORMAT_VERSION,
    ExportPageEnd,
    ExportPageRequest,
    ExportPlace,
    ExportTenant,
    HeaderLine,
    Line,
    PolicyLine,
    TrailerLine,
)
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.errors import Fault, InvalidRequest, MemplaneError, invalid
from memplane_core.domain.filters import parse_filter
from memplane_core.domain.memory import State
from memplane_core.domain.tenancy import Principal
from memplane_core.storage.generations import active_generation
from memplane_core.storage.policies import policy_of
from memplane_core.storage.session import Database
from memplane_core.storage.tenants import require_tenant
from memplane_core.web.bodies import decode_json
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import KeyDirectory, presented_secret
from memplane_gateway.deeds import deed_of, tell
from memplane_gateway.documents import NDJSON, answer, problems
from memplane_gateway.export_pieces import ask
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.lists import EntityQuery
from memplane_gateway.queries import refuse_unknown

_FILTER_BYTES: Final = 8192
_PATIENCE_S: Final = 30.0

FilterQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=2, max_length=_FILTER_BYTES, description="Only memories that match: a filter as JSON, as in a list."
    ),
]
HistoryQuery = Annotated[bool, QueryParameter(description="Whether each memory is followed by its history.")]
AfterQuery = Annotated[
    UUID | None,
    QueryParameter(
        description="Go on after the memory of this id, the last one that came whole: the next one's line, or the "
        "trailer, stands behind it. Observations, which come before all memories, are not given again."
    ),
]


@get(
    "/v1/export",
    operation_id="exportMemories",
    summary="Export all that you have",
    tags=["Tenant"],
    responses={
        200: answer(
            cast("type[Any]", Line),
            "One JSON object a line, the kind of each in `kind`: `header`, `policy`, each `observation`, then each "
            "`memory` followed by its `history`, and at last `trailer`. Without a trailer it is not whole.",
            media_type=NDJSON,
        ),
        **problems(401, 403, 404, 422, 503, 504),
    },
)
async def export_memories(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    forwarder: NamedDependency[Forwarder],
    directory: NamedDependency[KeyDirectory],
    user_id: EntityQuery = None,
    filters: FilterQuery = None,
    history: HistoryQuery = True,
    after: AfterQuery = None,
) -> Stream:
    """Your policy, what your sessions hold, and your memories in every state, streamed in the order of their ids.

    What is changed meanwhile is given as it is when its turn comes; each memory that is there from the first line to
    the last is in it exactly once. With `user_id` or `filters` it is of those memories alone, without the policy.

    Needs the scope `memories:admin`.
    """
    principal = request.require("memories:admin")
    refuse_unknown(request, ("user_id", "filters", "history", "after"))
    where = _filters(user_id, filters)
    export = _Export(request, forwarder, directory, ask=ExportPageRequest(filters=where or {}, history=history))
    opening = await _opening(principal, database, where=where, history=history, after=after)
    # Before anything is sent, so that what is wrong can still be told.
    first = await export.page(None if after is None else ExportPlace(id=after))
    async with database.tenant(principal.tenant) as connection:
        details = {"filtered": where is not None, "history": history, "resumed": after is not None}
        deed = deed_of(request.scope)
        await tell(connection, deed, tenant=principal.tenant, target=str(principal.tenant), details=details)
    return Stream(export.lines(opening, first), media_type=NDJSON)


def _filters(user_id: str | None, filters: str | None) -> dict[str, Any] | None:
    """What is asked for as one filter; None for everything."""
    if user_id is not None and "\0" in user_id:
        raise invalid("user_id", "must not hold NUL")
    named: dict[str, Any] = {} if user_id is None else {"user_id": user_id}
    if filters is None:
        return named or None
    try:
        given = decode_json(filters.encode(), dict[str, Any])
        parse_filter(given)
    except MemplaneError as error:
        faults = [Fault(f"filters{fault.pointer.removeprefix('/filters')}", fault.detail) for fault in error.faults]
        raise InvalidRequest(f"filters: {error.detail}", faults=faults or [Fault("filters", error.detail)]) from None
    return ({"AND": [given, named]} if named else given) or None


async def _opening(
    principal: Principal, database: Database, *, where: dict[str, Any] | None, history: bool, after: UUID | None
) -> list[msgspec.Struct]:
    """The lines before the first memory."""
    async with database.tenant(principal.tenant) as connection:
        tenant = await require_tenant(principal.tenant, connection)
        generation = await active_generation(principal.tenant, connection)
        policy = await policy_of(principal.tenant, connection)
    header = HeaderLine(
        format=FORMAT,
        version=FORMAT_VERSION,
        tenant=ExportTenant(id=tenant.id, name=tenant.name),
        exported_at=datetime.now(UTC),
        model=generation.model,
        dim=generation.dim,
        where=where,
        history=history,
        after=after,
    )
    return [header, PolicyLine(policy=PolicyPatch(**msgspec.structs.asdict(policy)))] if where is None else [header]


class _Page(msgspec.Struct, frozen=True):
    end: ExportPageEnd
    lines: bytes


class _Export:
    """One export, page by page."""

    def __init__(
        self, request: ServiceRequest, forwarder: Forwarder, directory: KeyDirectory, *, ask: ExportPageRequest
    ) -> None:
        self._request = request
        self._forwarder = forwarder
        self._directory = directory
        self._secret = presented_secret(request.headers)
        self._ask = ask

    async def page(self, place: ExportPlace | None, *, patience_s: float = 0.0) -> _Page:
        """The page after `place`.

        Raises:
            Unauthorized: The key has been revoked, or has expired.
            MemplaneError: The retrieval service refuses, or is away.
        """
        await self._directory.identify(self._secret)
        asked = msgspec.json.encode(msgspec.structs.replace(self._ask, place=place))
        body = await ask(self._forwarder, self._request, path="/v1/export/page", body=asked, patience_s=patience_s)
        end, _, lines = body.partition(b"\n")
        return _Page(msgspec.json.decode(end, type=ExportPageEnd), lines)

    async def lines(self, opening: Sequence[msgspec.Struct], page: _Page) -> AsyncGenerator[bytes]:
        """The whole of it, in pieces that end where lines end."""
        states: Counter[State] = Counter()
        history = observations = 0
        everything, records = hashlib.sha256(), hashlib.sha256()
        piece = msgspec.json.Encoder().encode_lines(opening)
        everything.update(piece)
        yield piece
        while True:
            everything.update(page.lines)
            records.update(page.lines)
            states.update(page.end.states)
            history += page.end.history
            observations += page.end.observations
            if page.lines:
                yield page.lines
            if page.end.place is None:
                break
            page = await self.page(page.end.place, patience_s=_PATIENCE_S)
        trailer = TrailerLine(
            memories=states.total(),
            history=history,
            states=dict(states),
            records_sha256=records.hexdigest(),
            sha256=everything.hexdigest(),
            observations=observations,
        )
        yield msgspec.json.encode(trailer) + b"\n"


EXPORT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (export_memories,)

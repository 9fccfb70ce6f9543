"""Hands out a tenant's memories page by page, as the lines of an export."""

from collections import Counter
from typing import Final

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from memplane_core.contracts.export import ExportPageEnd, ExportPageRequest, MemoryLine, ObservationLine
from memplane_core.domain.filters import EVERYTHING, parse_filter
from memplane_core.domain.memory import State
from memplane_core.storage.export import export_page
from memplane_core.storage.session import Database
from memplane_core.web.request import ServiceRequest

NDJSON: Final = "application/x-ndjson"

_OWNERS: Final = ("user_id", "agent_id")
_ENCODER: Final = msgspec.json.Encoder()


@post("/v1/export/page", status_code=200)
async def export_memories_page(
    request: ServiceRequest, data: JSONBody[ExportPageRequest], database: NamedDependency[Database]
) -> Response[bytes]:
    """An `ExportPageEnd`, and then the lines of the page: one read of a megabyte or so."""
    principal = request.require("memories:admin")
    where = parse_filter(data.filters)
    # A part is handed to somebody: it must not tell whose the memories were before.
    owned_by = () if where == EVERYTHING else _OWNERS
    async with database.tenant(principal.tenant) as connection:
        page = await export_page(
            principal.tenant, connection, where=where, place=data.place, history=data.history, owned_by=owned_by
        )
    states: Counter[State] = Counter(line.state for line in page.lines if isinstance(line, MemoryLine))
    held = sum(isinstance(line, ObservationLine) for line in page.lines)
    history = len(page.lines) - states.total() - held
    end = ExportPageEnd(place=page.place, states=dict(states), history=history, observations=held)
    return Response(_ENCODER.encode_lines([end, *page.lines]), media_type=NDJSON)


EXPORT_ROUTES: Final = [export_memories_page]

"""Takes imports part by part, as the gateway cuts them."""

from typing import Annotated, Final

from litestar import post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from memplane_core.contracts.export import LINE_BYTES
from memplane_core.contracts.imports import PART_BYTES, ImportPartDone, ImportPlace, OnConflict
from memplane_core.web.bodies import decode_json
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.importer import Importer

Where = Annotated[str, QueryParameter(name="place")]


@post("/v1/import/part", status_code=200, request_max_body_size=PART_BYTES + LINE_BYTES + 1024)
async def import_part(
    request: ServiceRequest,
    importer: NamedDependency[Importer],
    *,
    where: Where,
    on_conflict: FromQuery[OnConflict] = "skip",
    dry_run: FromQuery[bool] = False,
) -> ImportPartDone:
    """Store the lines of a part up to the first that is wrong."""
    principal = request.require("memories:admin")
    place = decode_json(where.encode(), ImportPlace)
    return await importer.store(principal, await request.body(), place=place, on_conflict=on_conflict, dry_run=dry_run)


IMPORT_ROUTES: Final = [import_part]

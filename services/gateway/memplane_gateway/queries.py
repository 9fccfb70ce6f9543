"""Query strings: what no route asks for is a mistake of the caller's that must not pass in silence."""

from collections.abc import Collection
from uuid import UUID

from memplane_core.domain.errors import Fault, InvalidRequest, invalid
from memplane_core.web.request import ServiceRequest


def refuse_unknown(request: ServiceRequest, known: Collection[str]) -> None:
    """Raise InvalidRequest naming each parameter that is not `known`, or is given twice."""
    names = [name for name, _ in request.query_params.multi_items()]
    faults = [Fault(name, "is not a parameter of this route") for name in dict.fromkeys(names) if name not in known]
    faults += [Fault(name, "is given more than once") for name in known if names.count(name) > 1]
    if faults:
        raise InvalidRequest("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults), faults=faults)


def unknown_cursor() -> InvalidRequest:
    """What is raised for a cursor that none of our pages has given."""
    return invalid("cursor", "is none that this service has given out")


def id_of(cursor: str | None) -> UUID | None:
    """The id that a cursor of a list by ids continues after. Raises InvalidRequest for one that we did not make."""
    if cursor is None:
        return None
    try:
        return UUID(hex=cursor)
    except ValueError:
        raise unknown_cursor() from None

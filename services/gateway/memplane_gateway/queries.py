"""Query strings: what no route asks for is a mistake of the caller's that must not pass in silence."""

from collections.abc import Collection

from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.web.request import ServiceRequest


def refuse_unknown(request: ServiceRequest, known: Collection[str]) -> None:
    """Raise InvalidRequest naming each parameter that is not `known`, or is given twice."""
    names = [name for name, _ in request.query_params.multi_items()]
    faults = [Fault(name, "is not a parameter of this route") for name in dict.fromkeys(names) if name not in known]
    faults += [Fault(name, "is given more than once") for name in known if names.count(name) > 1]
    if faults:
        raise InvalidRequest("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults), faults=faults)

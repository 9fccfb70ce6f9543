"""What each route asks of a key: the one table of scopes and rate classes. A test holds it against the routes."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from memplane_core.contracts.limits import RateClass
from memplane_core.domain.tenancy import Scope


class Access(msgspec.Struct, frozen=True):
    """What a route asks for.

    Attributes:
        rate: Whose rate it is counted against.
        scope: What the key must have; None: any key of the tenant.
        metered: As what it is counted in the tenant's usage, where it succeeds.
        streamed: Its body may be of any length, and is never held as a whole.
    """

    rate: RateClass
    scope: Scope | None
    metered: Literal["write", "search"] | None = None
    streamed: bool = False


_WRITE: Final = Access("write", "memories:write", "write")
_READ: Final = Access("search", "memories:read")
_SEARCH: Final = Access("search", "memories:read", "search")
_ANY: Final = Access("search", None)
_JOB: Final = Access("admin", "memories:admin")
_IMPORT: Final = Access("admin", "memories:admin", streamed=True)
_TENANT: Final = Access("admin", "tenant:admin")

_ROUTES: Final[Mapping[tuple[str, str], Access]] = {
    ("POST", "/v1/memories"): _WRITE,
    ("POST", "/v1/memories/batch"): _WRITE,
    ("POST", "/v1/memories/search"): _SEARCH,
    ("POST", "/v1/context"): _SEARCH,
    ("POST", "/v1/memories/why"): _SEARCH,
    ("GET", "/v1/memories"): _READ,
    ("POST", "/v1/memories/list"): _READ,
    ("GET", "/v1/memories/{memory_id}"): _READ,
    ("GET", "/v1/memories/{memory_id}/history"): _READ,
    ("GET", "/v1/entities"): _READ,
    ("POST", "/v1/observations"): _WRITE,
    ("POST", "/v1/observations/batch"): _WRITE,
    ("GET", "/v1/observations"): _READ,
    ("DELETE", "/v1/observations/{observation_id}"): _WRITE,
    ("POST", "/v1/sessions/end"): _WRITE,
    ("PATCH", "/v1/memories/{memory_id}"): _WRITE,
    ("DELETE", "/v1/memories/{memory_id}"): _WRITE,
    ("POST", "/v1/memories/{memory_id}/forget"): _WRITE,
    ("POST", "/v1/memories/{memory_id}/restore"): _WRITE,
    ("POST", "/v1/memories/{memory_id}/feedback"): _WRITE,
    ("POST", "/v1/memories/forget"): _WRITE,
    ("POST", "/v1/memories/merge"): _WRITE,
    ("POST", "/v1/memories/merge/undo"): _WRITE,
    ("POST", "/v1/jobs"): _JOB,
    ("GET", "/v1/jobs"): _JOB,
    ("GET", "/v1/jobs/{job_id}"): _JOB,
    ("POST", "/v1/jobs/{job_id}/cancel"): _JOB,
    ("GET", "/v1/export"): _JOB,
    ("POST", "/v1/import"): _IMPORT,
    ("POST", "/v1/erasures"): _JOB,
    ("GET", "/v1/erasures"): _JOB,
    ("GET", "/v1/erasures/{erasure_id}"): _JOB,
    ("POST", "/v1/keys"): _TENANT,
    ("GET", "/v1/keys"): _TENANT,
    ("DELETE", "/v1/keys/{key_id}"): _TENANT,
    ("POST", "/v1/keys/{key_id}/rotate"): _TENANT,
    ("GET", "/v1/policy"): _TENANT,
    ("PATCH", "/v1/policy"): _TENANT,
    ("GET", "/v1/audit"): _TENANT,
    ("GET", "/v1/usage"): _ANY,
    ("GET", "/v1/whoami"): _ANY,
}
"""By method and path template. Public routes ask for nothing, and `/admin` for another kind of key."""


def access_of(method: str, path_template: str) -> Access | None:
    """What the route asks of a key; None for a route that the table does not name."""
    return _ROUTES.get((method, path_template))


def named_routes() -> frozenset[tuple[str, str]]:
    """All that the table names."""
    return frozenset(_ROUTES)

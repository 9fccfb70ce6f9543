"""Errors a caller can act on. Each carries its HTTP status and a stable code; `web.problems` renders them."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request.

    Attributes:
        pointer: RFC 6901 JSON pointer into the body, or the name of a query parameter or header.
        detail: What is wrong with it, in a sentence that says what would be right.
    """

    pointer: str
    detail: str


class MemplaneError(Exception):
    """Base of every error that is shown to a caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    def __init__(
        self, detail: str, *, faults: Sequence[Fault] = (), retry_after: int | None = None, **extra: object
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults)
        self.retry_after = retry_after
        self.extra = extra


class MalformedRequest(MemplaneError):
    """The body is not JSON at all, or a parameter cannot be read."""

    status = 400
    code = "malformed_request"
    title = "Malformed request"


class Unauthorized(MemplaneError):
    """No key, or one that is not valid: never says which."""

    status = 401
    code = "unauthorized"
    title = "Unauthorized"


class Forbidden(MemplaneError):
    """A valid key without the scope that the route needs."""

    status = 403
    code = "forbidden"
    title = "Forbidden"


class QuotaExceeded(Forbidden):
    """A quota is full: trying again is of no use. `extra` has its `quota`, its `limit` and what is `used` of it."""

    code = "quota_exceeded"
    title = "Quota exceeded"


class NotFound(MemplaneError):
    """Nothing of that id belongs to the caller."""

    status = 404
    code = "not_found"
    title = "Not found"


class RequestTimeout(MemplaneError):
    """The client did not send its request in time."""

    status = 408
    code = "request_timeout"
    title = "Request timeout"


class Conflict(MemplaneError):
    """The request is sound but something else holds the place it wants."""

    status = 409
    code = "conflict"
    title = "Conflict"


class DuplicateMemory(Conflict):
    """The change would make a memory equal to another active one; `extra["id"]` names it."""

    code = "duplicate_memory"
    title = "Duplicate memory"


class NoLanguageModel(Conflict):
    """It takes a language model, and the installation has none; says how to configure one."""

    code = "no_language_model"
    title = "No language model"

    def __init__(self) -> None:
        super().__init__(
            "no language model is configured: set MEMPLANE_LLM__URL and MEMPLANE_LLM__MODEL, and MEMPLANE_LLM__API_KEY"
            " where it takes one, for the gateway and the workers"
        )


class ErasureUnderWay(Conflict):
    """What is written about is being erased; `extra["id"]` names the erasure."""

    code = "erasure_under_way"
    title = "Erasure under way"


class IdempotencyInFlight(Conflict):
    """The same Idempotency-Key is being worked on right now."""

    code = "idempotency_in_flight"
    title = "Request in flight"


class ModelMismatch(Conflict):
    """The tenant's model makes other vectors by now than those stored; its memories have to be embedded anew."""

    code = "model_mismatch"
    title = "Model mismatch"


class PreconditionFailed(MemplaneError):
    """`If-Match` names another version than the stored one."""

    status = 412
    code = "precondition_failed"
    title = "Precondition failed"


class PayloadTooLarge(MemplaneError):
    """The body is larger than the service takes."""

    status = 413
    code = "payload_too_large"
    title = "Payload too large"


class UnsupportedMedia(MemplaneError):
    """The body is of another type or coding than the route takes."""

    status = 415
    code = "unsupported_media_type"
    title = "Unsupported media type"


class InvalidRequest(MemplaneError):
    """The body is JSON but breaks a rule; `faults` names each field."""

    status = 422
    code = "invalid_request"
    title = "Invalid request"


class IdempotencyMismatch(MemplaneError):
    """The Idempotency-Key was used before with another body."""

    status = 422
    code = "idempotency_mismatch"
    title = "Idempotency key reused"


class RateLimited(MemplaneError):
    """Too many requests in too short a time; the next may come after `retry_after` seconds."""

    status = 429
    code = "rate_limited"
    title = "Too many requests"


class Unavailable(MemplaneError):
    """A part this request cannot do without is away; try again after `retry_after` seconds."""

    status = 503
    code = "unavailable"
    title = "Temporarily unavailable"


class EmbeddingUnavailable(Unavailable):
    """The embedding service did not answer in time."""

    code = "embedding_unavailable"


class IndexUnavailable(Unavailable):
    """Milvus did not answer, or the collection is not loaded yet."""

    code = "index_unavailable"


class IndexMismatch(IndexUnavailable):
    """The collection was made for vectors of another length than the generation has. No retry helps: reindex."""

    code = "index_mismatch"


class UpstreamTimeout(MemplaneError):
    """The service behind the gateway took longer than the request may."""

    status = 504
    code = "upstream_timeout"
    title = "Upstream timeout"


def quota_exceeded(quota: str, *, limit: int, used: int, because: str = "") -> QuotaExceeded:
    """A `QuotaExceeded` that says how full the quota is, and why a request does not fit where it is not full."""
    detail = f"the quota {quota!r} is full: {used:,} of {limit:,} are used{because and '; '}{because}"
    return QuotaExceeded(detail, quota=quota, limit=limit, used=used)


def invalid(pointer: str, detail: str) -> InvalidRequest:
    """An `InvalidRequest` about one field."""
    return InvalidRequest(f"{pointer}: {detail}", faults=[Fault(pointer, detail)])

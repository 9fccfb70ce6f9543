"""What the error codes mean to a caller. A test holds this against the errors that the code can raise."""

from typing import Final

import msgspec


class Explained(msgspec.Struct, frozen=True):
    """One error code in plain words."""

    code: str
    status: int
    meaning: str
    remedy: str


PROBLEMS: Final[tuple[Explained, ...]] = (
    Explained(
        "malformed_request",
        400,
        "The body is not JSON, or the request cannot be read at all, or could be read in two ways.",
        "Check how the body is encoded. NaN, infinity and comments are not JSON. Send each header once.",
    ),
    Explained(
        "unauthorized",
        401,
        "There was no key, or it is mistyped, unknown, expired or revoked. The answer never says which.",
        "Send the key as Authorization: Bearer <key>. Admin routes take the admin key, all others an API key.",
    ),
    Explained(
        "forbidden",
        403,
        "The key is valid, and lacks the scope that the route needs.",
        "Use a key with the scope that detail names.",
    ),
    Explained(
        "quota_exceeded",
        403,
        "A quota of your tenant has no room for this. quota names it, limit is its size and used what is taken.",
        "Trying again is of no use: make room (delete or forget memories), wait for midnight UTC where it is "
        "tokens_a_day, or ask whoever runs this installation for more. GET /v1/usage shows all quotas.",
    ),
    Explained(
        "not_found",
        404,
        "There is no such route, or nothing of that id belongs to you.",
        "Check the id and the key. What belongs to another tenant is not found either.",
    ),
    Explained("method_not_allowed", 405, "The route exists and does not take this method.", "See Allow."),
    Explained(
        "request_timeout",
        408,
        "The body did not come in time.",
        "Send it again over a better connection, or in smaller pieces.",
    ),
    Explained(
        "conflict",
        409,
        "Something else holds the place that this would take, for example a name.",
        "Choose another, or use what is there.",
    ),
    Explained(
        "duplicate_memory",
        409,
        "The change would make two active memories equal. id names the other one.",
        "Update or delete the other one, or leave this one as it is.",
    ),
    Explained(
        "erasure_under_way",
        409,
        "The user or agent that the memory is or was to be about is being erased. id names the erasure.",
        "GET /v1/erasures/{id} tells how far it is; once it is done the subject can be written about anew.",
    ),
    Explained(
        "no_language_model",
        409,
        "A language model is needed, and this installation has none.",
        "Whoever runs it: MEMPLANE_LLM__URL and MEMPLANE_LLM__MODEL, for the gateway and the workers.",
    ),
    Explained(
        "idempotency_in_flight",
        409,
        "A request with the same Idempotency-Key is being worked on right now.",
        "Wait a moment and repeat it: the answer will be that of the first.",
    ),
    Explained(
        "model_mismatch",
        409,
        "The tenant's model makes vectors of another length by now than those stored. Writes are kept, and searches by "
        "meaning have to wait.",
        "Whoever runs this installation: memplane reindex --tenant NAME, which embeds the tenant's memories anew.",
    ),
    Explained(
        "precondition_failed",
        412,
        "If-Match names another version than the one stored: somebody changed the memory in between.",
        "Get it again, decide again, and send the new ETag.",
    ),
    Explained(
        "payload_too_large",
        413,
        "The body is larger than the route takes (256 KiB, or 48 MiB for a batch), or than your limits allow.",
        "Split the batch, or shorten the content.",
    ),
    Explained(
        "unsupported_media_type",
        415,
        "The body does not say that it is JSON in UTF-8, or is compressed.",
        "Send Content-Type: application/json, and no Content-Encoding.",
    ),
    Explained(
        "invalid_request",
        422,
        "The body or a parameter breaks a rule.",
        "errors names each field by a JSON pointer, or a parameter by its name, and says what would be right.",
    ),
    Explained(
        "idempotency_mismatch",
        422,
        "The Idempotency-Key was used before with another body.",
        "Use a new key for a new request.",
    ),
    Explained(
        "rate_limited",
        429,
        "Too many requests came within too short a time, from all keys of your tenant or from this one.",
        "Wait Retry-After seconds. RateLimit-Policy tells the limits, RateLimit what is left of them.",
    ),
    Explained(
        "internal_error",
        500,
        "Something went wrong on our side.",
        "Report request_id: it finds the cause in the logs.",
    ),
    Explained(
        "unavailable",
        503,
        "A part that the request cannot do without is away.",
        "Try again after Retry-After seconds. Repeat a write with the same Idempotency-Key.",
    ),
    Explained(
        "embedding_unavailable",
        503,
        "The embedding service is away, and the request cannot do without it.",
        "Try again after Retry-After seconds.",
    ),
    Explained(
        "index_unavailable",
        503,
        "The vector index is away, and the request cannot do without it.",
        "Try again after Retry-After seconds.",
    ),
    Explained(
        "index_mismatch",
        503,
        "The tenant's collection was made for vectors of another length than its model gives.",
        "Tell whoever runs this installation: searches are answered without the index meanwhile.",
    ),
    Explained(
        "upstream_timeout",
        504,
        "The answer took longer than a request may. A write may still be carried out.",
        "Repeat it with the same Idempotency-Key; ask for less at a time.",
    ),
)

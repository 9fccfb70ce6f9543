"""How routes say what they answer, for the OpenAPI document."""

from http import HTTPStatus
from typing import Any, Final

from litestar.openapi import ResponseSpec

from memplane_core.web.problems import PROBLEM_MEDIA_TYPE, Problem

_WHY = {
    400: "The body is not JSON.",
    401: "No key, or one that is not valid.",
    403: "The key may not do this, or a quota of its tenant is full.",
    404: "Nothing of that id belongs to the caller.",
    408: "The body did not come in time.",
    409: "Something else holds the place that this would take.",
    412: "`If-Match` names another version.",
    413: "The body is larger than this route takes.",
    415: "The body is not JSON in UTF-8, or is compressed.",
    429: "Too many requests in too short a time; the next may come after `Retry-After` seconds.",
    422: "A field breaks a rule; `errors` names it.",
    503: "A part that this cannot do without is away; try again after `Retry-After` seconds.",
    504: "The answer took longer than a request may.",
}


NDJSON: Final = "application/x-ndjson"


def answer(body: type[Any] | None, description: str, *, media_type: str = "application/json") -> ResponseSpec:
    """A good answer with a body of that type, or with none."""
    return ResponseSpec(body, generate_examples=False, description=description, media_type=media_type)


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors that a route may answer with."""
    return {
        status: ResponseSpec(
            Problem,
            generate_examples=False,
            description=_WHY.get(status, HTTPStatus(status).phrase),
            media_type=PROBLEM_MEDIA_TYPE,
        )
        for status in statuses
    }

"""The OpenAPI document: Litestar's view of the routes, with what it leaves out put right.

Bodies are described by msgspec, which checks them too: what the document says is what the service does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from litestar import Litestar
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme, Tag
from litestar.types import ControllerRouterHandler

from memplane_core.web.problems import PROBLEM_MEDIA_TYPE
from memplane_core.web.request import ServiceRequest
from memplane_gateway import examples
from memplane_gateway.documents import problems
from memplane_gateway.limits import NO_POLICY
from memplane_gateway.route_access import access_of
from memplane_gateway.schemas import Json, body_schemas
from memplane_gateway.system import VERSION

_DESCRIPTION: Final = """\
Long-term memory for AI agents: write experiences, recall them ranked by meaning, freshness, importance and proven
usefulness.

Send your key as `Authorization: Bearer <key>`. Every error is an `application/problem+json` document with a stable
`code`; [what each means](/docs/problems). Every answer carries `X-Request-Id`: give it when asking for help.
"""
_CONFIG: Final = OpenAPIConfig(
    title="Memplane",
    version=VERSION,
    description=_DESCRIPTION,
    use_handler_docstrings=True,
    tags=[
        Tag("Memories", description="Write, recall and keep up memories."),
        Tag("Short-term memory", description="What sessions observe, until it becomes memories."),
        Tag("Jobs", description="Work in the background."),
        Tag("Erasure", description="Erase a person for good, with a receipt."),
        Tag("Tenant", description="Your tenant's keys and policy."),
        Tag("System", description="About the service and your key."),
        Tag(
            "Administration",
            description="Tenants, their keys, jobs and collections, for whoever operates the installation.",
        ),
    ],
    components=Components(
        security_schemes={
            "apiKey": SecurityScheme(
                "http",
                scheme="bearer",
                description="`Authorization: Bearer mp_live_...`. What an operation lists beside it is the scope that "
                "the key needs.",
            ),
            "apiKeyHeader": SecurityScheme("apiKey", name="X-API-Key", security_scheme_in="header"),
            "adminKey": SecurityScheme("http", scheme="bearer", description="The installation's admin key."),
        }
    ),
)
_ETAG: Final[Json] = {
    "description": "Names this version of the memory; send it back as `If-Match`.",
    "schema": {"type": "string"},
}
_REPLAYED: Final[Json] = {
    "description": "`true` where this is the answer to an earlier request with the same `Idempotency-Key`.",
    "schema": {"type": "string", "enum": ["true"]},
}
_LOCATION: Final[Json] = {"description": "Path of what tells how it goes.", "schema": {"type": "string"}}
_RETRY_AFTER: Final[Json] = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
_RATES: Final[Json] = {
    "RateLimit-Policy": {
        "description": "The limits that this request was counted against: `q` requests in any `w` seconds each. "
        f"`{NO_POLICY}` where there is none.",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "What is left of each: `r` requests at once, and one more after `t` seconds.",
        "schema": {"type": "string"},
    },
}
_READS_ONLY: Final = "The key only reads."
_ONE_MEMORY: Final = frozenset(("Memory", "WrittenMemory"))
_REQUIRED: Final = frozenset((("deleteTenant", "name"),))
"""Parameters that have no default; that they are missing is told by their routes, and not by the framework."""

_PUBLIC: Final = frozenset(("getVersion",))


def describe(routes: Sequence[ControllerRouterHandler], *, dependencies: Sequence[str]) -> bytes:
    """The document of `routes` as JSON.

    Args:
        routes: All that are public.
        dependencies: Names of what is injected into them, which is no parameter of the API.
    """
    app = Litestar(
        list(routes),
        dependencies={name: Provide(_stand_in(name), sync_to_thread=False) for name in dependencies},
        request_class=ServiceRequest,
        openapi_config=_CONFIG,
    )
    document = cast("Json", msgspec.to_builtins(app.openapi_schema.to_schema(), str_keys=True))
    document["components"]["schemas"] = body_schemas(_bodies(routes))
    for method, path, operation in _operations(document):
        _secure(operation, method, path)
        if path.startswith("/admin/") and method != "get":
            operation["responses"]["403"] = {**operation["responses"]["401"], "description": _READS_ONLY}
        _set_parameters(operation)
        if operation["security"] != []:
            _set_limits(operation, rated=not path.startswith("/admin/"))
        _set_answers(operation)
        _set_examples(operation)
    return msgspec.json.encode(document)


def _bodies(routes: Iterable[ControllerRouterHandler]) -> list[Any]:
    """The types of all bodies that the routes take and answer with."""
    found: dict[str, Any] = {}
    for route in routes:
        assert isinstance(route, HTTPRouteHandler)
        bodies: list[Any] = [cast("Any", spec).data_container for spec in (route.responses or {}).values()]
        if route.parsed_data_field is not None:
            bodies.append(route.parsed_data_field.annotation)
        found |= {str(body): body for body in bodies if body is not None}
    return [found[name] for name in sorted(found)]


def _stand_in(name: str) -> Any:
    def provide() -> object:
        raise AssertionError(f"{name} is only described here")

    return provide


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Method, path and description of each."""
    paths = cast("Mapping[str, Mapping[str, Any]]", document["paths"])
    for path, item in paths.items():
        for method, operation in item.items():
            if method in ("get", "post", "patch", "delete", "put"):
                yield method, path, cast("Json", operation)


def _secure(operation: Json, method: str, path: str) -> None:
    """Which kind of key opens it, and with which scope."""
    if operation["operationId"] in _PUBLIC:
        operation["security"] = []
    elif path.startswith("/admin/"):
        operation["security"] = [{"adminKey": []}]
    else:
        access = access_of(method.upper(), path)
        scopes = [access.scope] if access is not None and access.scope is not None else []
        operation["security"] = [{"apiKey": scopes}, {"apiKeyHeader": scopes}]


def _set_parameters(operation: Json) -> None:
    """A parameter that may be left out is not one that may be null."""
    for parameter in cast("list[Json]", operation.get("parameters", [])):
        schema: Json = parameter["schema"]
        kinds = cast("list[Json]", schema.pop("oneOf", []))
        for kind in kinds:
            if kind.get("type") != "null":
                schema.update(kind)
        schema.pop("description", None)
        parameter.pop("allowEmptyValue", None)
        if (operation["operationId"], parameter["name"]) in _REQUIRED:
            parameter["required"] = True


def _set_limits(operation: Json, *, rated: bool) -> None:
    """Whatever a key asks for may be unreadable or too fast, and a body too slow, too long, or of another kind."""
    for status in (400, 408, 413, 415, 429):
        if status == 400 or (rated if status == 429 else "requestBody" in operation):
            spec = problems(status)[status]
            content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            operation["responses"].setdefault(str(status), {"description": spec.description, "content": content})


def _set_answers(operation: Json) -> None:
    answers = cast("dict[str, Json]", operation["responses"])
    replays = any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", []))
    if "204" in answers:
        answers.pop("200", None)
    for status, found in list(answers.items()):
        content = cast("dict[str, Json]", found.get("content", {}))
        if int(status) >= 400 and PROBLEM_MEDIA_TYPE not in content:
            del answers[status]  # Litestar's own idea of an error, which this service never sends
            continue
        headers: Json = dict(_RATES)
        schema = content.get("application/json", {}).get("schema", {})
        if _ref(schema) in _ONE_MEMORY:
            headers["ETag"] = _ETAG
        if replays and int(status) < 400:
            headers["Idempotency-Replayed"] = _REPLAYED
        if (
            status == "202"
            and _ref(schema) in ("JobView", "ErasureView")
            and not operation["operationId"].startswith("cancel")
        ):
            headers["Location"] = _LOCATION
        if status in ("429", "503"):
            headers["Retry-After"] = _RETRY_AFTER
        found["headers"] = headers
    operation["responses"] = dict(sorted(answers.items()))


def _ref(schema: Json) -> str:
    """Name of the schema that is referred to."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _set_examples(operation: Json) -> None:
    """Named examples: the documentation page cannot show a bare one that holds a null."""
    name: str = operation["operationId"]
    if name in examples.REQUESTS:
        [body] = operation["requestBody"]["content"].values()
        body["examples"] = {"request": {"value": examples.REQUESTS[name]}}
    for status, example in examples.ANSWERS.get(name, {}).items():
        body = operation["responses"][status]["content"]["application/json"]
        body["examples"] = {"answer": {"value": example}}

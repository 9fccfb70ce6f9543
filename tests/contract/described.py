"""The operations of an OpenAPI document, and requests that are right as the document says."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

Json = dict[str, Any]

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"

_METHODS: Final = frozenset(("get", "post", "put", "patch", "delete"))
_EXAMPLE_ID: Final = re.compile(r"01990000-0000-7000-8000-(?P<nth>\d{12})")
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class Unprepared(Exception):
    """The document has something that the tests cannot make up; says what to add, and where."""


class Operation(msgspec.Struct, frozen=True):
    """One method of one path.

    Attributes:
        path: With the names of its parameters in braces.
        described: As the document has it.
    """

    method: str
    path: str
    described: Json

    @property
    def id(self) -> str:
        """Its name in the document."""
        return str(self.described["operationId"])

    @property
    def public(self) -> bool:
        """Whether nobody is asked for a key."""
        return self.described["security"] == []

    @property
    def admin(self) -> bool:
        """Whether it is for the operator's keys."""
        return not self.public and "adminKey" in self.described["security"][0]

    @property
    def scope(self) -> str | None:
        """What a key of a tenant needs."""
        scopes: list[str] = [] if self.public else self.described["security"][0].get("apiKey", [])
        return scopes[0] if scopes else None

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET" or "Idempotency-Key" not in self.headers

    @property
    def ids(self) -> list[str]:
        """Names of the parameters in its path, in order."""
        return _PARAMETER.findall(self.path)

    @property
    def headers(self) -> list[str]:
        """Names of the headers that it takes."""
        return [one["name"] for one in self.described.get("parameters", []) if one["in"] == "header"]

    @property
    def answers(self) -> Mapping[int, Mapping[str, Json]]:
        """Its documented answers: by status, schemas by content type; none where there is no body."""
        return {
            int(status): {kind: content.get("schema", {}) for kind, content in answer.get("content", {}).items()}
            for status, answer in self.described["responses"].items()
        }

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Request(msgspec.Struct, frozen=True):
    """What is sent, but for the key.

    Attributes:
        path: With everything filled in.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes | None


Given = Mapping[str, Callable[[], str]]


class Document:
    """Reads the document."""

    def __init__(self, document: Json) -> None:
        self.schemas = cast("dict[str, Json]", document["components"]["schemas"])
        self.operations = [
            Operation(method.upper(), path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
            if method in _METHODS
        ]

    @property
    def of_tenants(self) -> list[Operation]:
        """What keys of tenants open."""
        return [operation for operation in self.operations if not operation.public and not operation.admin]

    @property
    def of_operators(self) -> list[Operation]:
        """What the operator's keys open."""
        return [operation for operation in self.operations if operation.admin]

    def find(self, method: str, path: str) -> Operation | None:
        """The operation of that method and path template."""
        return next((one for one in self.operations if (one.method, one.path) == (method, path)), None)

    def request(
        self, operation: Operation, ids: Mapping[str, str], *, memories: list[str], given: Given | None = None
    ) -> Request:
        """A request that is right.

        Args:
            operation: What is asked for.
            ids: Values of the parameters in the path.
            memories: Ids of memories that stand in for those of the examples.
            given: How a body is made that no example can be, by its content type; and a parameter, by its operation
                and its name.
        """
        path = _PARAMETER.sub(lambda match: quote(ids[match[1]], safe=""), operation.path)
        given = given or {}
        query: dict[str, str] = {}
        for one in operation.described.get("parameters", []):
            name = f"{operation.id} {one['name']}"
            if name in given:
                query[one["name"]] = given[name]()
            elif one["in"] == "query" and one.get("required"):
                query[one["name"]] = str(self.value(one["schema"], at=name))
        kind, content = self._body(operation, memories, given)
        headers = {} if kind is None else {"Content-Type": kind}
        return Request(operation.method, path, query, headers, content)

    def value(self, schema: Json, *, at: str) -> Any:
        """The plainest value that a schema allows. Raises Unprepared."""
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        choices = next((schema[name] for name in ("anyOf", "oneOf", "allOf") if name in schema), None)
        if choices is not None:
            return self.value(choices[0], at=at)
        given = [schema[name] for name in ("const", "default") if name in schema] + schema.get("enum", [])
        return given[0] if given else self._plain(schema, at=at)

    def _plain(self, schema: Json, *, at: str) -> Any:
        match schema.get("type"):
            case "object":
                fields = cast("Json", schema.get("properties", {}))
                return {name: self.value(fields[name], at=f"{at}/{name}") for name in schema.get("required", [])}
            case "array":
                return [self.value(schema["items"], at=at)] * int(schema.get("minItems", 0))
            case "string" if "format" not in schema:
                return "x" * max(1, int(schema.get("minLength", 1)))
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case _:
                raise Unprepared(f"{at}: no value can be made up for {schema}; give an example in gateway/examples.py")

    def _body(self, operation: Operation, memories: list[str], given: Given) -> tuple[str | None, bytes | None]:
        content = cast("dict[str, Json]", operation.described.get("requestBody", {}).get("content", {}))
        for kind, body in content.items():
            if kind in given:
                return kind, given[kind]().encode()
            examples = list(body.get("examples", {}).values())
            example = examples[0]["value"] if examples else self.value(body["schema"], at=str(operation))
            text = example if isinstance(example, str) and kind != JSON else msgspec.json.encode(example).decode()
            return kind, _EXAMPLE_ID.sub(lambda match: memories[int(match["nth"]) - 1], text).encode()
        return None, None


class Things:
    """What a tenant has, made as it is asked for: by the POST that belongs to the path that an id stands in.

    Args:
        document: Knows that POST.
        send: Sends a request with a key that may; its answer's JSON.
        known: Values that are there already, by parameter.
        others: How else a value is made, by parameter; and bodies that no example can be, by content type.

    Attributes:
        known: And all that were made, by parameter.
    """

    def __init__(
        self,
        document: Document,
        send: Callable[[Operation, Request], Json],
        *,
        known: Mapping[str, str],
        others: Mapping[str, Callable[[], str]],
    ) -> None:
        self._document = document
        self._send = send
        self.known = dict(known)
        self._others = others

    def ids(self, operation: Operation) -> dict[str, str]:
        """A value for each parameter in its path. Raises Unprepared."""
        return {name: self._id(name, operation.path) for name in operation.ids}

    def request(self, operation: Operation, ids: Mapping[str, str] | None = None) -> Request:
        """A request that is right, with `ids` in its path where they are given."""
        path = self.ids(operation) if ids is None else ids
        return self._document.request(operation, path, memories=self.memories(), given=self._others)

    def memories(self) -> list[str]:
        """Ids of two memories of the tenant."""
        for name in ("memory_id", "memory_id 2"):
            if name not in self.known:
                write = self._document.find("POST", "/v1/memories")
                assert write is not None
                request = self._document.request(write, {}, memories=[])
                body = msgspec.json.decode(request.content or b"", type=dict[str, Any])
                told = msgspec.structs.replace(
                    request, content=msgspec.json.encode(body | {"content": f"{body['content']} {name}"})
                )
                self.known[name] = str(self._send(write, told)["id"])
        return [self.known["memory_id"], self.known["memory_id 2"]]

    def _id(self, name: str, path: str) -> str:
        if name == "memory_id":
            return self.memories()[0]
        if name in self.known:
            return self.known[name]
        if name in self._others:
            self.known[name] = self._others[name]()
            return self.known[name]
        places = path[: path.index(f"/{{{name}}}")]
        make = self._document.find("POST", places)
        if make is None:
            raise Unprepared(
                f"{path}: nothing makes a {name}, for there is no POST {places}; say how to make one in"
                " `Installation._others` of tests/contract/conftest.py"
            )
        made = self._send(make, self.request(make))
        if "id" not in made:
            raise Unprepared(
                f"{path}: the answer of {make} has no `id`; say how to make a {name} in"
                " `Installation._others` of tests/contract/conftest.py"
            )
        self.known[name] = str(made["id"])
        return self.known[name]


def pages_of(operations: list[Operation]) -> Iterator[Operation]:
    """Those that answer page by page."""
    for operation in operations:
        names = {one["name"] for one in operation.described.get("parameters", []) if one["in"] == "query"}
        if {"limit", "cursor"} <= names:
            yield operation

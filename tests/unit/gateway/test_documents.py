"""The OpenAPI document, its examples, and the pages about it."""

import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from litestar.handlers import HTTPRouteHandler

from memplane_core.contracts import lists, memories
from memplane_core.contracts.checks import check_batch, check_patch, check_write
from memplane_core.domain.errors import MemplaneError
from memplane_core.domain.filters import FIELDS, operators_of, parse_filter
from memplane_gateway import examples
from memplane_gateway.app import ROUTES
from memplane_gateway.docs import problems_page
from memplane_gateway.openapi import describe
from memplane_gateway.problems import PROBLEMS

Json = dict[str, Any]

DEPENDENCIES = (
    "database",
    "directory",
    "embedder",
    "forwarder",
    "index_defaults",
    "key_desk",
    "keyring",
    "kinds",
    "limit_directory",
    "system_desk",
)


@pytest.fixture(scope="module")
def document() -> Json:
    return cast("Json", msgspec.json.decode(describe(ROUTES, dependencies=DEPENDENCIES)))


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in cast("Json", value).items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from references(inner)


class TestOpenApi:
    def test_every_public_route_is_described(self, document: Json) -> None:
        assert document["openapi"] == "3.1.0"
        assert {(method.upper(), path) for method, path, _ in operations(document)} == {
            ("POST", "/v1/memories"),
            ("GET", "/v1/memories"),
            ("POST", "/v1/memories/why"),
            ("POST", "/v1/observations"),
            ("POST", "/v1/observations/batch"),
            ("GET", "/v1/observations"),
            ("DELETE", "/v1/observations/{observation_id}"),
            ("POST", "/v1/sessions/end"),
            ("POST", "/v1/memories/batch"),
            ("POST", "/v1/memories/list"),
            ("POST", "/v1/memories/search"),
            ("POST", "/v1/context"),
            ("GET", "/v1/memories/{memory_id}"),
            ("PATCH", "/v1/memories/{memory_id}"),
            ("DELETE", "/v1/memories/{memory_id}"),
            ("POST", "/v1/memories/{memory_id}/forget"),
            ("POST", "/v1/memories/{memory_id}/restore"),
            ("POST", "/v1/memories/{memory_id}/feedback"),
            ("POST", "/v1/memories/forget"),
            ("POST", "/v1/memories/merge"),
            ("POST", "/v1/memories/merge/undo"),
            ("GET", "/v1/export"),
            ("POST", "/v1/import"),
            ("POST", "/v1/erasures"),
            ("GET", "/v1/erasures"),
            ("GET", "/v1/erasures/{erasure_id}"),
            ("DELETE", "/admin/v1/tenants/{tenant_id}"),
            ("GET", "/admin/v1/tenants/{tenant_id}/erasure"),
            ("GET", "/v1/version"),
            ("GET", "/v1/whoami"),
            ("POST", "/admin/v1/tenants"),
            ("GET", "/admin/v1/tenants"),
            ("GET", "/admin/v1/tenants/{tenant_id}"),
            ("POST", "/admin/v1/tenants/{tenant_id}/keys"),
            ("GET", "/admin/v1/tenants/{tenant_id}/keys"),
            ("DELETE", "/admin/v1/tenants/{tenant_id}/keys/{key_id}"),
            ("POST", "/admin/v1/tenants/{tenant_id}/keys/{key_id}/rotate"),
            ("GET", "/admin/v1/tenants/{tenant_id}/policy"),
            ("PATCH", "/admin/v1/tenants/{tenant_id}/policy"),
            ("POST", "/v1/keys"),
            ("GET", "/v1/keys"),
            ("DELETE", "/v1/keys/{key_id}"),
            ("POST", "/v1/keys/{key_id}/rotate"),
            ("GET", "/v1/policy"),
            ("GET", "/v1/usage"),
            ("GET", "/v1/entities"),
            ("GET", "/v1/memories/{memory_id}/history"),
            ("GET", "/v1/audit"),
            ("GET", "/admin/v1/audit"),
            ("GET", "/admin/v1/audit/export"),
            ("GET", "/admin/v1/system"),
            ("GET", "/admin/v1/tenants/{tenant_id}/usage"),
            ("GET", "/admin/v1/tenants/{tenant_id}/limits"),
            ("PUT", "/admin/v1/tenants/{tenant_id}/limits"),
            ("PATCH", "/admin/v1/tenants/{tenant_id}/limits"),
            ("GET", "/admin/v1/tenants/{tenant_id}/keys/{key_id}/limits"),
            ("PUT", "/admin/v1/tenants/{tenant_id}/keys/{key_id}/limits"),
            ("PATCH", "/admin/v1/tenants/{tenant_id}/keys/{key_id}/limits"),
            ("PATCH", "/v1/policy"),
            ("POST", "/v1/jobs"),
            ("GET", "/v1/jobs"),
            ("GET", "/v1/jobs/{job_id}"),
            ("POST", "/v1/jobs/{job_id}/cancel"),
            ("POST", "/admin/v1/tenants/{tenant_id}/jobs"),
            ("GET", "/admin/v1/tenants/{tenant_id}/jobs"),
            ("GET", "/admin/v1/tenants/{tenant_id}/jobs/{job_id}"),
            ("POST", "/admin/v1/tenants/{tenant_id}/jobs/{job_id}/cancel"),
            ("GET", "/admin/v1/tenants/{tenant_id}/generations"),
            ("POST", "/admin/v1/tenants/{tenant_id}/generations/{number}/activate"),
        }

    def test_operations_have_unique_ids_tags_and_summaries(self, document: Json) -> None:
        found = [operation for _, _, operation in operations(document)]
        assert len({operation["operationId"] for operation in found}) == len(found)
        tags = {tag["name"] for tag in document["tags"]}
        for operation in found:
            assert set(operation["tags"]) <= tags
            assert operation["summary"]
            assert operation["description"]

    def test_every_reference_leads_somewhere(self, document: Json) -> None:
        for reference in references(document):
            assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]

    def test_every_schema_is_used(self, document: Json) -> None:
        used = {reference.rpartition("/")[2] for reference in references(document)}
        assert set(document["components"]["schemas"]) == used

    def test_request_bodies_take_no_other_fields(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        for _, _, operation in operations(document):
            if "requestBody" in operation:
                names = [ref.rpartition("/")[2] for ref in references(operation["requestBody"])]
                assert [schemas[name]["additionalProperties"] for name in names] == [False] * max(1, len(names)), names
        assert schemas["Filter"]["additionalProperties"] is False
        assert schemas["Weights"]["additionalProperties"] is False

    def test_filters_are_described_by_what_they_are_read_by(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        for request in ("SearchRequest", "ListRequest"):
            assert list(references(schemas[request]["properties"]["filters"])) == ["#/components/schemas/Filter"]
        filter_ = schemas["Filter"]
        assert set(filter_["properties"]) == {*FIELDS, "AND", "OR", "NOT"}
        [pattern] = filter_["patternProperties"]
        assert re.search(pattern, "metadata.lang")
        [scene] = references(filter_["properties"]["scene"])
        asked = schemas[scene.rpartition("/")[2]]["anyOf"][-1]
        assert tuple(asked["properties"]) == operators_of("tags")

    def test_inherited_fields_are_explained_unless_a_type_says_it_of_its_own(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        search, why, context = (
            schemas[name]["properties"] for name in ("SearchRequest", "WhyRequest", "ContextRequest")
        )
        assert why["rerank"] == context["rerank"] == search["rerank"]
        assert "reranker" in search["rerank"]["description"]
        assert context["top_k"]["description"] == "Most memories that are considered."
        assert schemas["WrittenMemory"]["properties"]["version"]["description"] == "Grows with every change; the ETag."
        assert not any("Attributes:" in schema.get("description", "") for schema in schemas.values())

    def test_limits_are_those_that_are_checked(self, document: Json) -> None:
        write = document["components"]["schemas"]["MemoryWrite"]["properties"]
        assert (write["importance"]["minimum"], write["importance"]["maximum"]) == (0, 1)
        assert write["scene"]["maxItems"] == 32
        assert write["scene"]["items"]["maxLength"] == 128
        assert write["occurred_at"]["anyOf"][0] == {"type": "string", "format": "date-time"}

    def test_errors_are_problem_documents_and_nothing_else(self, document: Json) -> None:
        for method, path, operation in operations(document):
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
                    assert list(references(answer)) == ["#/components/schemas/Problem"]

    def test_each_operation_asks_for_the_right_key(self, document: Json) -> None:
        schemes = set(document["components"]["securitySchemes"])
        for _, path, operation in operations(document):
            asked = {name for alternative in operation["security"] for name in alternative}
            assert asked <= schemes
            if path.startswith("/admin/"):
                assert asked == {"adminKey"}
            elif path == "/v1/version":
                assert asked == set()
            else:
                assert asked == {"apiKey", "apiKeyHeader"}

    def test_headers_that_matter_are_described(self, document: Json) -> None:
        write = document["paths"]["/v1/memories"]["post"]
        assert [parameter["name"] for parameter in write["parameters"]] == ["Idempotency-Key"]
        rates = {"RateLimit", "RateLimit-Policy"}
        assert set(write["responses"]["201"]["headers"]) == {"ETag", "Idempotency-Replayed"} | rates
        assert set(write["responses"]["503"]["headers"]) == {"Retry-After"} | rates
        assert set(write["responses"]["429"]["headers"]) == {"Retry-After"} | rates
        update = document["paths"]["/v1/memories/{memory_id}"]["patch"]
        assert "If-Match" in [parameter["name"] for parameter in update["parameters"]]

    def test_every_write_takes_an_idempotency_key(self, document: Json) -> None:
        reads = {"searchMemories", "whyNotRecalled", "listMatchingMemories", "packContext"}
        for method, path, operation in operations(document):
            names = [parameter["name"] for parameter in operation.get("parameters", [])]
            if method == "get" or operation["operationId"] in reads:
                assert "Idempotency-Key" not in names, (method, path)
            else:
                assert "Idempotency-Key" in names, (method, path)
                assert {"409", "422"} <= operation["responses"].keys(), (method, path)
                good = [answer for status, answer in operation["responses"].items() if int(status) < 400]
                assert all("Idempotency-Replayed" in answer["headers"] for answer in good), (method, path)

    def test_a_deletion_answers_204_alone(self, document: Json) -> None:
        delete = document["paths"]["/v1/memories/{memory_id}"]["delete"]
        assert [status for status in delete["responses"] if int(status) < 400] == ["204"]

    def test_no_dependency_is_taken_for_a_parameter(self, document: Json) -> None:
        names = {p["name"] for _, _, operation in operations(document) for p in operation.get("parameters", [])}
        assert names == {
            "Idempotency-Key", "If-Match", "memory_id", "tenant_id", "key_id",
            "user_id", "agent_id", "session_id", "memory_type", "external_id", "actor", "source", "scene",
            "sort", "limit", "cursor", "job_id", "kind", "number", "from", "to", "action", "type",
            "filters", "history", "after", "erasure_id", "name", "on_conflict", "dry_run", "policy", "valid_at",
            "observation_id",
        }  # fmt: skip


class TestExamples:
    def test_every_request_body_has_one_that_its_route_takes(self) -> None:
        routes = [route for route in ROUTES if isinstance(route, HTTPRouteHandler)]
        for route in routes:
            if (field := route.parsed_data_field) is not None:
                name = str(route.operation_id)
                assert name in examples.REQUESTS, f"{name}: give an example of its body in gateway/examples.py"
                msgspec.convert(examples.REQUESTS[name], field.annotation)
        assert examples.REQUESTS.keys() <= {route.operation_id for route in routes}

    def test_request_examples_keep_to_what_no_type_says(self) -> None:
        def read(name: str, type_: Any) -> Any:
            return msgspec.convert(examples.REQUESTS[name], type_)

        check_write(read("writeMemory", memories.MemoryWrite))
        check_batch(read("writeMemories", memories.BatchWrite))
        check_patch(read("updateMemory", memories.MemoryPatch))
        parse_filter(read("searchMemories", memories.SearchRequest).filters)
        parse_filter(read("listMatchingMemories", lists.ListRequest).filters)

    def test_answer_examples_have_exactly_the_fields_of_answers(self) -> None:
        for name, status, type_ in (
            ("writeMemory", "201", memories.WrittenMemory),
            ("writeMemories", "200", memories.BatchWritten),
            ("searchMemories", "200", memories.SearchResponse),
            ("listMatchingMemories", "200", memories.MemoryPage),
        ):
            example = examples.ANSWERS[name][status]
            read = msgspec.convert(example, type_)
            assert msgspec.to_builtins(read).keys() == example.keys()


def error_classes(base: type[MemplaneError] = MemplaneError) -> Iterator[type[MemplaneError]]:
    yield base
    for inner in base.__subclasses__():
        yield from error_classes(inner)


class TestProblemsPage:
    def test_every_error_that_can_be_raised_is_explained(self) -> None:
        explained = {problem.code: problem.status for problem in PROBLEMS}
        raised = {error.code: error.status for error in error_classes() if error.__module__.startswith("memplane")}
        assert raised.items() <= explained.items()
        assert len(explained) == len(PROBLEMS)

    def test_each_has_an_anchor(self) -> None:
        page = problems_page()
        assert re.findall(r'<tr id="(\w+)">', page) == [problem.code for problem in PROBLEMS]

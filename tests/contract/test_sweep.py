"""Every route of the document, asked with every kind of key: each answer is the one that the document promises.

The routes, and requests that are right for them, are read from the document. A new route is swept without a line here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import uuid4

import httpx2
import msgspec
import pytest
from tests.contract.conftest import ADMIN_KEY, OPS_KEY, PEPPER, Installation, Tenant
from tests.contract.described import PROBLEM, Document, Json, Operation, Request, Things, Unprepared

from memplane_core.domain.tenancy import SCOPES
from memplane_core.security.keys import SECRET_LENGTH, Keyring, key_text, parse_key

# Where the scope that opens the route is not enough for the document's example, and why.
NEEDS_MORE = {
    "createOwnKey": "a key gives away no scope that it does not have",
    "rotateOwnKey": "a key gives away no scope that it does not have",
}

# Where there is nothing to tell of a tenant that has what all others have, and why.
NOTHING_YET = {"getTenantErasure": "the tenant was not deleted"}

Traces = Mapping[str, tuple[int, str]]


def unlike(operation: Operation, answer: httpx2.Response, *, expected: int | None = None, code: str = "") -> str | None:
    """What is wrong with an answer; None where it is documented, and the one that is expected."""
    status, kind = answer.status_code, answer.headers.get("content-type", "").partition(";")[0]
    told = f"{operation}: {status} {kind} {answer.text[:300]}"
    documented = operation.answers.get(status)
    if documented is None or kind not in (documented or {""}):
        return f"not documented: {told}"
    if status >= 400 and (kind != PROBLEM or answer.json()["status"] != status):
        return f"no problem document: {told}"
    if expected is not None and (status != expected or (code and answer.json()["code"] != code)):
        return f"not {expected} {code}: {told}"
    return None


def same(answer: httpx2.Response, *names: str) -> tuple[int, bytes, str]:
    """What an answer tells: all but its request's id and `names`, and whether the body had come when it was given."""
    body = answer.content.replace(answer.headers["x-request-id"].encode(), b"")
    for name in names:
        body = body.replace(name.encode(), b"")
    told = {key: value for key, value in answer.headers.items() if key not in ("date", "x-request-id", "connection")}
    return answer.status_code, body, str(sorted(told.items()))


def repeatable(request: Request, operation: Operation) -> Request:
    """The same with an Idempotency-Key where the route takes one: what is refused is not remembered either."""
    if "Idempotency-Key" not in operation.headers:
        return request
    return msgspec.structs.replace(request, headers={**request.headers, "Idempotency-Key": uuid4().hex})


def prepared(things: Things, operations: Iterable[Operation]) -> list[tuple[Operation, Request]]:
    """A right request for each, about what a tenant has."""
    return [(operation, repeatable(things.request(operation), operation)) for operation in operations]


class TestTheRightKey:
    def test_is_answered_as_the_document_says(self, installation: Installation) -> None:
        wrong: list[str | None] = []
        for operation in installation.document.operations:
            tenant = installation.make_tenant()
            request = installation.things(tenant).request(operation)
            key = tenant.key
            if operation.scope is not None and operation.id not in NEEDS_MORE:
                key = installation.make_key(tenant.id, operation.scope)["key"]
            answer = installation.send(request, ADMIN_KEY if operation.admin else key)
            done = answer.status_code == 404 if operation.id in NOTHING_YET else answer.is_success
            wrong.append(unlike(operation, answer) or (None if done else f"refused: {operation}: {answer.text}"))
        assert list(filter(None, wrong)) == []

    def test_may_be_the_ops_key_where_the_operator_only_reads(self, installation: Installation) -> None:
        things = installation.things(installation.make_tenant())
        reading = [operation for operation in installation.document.of_operators if operation.method == "GET"]
        assert len(reading) >= 10
        wrong: list[str | None] = []
        for operation in reading:
            expected = 404 if operation.id in NOTHING_YET else 200
            wrong.append(unlike(operation, installation.send(things.request(operation), OPS_KEY), expected=expected))
        assert list(filter(None, wrong)) == []


def not_ours(installation: Installation, tenant: Tenant) -> dict[str, str | None]:
    """What is no valid key of the tenant, by what is wrong with it."""
    revoked, rotated = (installation.make_key(tenant.id, *sorted(SCOPES)) for _ in range(2))
    installation.revoke(tenant.id, revoked["id"])
    installation.admin(
        "POST", f"/admin/v1/tenants/{tenant.id}/keys/{rotated['id']}/rotate", json={"overlap_s": 0}
    ).raise_for_status()
    expired = installation.make_key(tenant.id, *sorted(SCOPES), expires_at="2999-01-01T00:00:00Z")
    installation.value(
        "WITH late AS (UPDATE api_key SET expires_at = clock_timestamp() - interval '1 s' WHERE id = $1 RETURNING 1)"
        " SELECT count(*) FROM late",
        expired["id"],
    )
    deleted = installation.make_tenant()
    installation.value(
        "WITH gone AS (UPDATE tenant SET deleted_at = clock_timestamp() WHERE id = $1::text::uuid RETURNING 1)"
        " SELECT count(*) FROM gone",
        deleted.id,
    )
    return {
        "none": None,
        "empty": "",
        "no key at all": "let me in",
        "mistyped": tenant.key[:-1] + ("0" if tenant.key[-1] != "0" else "1"),
        "truncated": tenant.key[:-1],
        "unknown, with a checksum that is right": Keyring([PEPPER]).issue().text,
        "the id of a valid one, with another secret": key_text(tenant.key_id, "0" * SECRET_LENGTH),
        "expired": expired["key"],
        "revoked": revoked["key"],
        "replaced": rotated["key"],
        "of a tenant that is gone": deleted.key,
    }


class TestAnInvalidKey:
    def test_hears_401_on_every_route_whatever_is_wrong_with_it_and_leaves_no_trace(
        self, installation: Installation
    ) -> None:
        tenant = installation.make_tenant()
        document = installation.document
        requests = prepared(installation.things(tenant), [*document.of_tenants, *document.of_operators])
        invalid = not_ours(installation, tenant)
        assert next(name for name, key in invalid.items() if key and parse_key(key)).startswith("unknown")
        before = installation.traces()
        wrong: list[str | None] = []
        heard: set[bytes] = set()
        for operation, request in requests:
            here: set[tuple[int, bytes, str]] = set()
            others = {"a tenant's": tenant.key} if operation.admin else {"admin": ADMIN_KEY, "ops": OPS_KEY}
            for key in (invalid | others).values():
                answer = installation.send(request, key)
                wrong.append(unlike(operation, answer, expected=401, code="unauthorized"))
                here.add(same(answer))
            assert len(here) == 1, operation.id  # whatever is wrong with the key, to the byte, headers and all
            heard |= {body for _, body, _ in here}
        assert list(filter(None, wrong)) == []
        assert len(heard) == 1
        assert installation.traces() == before


class TestAKeyThatMayNot:
    def test_lacks_the_scope(self, installation: Installation) -> None:
        tenant = installation.make_tenant()
        asked = [operation for operation in installation.document.of_tenants if operation.scope is not None]
        requests = prepared(installation.things(tenant), asked)
        keys = {scope: installation.make_key(tenant.id, *sorted(SCOPES - {scope}))["key"] for scope in SCOPES}
        reader: str = installation.make_key(tenant.id, "memories:read")["key"]
        before = untold(installation.traces())
        wrong: list[str | None] = []
        for operation, request in requests:
            refused = [keys[cast("Any", operation.scope)]]
            refused += [reader] if operation.scope != "memories:read" else []
            for key in refused:
                answer = installation.send(request, key)
                wrong.append(unlike(operation, answer, expected=403, code="forbidden"))
        assert len(requests) >= 20
        assert list(filter(None, wrong)) == []
        assert untold(installation.traces()) == before

    def test_only_reads(self, installation: Installation) -> None:
        tenant = installation.make_tenant()
        asked = [operation for operation in installation.document.of_operators if operation.method != "GET"]
        writes = prepared(installation.things(tenant), asked)
        before, told = untold(installation.traces()), refusals(installation)
        answers = [(operation, installation.send(request, OPS_KEY)) for operation, request in writes]
        wrong = [unlike(operation, answer, expected=403, code="forbidden") for operation, answer in answers]
        assert len(writes) >= 10
        assert list(filter(None, wrong)) == []
        assert untold(installation.traces()) == before
        assert refusals(installation) == told + len(writes)

    def test_is_bound_to_another_user(self, installation: Installation) -> None:
        """Whatever it asks for, it neither sees nor changes the memories of those whom the document's examples name."""
        tenant = installation.make_tenant()
        key: str = installation.make_key(tenant.id, *sorted(SCOPES), bind={"user_id": "eve"})["key"]
        requests = prepared(installation.things(tenant), installation.document.of_tenants)
        before = memories_of(installation, tenant, "ana")
        wrong: list[str | None] = []
        for operation, request in requests:
            answer = installation.send(request, key)
            wrong.append(unlike(operation, answer))
            if answer.is_success and ('"ana"' in answer.text or not operation.reads):
                wrong.append(f"{operation}: {answer.status_code} {answer.text[:300]}")
            elif not answer.is_success and answer.status_code not in (403, 404):
                wrong.append(f"neither 403 nor 404: {operation}: {answer.text}")
        assert list(filter(None, wrong)) == []
        assert memories_of(installation, tenant, "ana") == before

    def test_is_another_tenants(self, installation: Installation) -> None:
        """What is there and belongs to somebody else is answered like what is not there."""
        tenant, other = installation.make_tenant(), installation.make_tenant()
        things, nowhere = installation.things(tenant), installation.things(other)
        requests = prepared(things, installation.document.of_tenants)
        before = installation.traces(tenant.id)
        wrong: list[str | None] = []
        for operation, request in requests:
            answer = installation.send(request, other.key)
            wrong.append(unlike(operation, answer, expected=404 if operation.ids else None))
            theirs = {
                id_ for id_ in things.known.values() if len(id_) > 8 and id_.encode() not in (request.content or b"")
            }
            if answer.is_success and any(id_ in answer.text for id_ in theirs):
                wrong.append(f"{operation}: tells of another tenant: {answer.text[:300]}")
            if operation.ids:
                ids = {name: unknown(name) for name in operation.ids}
                absent = installation.send(nowhere.request(operation, ids), other.key)
                if same(absent, *ids.values()) != same(answer, *map(str, request.path.split("/"))):
                    wrong.append(f"{operation}: {answer.text} is not {absent.text}")
        assert list(filter(None, wrong)) == []
        assert installation.traces(tenant.id) == before

    def test_is_the_operators_and_names_one_tenants_things_below_another(self, installation: Installation) -> None:
        tenant, other = installation.make_tenant(), installation.make_tenant()
        things = installation.things(tenant)
        nested = [operation for operation in installation.document.of_operators if len(operation.ids) > 1]
        requests = [(one, things.request(one, things.ids(one) | {"tenant_id": other.id})) for one in nested]
        before = installation.traces(tenant.id)
        wrong: list[str | None] = []
        for operation, request in requests:
            answer = installation.send(request, ADMIN_KEY)
            expected = 422 if operation.id == "activateGeneration" else 404  # numbers are each tenant's own
            wrong.append(unlike(operation, answer, expected=expected))
        assert len(nested) >= 5
        assert list(filter(None, wrong)) == []
        assert installation.traces(tenant.id) == before


def unknown(name: str) -> str:
    """What looks like an id and is none's."""
    return "0123456789ab" if name == "key_id" else str(uuid4())


def untold(traces: Traces) -> Traces:
    """Without the audit, which tells of what was refused."""
    return {table: trace for table, trace in traces.items() if table != "audit"}


def refusals(installation: Installation) -> int:
    """How many the audit has told of."""
    return int(installation.value("SELECT count(*) FROM audit WHERE result = 'refused'"))


def memories_of(installation: Installation, tenant: Tenant, user: str) -> str:
    """Changes with any change of that user's memories."""
    return str(
        installation.value(
            "SELECT md5(string_agg(to_jsonb(m)::text || to_jsonb(u)::text, '' ORDER BY m.id)) FROM memory m"
            " JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id"
            " WHERE m.tenant_id = $1::text::uuid AND m.user_id = $2",
            tenant.id,
            user,
        )
    )


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_route_that_nothing_is_known_of_says_what_to_add(method: str) -> None:
    body = {"content": {"application/json": {"schema": {"type": "string", "format": "colour"}}}}
    described: Json = {"operationId": "paint", "security": [{"apiKey": []}], "responses": {}, "requestBody": body}
    path = "/v1/walls/{wall_id}" if method == "get" else "/v1/paint"
    document = Document({"paths": {path: {method: described}}, "components": {"schemas": {}}})

    def send(operation: Operation, request: Request) -> Json:
        raise AssertionError(f"{operation} {request.path} needs nothing made")

    things = Things(document, send, known={"memory_id": "m", "memory_id 2": "n"}, others={})
    where = "tests/contract/conftest.py" if method == "get" else "gateway/examples.py"
    with pytest.raises(Unprepared, match=where):
        things.request(document.operations[0])


def test_a_public_route_asks_nobody(installation: Installation) -> None:
    tenant = installation.make_tenant()
    things = installation.things(tenant)
    public = [operation for operation in installation.document.operations if operation.public]
    assert [operation.id for operation in public] == ["getVersion"]
    for key in (None, tenant.key, "nonsense"):
        wrong = [unlike(one, installation.send(things.request(one), key), expected=200) for one in public]
        assert list(filter(None, wrong)) == []

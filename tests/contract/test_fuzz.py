"""Whatever schemathesis makes up from the document: no 5xx, and nothing that the document does not say.

Every operation is tried with a tenant of its own, whose key has all scopes, so that it may destroy whatever it finds.
Ids in paths are those of things that are there, wherever schemathesis itself gave something that could be one.
"""

import os
from collections import Counter
from typing import Any, Final, cast
from uuid import uuid4

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi import checks
from tests.contract.conftest import ADMIN_KEY, Installation, bearer
from tests.contract.described import Json, Things

Case = schemathesis.Case[Any]

CHECKS: Final = cast("list[HealthCheck]", list(HealthCheck))

ACCEPTS_ALL: Final = cast("Any", checks).positive_data_acceptance

LONG: Final = "MEMPLANE_FUZZ_EXAMPLES" in os.environ
"""Whether `make fuzz` asks: for as long as it takes, and for something else each time."""

MOST: Final = int(os.environ.get("MEMPLANE_FUZZ_EXAMPLES", "8"))
"""Made up for an operation, beside those that the document's bounds call for."""


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """What was made up, as a line; as many lines as there are items in a list."""
    return b"\n".join(map(msgspec.json.encode, cast("list[Any]", value if isinstance(value, list) else [value])))


def made_up(case: Case, location: ParameterLocation) -> bool:
    """Whether what stands there is meant to be right."""
    return case.meta is not None and case.meta.components[location].mode.is_positive


class Scene:
    """Who asks for an operation, and what there is to ask about."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._tenants: dict[str, tuple[str, Things]] = {}
        self._bounds: Counter[str] = Counter()

    def try_out(self, case: Case) -> None:
        """Send what was made up. It may be refused though its schema allows it: schemas cannot say everything."""
        if not LONG and self._is_one_too_many(case):
            return
        key = self._set_for(case)
        case.call_and_validate(headers=bearer(key), excluded_checks=[ACCEPTS_ALL])

    def _is_one_too_many(self, case: Case) -> bool:
        """Of what goes through every bound of an operation, 40 are tried, and one in five of the rest."""
        if case.meta is None or case.meta.phase.name != TestPhase.COVERAGE:
            return False
        self._bounds[case.operation.label] += 1
        return self._bounds[case.operation.label] > 40 and self._bounds[case.operation.label] % 5 != 0

    def _set_for(self, case: Case) -> str:
        """Put ids that are there into the path; the key to ask with."""
        described = next(
            operation
            for operation in self._installation.document.operations
            if (operation.method, operation.path) == (case.operation.method.upper(), case.operation.path)
        )
        if described.id not in self._tenants:
            tenant = self._installation.make_tenant()
            self._tenants[described.id] = (tenant.key, self._installation.things(tenant))
        key, things = self._tenants[described.id]
        if "Idempotency-Key" in case.headers and made_up(case, ParameterLocation.HEADER):
            case.headers["Idempotency-Key"] = uuid4().hex  # else all but the first would be refused as another's repeat
        if described.ids and made_up(case, ParameterLocation.PATH):
            case.path_parameters = cast("dict[str, Any]", things.ids(described))
        return ADMIN_KEY if described.admin else key


@pytest.fixture(scope="module")
def scene(installation: Installation) -> Scene:
    return Scene(installation)


@pytest.fixture(scope="module")
def api(installation: Installation) -> schemathesis.BaseSchema:
    return read(installation)


@pytest.fixture(scope="module")
def api_of_filters(installation: Installation) -> schemathesis.BaseSchema:
    """The same without going through every bound of the document: a filter has thousands."""
    found = read(installation)
    found.config.phases.coverage.enabled = LONG
    return found


def read(installation: Installation) -> schemathesis.BaseSchema:
    found = schemathesis.openapi.from_url(f"{installation.url}/openapi.json")
    found.config.generation.update(deterministic=not LONG)
    return found


def takes_a_filter(context: Any) -> bool:
    """Whether an operation's body has one."""
    schemas: Json = context.operation.schema.raw_schema["components"]["schemas"]
    body = str(context.operation.definition.raw.get("requestBody", {}))
    return any(f"/{name}'" in body and "schemas/Filter'" in str(schema) for name, schema in schemas.items())


@pytest.fixture(autouse=True)
def node_id(request: pytest.FixtureRequest) -> None:
    """Schemathesis 4.32 reads an attribute that pytest has not had since 9.2."""
    request.node._nodeid = request.node.nodeid


described = schemathesis.pytest.from_fixture("api")
described_filters = schemathesis.pytest.from_fixture("api_of_filters")


@pytest.mark.timeout(0 if LONG else 900)
@described.exclude(takes_a_filter).parametrize()  # pyright: ignore[reportUntypedFunctionDecorator] # it has no types
@settings(max_examples=MOST, derandomize=not LONG, suppress_health_check=CHECKS)
def test_every_operation_keeps_to_its_document(case: Case, scene: Scene) -> None:
    scene.try_out(case)


@pytest.mark.timeout(0 if LONG else 900)
@described_filters.include(takes_a_filter).parametrize()  # pyright: ignore[reportUntypedFunctionDecorator] # as above
@settings(max_examples=3 * MOST, derandomize=not LONG, suppress_health_check=CHECKS)
def test_every_operation_with_a_filter_keeps_to_its_document(case: Case, scene: Scene) -> None:
    scene.try_out(case)

"""No route forgets that a key may be bound: `require` and `unbound` refuse such keys unless told otherwise."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services"

# Where bound keys are let through: memory routes, each tried in tests/integration/retrieval/test_bound_keys.py, and
# what forwards requests to them.
LET_THROUGH = {
    "gateway/memplane_gateway/forwarding.py",
    "retrieval/memplane_retrieval/merge_routes.py",
    "retrieval/memplane_retrieval/routes.py",
    "retrieval/memplane_retrieval/routes_context.py",
    "retrieval/memplane_retrieval/routes_markers.py",
    "retrieval/memplane_retrieval/routes_records.py",
    "retrieval/memplane_retrieval/routes_sessions.py",
    "retrieval/memplane_retrieval/routes_why.py",
}

# Where a caller is looked at without asking what its key may do: the key's own route, and a service that holds no
# memories and is called by the others.
NOT_ASKED = {"gateway/memplane_gateway/whoami.py", "embedding/memplane_embedding/routes.py"}


def parsed() -> Iterator[tuple[str, ast.AST]]:
    for path in SERVICES.rglob("*.py"):
        yield "/".join(path.relative_to(SERVICES).parts), ast.parse(path.read_text())


def test_bound_keys_are_let_through_where_they_are_kept_to_their_own() -> None:
    found = {
        name
        for name, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "bound"
    }
    assert found == LET_THROUGH


def test_nobody_reads_the_caller_around_that() -> None:
    found = {
        name
        for name, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "principal" and ast.unparse(node.value) == "request"
    }
    assert found == NOT_ASKED

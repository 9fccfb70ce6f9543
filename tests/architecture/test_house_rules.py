"""The rules of the house that no linter knows."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 400

# Functions that must not have a tenant: they find one, or serve all. Each is a SECURITY DEFINER function in Postgres.
ACROSS_TENANTS = {
    "audit_of_all",
    "record",  # of the audit: something may be done that is about no tenant
    *("find_api_key", "list_tenants", "tenants_with_work", "trim_finished", "backlog"),
    *("jobs_due", "tenants_to_retire", "mark_keys_used"),
    *("index_lag", "generation_states", "job_states", "tenants_to_watch", "keys_expiring"),
}
TENANT_TYPES = {"TenantId", "Principal"}
NO_REPOSITORY = {"session.py", "migrate.py", "bootstrap.py"}


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, those not yet committed too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions at module level that others may call."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def type_of_first(function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> str:
    """The annotation of the first argument behind `self`."""
    arguments = [*function.args.posonlyargs, *function.args.args][1 if method else 0 :]
    return ast.unparse(arguments[0].annotation) if arguments and arguments[0].annotation else ""


class TestFiles:
    def test_none_is_longer_than_a_person_reads(self) -> None:
        lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in tracked("*.py")}
        assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}

    def test_none_postpones_its_annotations(self) -> None:
        postponed = "from __future__ import " + "annotations"
        assert [path for path in tracked("*.py") if postponed in path.read_text()] == []

    def test_no_lock_names_an_address(self) -> None:
        locks = tracked("*.lock", "*requirements*.txt")
        assert locks
        assert [path for path in locks if "://" in path.read_text()] == []


class TestTheTenantComesFirst:
    def test_in_every_function_that_takes_a_connection(self) -> None:
        offenders: list[str] = []
        for path in tracked("libs/memplane_core/memplane_core/storage/*.py"):
            if path.name in NO_REPOSITORY or path.parent.name != "storage":
                continue
            for function in functions(ast.parse(path.read_text())):
                takes = {ast.unparse(arg.annotation) for arg in function.args.args if arg.annotation}
                if "Connection" not in takes or function.name in ACROSS_TENANTS:
                    continue
                if type_of_first(function, method=False) not in TENANT_TYPES:
                    offenders.append(f"{path.name}: {function.name}")
        assert offenders == []

    def test_in_every_call_to_the_index_about_a_collection(self) -> None:
        checked = 0
        for path in tracked("libs/memplane_core/memplane_core/vectors/index.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef) or node.name != "MilvusIndex":
                    continue
                for method in node.body:
                    if not isinstance(method, ast.AsyncFunctionDef) or method.name.startswith("_"):
                        continue
                    names = [argument.arg for argument in method.args.args]
                    if "generation" in names:
                        checked += 1
                        assert names[1] == "tenant", method.name
                        assert type_of_first(method, method=True) == "TenantId", method.name
        assert checked >= 6


class TestLayers:
    def test_imports_keep_to_the_contracts(self) -> None:
        lint = Path(sys.executable).with_name("lint-imports")
        done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]

"""pymilvus costs 100 MB and most of a second: only those who import `memplane_core.vectors` pay for it."""

import subprocess
import sys
from pathlib import Path

import memplane_core

IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "pymilvus" not in sys.modules, f"{name} imports pymilvus"
"""


def test_nothing_but_vectors_imports_pymilvus() -> None:
    root = Path(memplane_core.__path__[0])
    names = [
        ".".join(("memplane_core", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(root.rglob("*.py"))
        if not {"vectors", "migrations"} & set(path.relative_to(root).parts)  # Alembic alone can import its own
    ]
    assert "memplane_core.domain.ports" in names
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

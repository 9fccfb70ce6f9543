"""Where the programs lie that wheels bring along."""

from importlib.util import find_spec
from pathlib import Path


def package_dir(name: str) -> Path:
    """The folder of an installed package, found without importing it. Raises RuntimeError where it is not installed."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the Python package {name} is not installed: install memplane with its `standalone` extra")
    return Path(next(iter(spec.submodule_search_locations)))

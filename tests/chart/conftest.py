"""The chart as Helm renders it, and its objects."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "memplane"
MATRIX = sorted((CHART / "ci").glob("*-values.yaml"))
KUBE = "1.35.0"

Object = Mapping[str, Any]


def helm() -> str:
    """The Helm that `make chart` unpacks, or the one on the path. Raises RuntimeError where there is neither."""
    found = os.environ.get("MEMPLANE_HELM") or shutil.which(
        "helm", path=f"{ROOT / '.venvs/chart/bin'}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        raise RuntimeError("there is no helm: `make chart` unpacks one")
    return found


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What Helm does with these arguments."""
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, check=False, timeout=60)


@cache
def render(*values: Path, sets: tuple[str, ...] = (), kube: str = KUBE, release: str = "rel") -> tuple[Object, ...]:
    """The objects of a release, hooks and tests included."""
    done = run_helm(
        *("template", release, str(CHART), "--namespace", "ns", "--kube-version", kube),
        *(part for file in values for part in ("--values", str(file))),
        *(part for pair in sets for part in ("--set", pair)),
    )
    assert done.returncode == 0, done.stderr
    return tuple(found for found in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if found)


def refusal(*sets: str, values: Path | None = None) -> str:
    """What Helm says where it refuses; fails where it does not."""
    done = run_helm(
        *("template", "rel", str(CHART), "--namespace", "ns"),
        *(("--values", str(values)) if values else ()),
        *(part for pair in sets for part in ("--set-json", pair)),
    )
    assert done.returncode != 0, f"{sets} were taken"
    return done.stderr


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    """Those of some kinds."""
    return [found for found in objects if found["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    """The one of this kind and name. Raises KeyError."""
    for found in objects:
        if found["kind"] == kind and found["metadata"]["name"] == name:
            return found
    raise KeyError(f"{kind} {name}")


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every pod that comes of these objects, as what it belongs to and its template."""
    for found in objects:
        name = f"{found['kind']} {found['metadata']['name']}"
        if found["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield name, found["spec"]["template"]
        elif found["kind"] == "Pod":
            yield name, found


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, those that come first included."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.fixture(params=MATRIX, ids=lambda path: path.name.removesuffix("-values.yaml"))
def objects(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    """The objects of each line of the matrix."""
    return render(request.param)

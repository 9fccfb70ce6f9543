"""The checks of `make chart` that other people's programs do; prints PASS, FAIL or NOT CHECKED for each.

Run by the Python of `.venvs/chart`. What renders is held against rules of our own by `tests/chart/test_*.py`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

import kubernetes_validate  # pyright: ignore[reportMissingImports] - of the environment of the tools
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "memplane"
TOOLS: Final = ROOT / ".venvs" / "chart"
OUT: Final = ROOT / "build" / "chart"
MATRIX: Final = sorted((CHART / "ci").glob("*-values.yaml"))
VERSIONS: Final = tuple(f"1.{minor}" for minor in range(28, 38))
THOROUGH: Final = ("everything-values.yaml", "dev-values.yaml")
"""Rendered for every version of Kubernetes; the others for the oldest and the newest."""

OTHERS: Final = ("keda.sh/", "gateway.networking.k8s.io/", "monitoring.coreos.com/")

SKIPPED: Final = {
    "CKV_K8S_8": "asked of everything that runs long by test_objects.py; the pod of `helm test` is none",
    "CKV_K8S_9": "the same",
    "CKV_K8S_11": "a limit of CPU makes a service slow that could be fast; requests and limits of memory are set",
    "CKV_K8S_15": "tags are versions and never change: always to pull would need the registry at every start",
    "CKV_K8S_43": "digests are values (image.digests), for whoever mirrors the images knows them",
}
"""What checkov would like and why it is not done."""

Check = Callable[[], str]


class Failed(Exception):
    """A check does not hold; says what and where."""


class NotChecked(Exception):
    """The program is not here; says how to get it."""


def program(name: str, *, how: str) -> str:
    """Its path, in the environment of the tools or on the machine. Raises NotChecked."""
    found = shutil.which(name, path=f"{TOOLS / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise NotChecked(f"{name} is not here: {how}")
    return found


def run(*command: str, text: str | None = None, cwd: Path = ROOT) -> str:
    """What it printed. Raises Failed where it ends with another code than 0."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise Failed((done.stdout + done.stderr).strip()[-4000:])
    return done.stdout


def rendered(values: Path, kube: str) -> list[dict[str, Any]]:
    """Objects of a line of the matrix, for a version of Kubernetes."""
    helm = program("helm", how="make chart unpacks it")
    text = run(helm, "template", "rel", str(CHART), "-n", "ns", "--kube-version", f"{kube}.0", "-f", str(values))
    (OUT / f"{values.stem}-{kube}.yaml").write_text(text, encoding="utf-8")
    return [found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found]


def every() -> Iterator[dict[str, Any]]:
    """All objects of the matrix, for the newest version."""
    for values in MATRIX:
        yield from rendered(values, VERSIONS[-1])


def lint() -> str:
    """`helm lint`, with every line of the matrix."""
    helm = program("helm", how="make chart unpacks it")
    for values in MATRIX:
        run(helm, "lint", "--strict", str(CHART), "-f", str(values))
    return f"{len(MATRIX)} files of values"


def shape(value: Any) -> Any:
    """A value without its texts and numbers: what is of one shape is valid or not together, but for enumerations."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return tuple((key, shape(members[key])) for key in sorted(members))
    if isinstance(value, list):
        return tuple(sorted({repr(shape(inner)) for inner in cast("list[Any]", value)}))
    return type(value).__name__


def kubernetes() -> str:
    """Kubernetes's own schemas, strictly, for each supported version."""
    faults: list[str] = []
    checked = 0
    for version in VERSIONS:
        seen: set[str] = set()
        for values in MATRIX:
            if version not in (VERSIONS[0], VERSIONS[-1]) and values.name not in THOROUGH:
                continue
            for found in rendered(values, version):
                known = repr((found["kind"], shape(found)))
                if known in seen or found["apiVersion"].startswith(OTHERS):
                    continue
                seen.add(known)
                checked += 1
                try:
                    kubernetes_validate.validate(found, version, strict=True)
                except Exception as error:  # noqa: BLE001 - its own classes have no common base
                    faults.append(f"{version} {values.stem} {found['kind']} {found['metadata']['name']}: {error}"[:400])
    if faults:
        raise Failed("\n".join(faults))
    return f"{checked} objects of different shape, {VERSIONS[0]} to {VERSIONS[-1]}"


def models() -> str:
    """KEDA's, the Gateway API's and the Prometheus operator's objects, by models of them from npm."""
    node = program("node", how="install Node.js and npm, then make chart")
    folder = TOOLS / "models"
    if not (folder / "node_modules").is_dir():
        raise NotChecked("the models could not be installed: npm is needed")
    objects = [json.dumps(found) for found in every() if found["apiVersion"].startswith(OTHERS)]
    return run(node, "validate.mjs", text="\n".join(objects), cwd=folder).strip()


def checkov() -> str:
    """Checkov's rules for Kubernetes, but for those that are skipped, each with its reason."""
    python = TOOLS / "checkov" / "bin" / "python"
    if not python.exists():
        raise NotChecked("checkov is not here: remove .venvs/chart and run make chart, without CHART_CHECKOV=no")
    files = [part for name in THOROUGH for part in ("-f", str(OUT / f"{Path(name).stem}-{VERSIONS[-1]}.yaml"))]
    for name in THOROUGH:
        rendered(CHART / "ci" / name, VERSIONS[-1])
    flags = ("--framework", "kubernetes", "--skip-download", "--compact", "--quiet", "--skip-check", ",".join(SKIPPED))
    run(str(python), "-m", "checkov.main", *files, *flags)
    return f"without {', '.join(SKIPPED)}"


def alerts() -> str:
    """The rules of alerts as they are rendered, by Prometheus's own tool."""
    promtool = program("promtool", how="install the package prometheus (Debian) or Prometheus's release")
    groups = [group for found in every() if found["kind"] == "PrometheusRule" for group in found["spec"]["groups"]]
    if not groups:
        return "there are no rules"
    file = OUT / "rules.yaml"
    file.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    run(promtool, "check", "rules", str(file))
    return f"{sum(len(group['rules']) for group in groups)} rules"


def dockerfile() -> str:
    """hadolint's rules."""
    run(program("hadolint", how="make chart installs it"), "docker/Dockerfile")
    return "docker/Dockerfile"


def scripts() -> str:
    """shellcheck's rules."""
    files = ("docker/images.sh", "tests/e2e/cluster/verify.sh")
    run(program("shellcheck", how="make chart installs it"), *files)
    return ", ".join(files)


def table() -> str:
    """That the chart's README has the values as they are."""
    run(sys.executable, "helm/values_table.py", "check")
    return "helm/memplane/README.md"


CHECKS: Final[dict[str, Check]] = {
    "helm lint": lint,
    "Kubernetes schemas": kubernetes,
    "models of other objects": models,
    "checkov": checkov,
    "promtool": alerts,
    "hadolint": dockerfile,
    "shellcheck": scripts,
    "table of values": table,
}


def one(name: str) -> bool:
    """Do a check and say how it went; False where it failed."""
    began = time.monotonic()
    verdict, good = "PASS", True
    try:
        about = CHECKS[name]()
    except NotChecked as error:
        verdict, about = "NOT CHECKED", str(error)
    except Failed as error:
        verdict, about, good = "FAIL", str(error), False
    print(f"{verdict:12}{name} ({time.monotonic() - began:.1f} s): {about}", flush=True)
    return good


def main() -> int:
    """All checks, two at a time."""
    OUT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as threads:
        return 0 if all(list(threads.map(one, CHECKS))) else 1


if __name__ == "__main__":
    sys.exit(main())

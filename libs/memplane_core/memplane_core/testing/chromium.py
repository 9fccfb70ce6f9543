"""The browser that tests of pages drive: Chromium from the machine, or from Debian's package.

python -m memplane_core.testing.chromium prepare
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_HOW: Final = "install the package `chromium`, or set MEMPLANE_CHROMIUM to a browser of its kind"

ARGUMENTS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
"""Pages are our own, and nothing but they is asked for anything."""


def find() -> Path | None:
    """Where the browser is; None where there is none."""
    named = os.environ.get("MEMPLANE_CHROMIUM")
    found = named or next((path for name in _NAMES if (path := shutil.which(name))), None)
    return None if found is None else Path(found)


def chromium() -> Path:
    """Where the browser is. Raises RuntimeError where there is none."""
    found = find()
    if found is None:
        raise RuntimeError(f"there is no Chromium to try pages with: {_HOW}")
    return found


def prepare() -> Path:
    """The browser, installed from Debian's package where there is none and this may be done.

    Raises:
        RuntimeError: There is none, and it cannot be installed from here.
    """
    found = find()
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"there is no Chromium to try pages with, and this user cannot install one: {_HOW}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wanted = ("chromium", "fonts-dejavu-core")
    for command in (("update",), ("install", "--yes", "--no-install-recommends", *wanted)):
        said = subprocess.run(  # noqa: S603 - every word is ours
            ["apt-get", "--quiet", *command],  # noqa: S607 - apt-get is where the machine has it
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if said.returncode:
            raise RuntimeError(f"apt-get {command[0]}: {said.stderr[-1000:]}")
    return chromium()


if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"]:
        sys.exit(__doc__)
    prepare()

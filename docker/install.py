"""Makes /opt/memplane, the environment of one image: `python docker/install.py IMAGE`, inside of the build."""

import compileall
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

TARGET: Final = Path("/opt/memplane")
PIP: Final = ("/opt/build/bin/python", "-m", "pip", "--python", str(TARGET / "bin" / "python"), "install", "--no-deps")


def main(image: str) -> None:
    """Install what the image's list names, from the lock, then the package itself. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(TARGET)], check=True)
    lock = Path("/tmp/image.lock")  # noqa: S108 - in a container that is thrown away
    with lock.open("wb") as file:
        subprocess.run([sys.executable, "docker/packages.py", "pick", image], check=True, stdout=file)
    subprocess.run([*PIP, "--only-binary", ":all:", "--require-hashes", "-r", str(lock)], check=True)
    subprocess.run([*PIP, *(str(wheel) for wheel in Path("/wheels").glob("*.whl"))], check=True)
    for tests in TARGET.glob("lib/python*/site-packages/*/tests"):
        shutil.rmtree(tests)
    # Nothing can be written where it runs, so that it would be compiled at every start.
    compileall.compile_dir(TARGET / "lib", quiet=2, workers=0)


main(sys.argv[1])

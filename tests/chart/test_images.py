"""Which packages the images install."""

import importlib.util
from types import ModuleType

import pytest

from .conftest import ROOT


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_packages", ROOT / "docker" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PACKAGES = _load()


@pytest.mark.parametrize("image", list(PACKAGES.EXTRAS))
def test_an_image_installs_what_its_extra_needs_and_nothing_else(image: str) -> None:
    assert PACKAGES.listed(image) == PACKAGES.needed(PACKAGES.EXTRAS[image]), "run: python docker/packages.py write"


@pytest.mark.parametrize("image", [*PACKAGES.EXTRAS, "build"])
def test_all_of_it_is_locked_with_hashes(image: str) -> None:
    lock = PACKAGES.pick(PACKAGES.LOCK.read_text(encoding="utf-8"), PACKAGES.listed(image))

    assert lock.count("--hash=sha256:") >= len(PACKAGES.listed(image))


def test_the_dockerfile_has_a_target_for_each_image_of_the_chart() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")

    for image in ("gateway", "embedding", "retrieval", "maintenance", "stores"):
        assert f"\nFROM runtime AS {image}\n" in text
    assert "\nUSER 10001:10001\n" in text

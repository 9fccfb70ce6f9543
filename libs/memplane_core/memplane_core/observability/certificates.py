"""When the certificates that a process was given end."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel

from memplane_core.observability.logs import get_logger
from memplane_core.observability.process import process_name

_log = get_logger(__name__)

_SUFFIX = "_pem_path"


class Certificates(Collector):
    """Reads each file when it is scraped, and only where it has changed since.

    Args:
        files: By the setting that names them.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)
        self._known: dict[str, tuple[float, float]] = {}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """For each file when the first of its certificates ends. One that cannot be read ended long ago."""
        found = GaugeMetricFamily(
            "memplane_certificate_expiry_timestamp_seconds",
            "When the first certificate of a file ends, in epoch seconds; 0 where it cannot be read.",
            labels=["service", "setting"],
        )
        for setting, path in self._files.items():
            found.add_metric([process_name(), setting], self._ends(setting, Path(path)))
        return [found]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: so that no file is read when this is registered."""
        return []

    def _ends(self, setting: str, path: Path) -> float:
        try:
            changed = path.stat().st_mtime
            known = self._known.get(setting)
            if known is None or known[0] != changed:
                known = self._known[setting] = (changed, first_end(path.read_bytes()))
            return known[1]
        except (OSError, ValueError) as error:
            if self._known.pop(setting, None):
                _log.warning("certificate not read", setting=setting, error=type(error).__name__)
            return 0.0


_watched: list[Certificates] = []


def watch_certificates(settings: BaseModel) -> None:
    """Tell in this process's metrics when the certificates named in `settings` end. The last call counts."""
    while _watched:
        REGISTRY.unregister(_watched.pop())
    if files := _files_of(settings):
        certificates = Certificates(files)
        REGISTRY.register(certificates)
        _watched.append(certificates)


def first_end(pem: bytes) -> float:
    """When the first of the certificates ends, in epoch seconds. Raises ValueError where there is none."""
    with warnings.catch_warnings():  # of serial numbers and the like, which are their authority's matter
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return min(found.not_valid_after_utc.timestamp() for found in x509.load_pem_x509_certificates(pem))


def _files_of(settings: BaseModel, prefix: str = "") -> dict[str, str]:
    """All settings whose names end in `_pem_path`, as `section.name`."""
    found: dict[str, str] = {}
    for name in type(settings).model_fields:
        value: Any = getattr(settings, name)
        if isinstance(value, BaseModel):
            found |= _files_of(value, f"{prefix}{name}.")
        elif name.endswith(_SUFFIX) and value:
            found[f"{prefix}{name}"] = str(value)
    return found

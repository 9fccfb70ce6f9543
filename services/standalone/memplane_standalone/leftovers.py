"""Ends what an earlier `memplane up` left running, which the kernel does by itself but for a parts' own children."""

import contextlib
import os
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "MEMPLANE_STANDALONE_HOME"
"""Variable in the environment of every process that `memplane up` starts, and of those that they start."""


def clear_leftovers(home: Path, *, grace_s: float = 5.0) -> int:
    """End every process marked with `home`, and return how many there were. The home's lock must be held."""
    found = [process for process in psutil.process_iter() if _is_marked(process, str(home))]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return len(found)


def _is_marked(process: psutil.Process, home: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == home
    except (psutil.Error, OSError):
        return False

"""Loopback ports that no other test gets, in whichever process it runs."""

import fcntl
import os
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

from memplane_core.embedded.ports import free_port

_given: Final[set[int]] = set()


def reserved_port(*, besides: Collection[int] = ()) -> int:
    """A free TCP port that is given to nobody else for as long as this process lives.

    A server listens a while after its port was chosen, and not while it is stopped: another would take it meanwhile.
    """
    while True:
        port = free_port(besides={*besides, *_given})
        try:
            fcntl.lockf(_book(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:  # another process's
            continue
        _given.add(port)
        return port


@cache
def _book() -> int:
    """A file whose n-th byte is locked by the process that has port n; never closed, as that would end its locks."""
    path = Path(tempfile.gettempdir(), f"memplane-test-ports-{os.getuid()}")
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)

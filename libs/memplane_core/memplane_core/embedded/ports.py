"""Free loopback ports."""

import random
import socket
from collections.abc import Collection

_FIRST, _LAST = 15_000, 32_000
"""Below the range that outgoing connections take, so that none sits on the port when its server comes back."""


def free_port(*, besides: Collection[int] = ()) -> int:
    """A TCP port that nothing listens on, and that is not among `besides`. Raises RuntimeError where none is found."""
    for _ in range(1000):
        port = random.SystemRandom().randint(_FIRST, _LAST)
        if port not in besides and port_is_free(port):
            return port
    raise RuntimeError(f"no free TCP port between {_FIRST} and {_LAST}")


def port_is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True

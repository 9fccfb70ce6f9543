"""Files that are written whole or not at all."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` by a file of `content` that only its owner reads (0600), in one step that a crash cannot halve."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise

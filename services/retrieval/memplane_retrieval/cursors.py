"""Cursors of lists: opaque to callers, the last id of a page to us."""

import base64
import binascii
from uuid import UUID

from memplane_core.domain.errors import invalid


def cursor_of(last: UUID) -> str:
    """The cursor that continues after `last`."""
    return base64.urlsafe_b64encode(last.bytes).decode().rstrip("=")


def last_of(cursor: str | None) -> UUID | None:
    """The id that a cursor continues after. Raises InvalidRequest for one that we did not make."""
    if cursor is None:
        return None
    try:
        return UUID(bytes=base64.b64decode(cursor + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise invalid("cursor", "must be the next_cursor of an earlier page") from None

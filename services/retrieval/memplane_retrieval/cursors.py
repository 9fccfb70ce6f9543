"""Cursors of lists: opaque to callers, a place in an order to us."""

import base64
import binascii
import hashlib
import struct
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from memplane_core.contracts.lists import Sort
from memplane_core.domain.errors import invalid
from memplane_core.domain.filters import Filter, fingerprint
from memplane_core.domain.memory import State, utc_text
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.lists import Order, Place

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIME: Final = struct.Struct(">q16s")
_NUMBER: Final = struct.Struct(">d16s")
_SEAL_BYTES: Final = 9  # with the rest a multiple of three, so that base64 needs no padding


class Cursors:
    """Makes and reads the cursors of one list: of one filter, state and moment in one order.

    A cursor is sealed with what it belongs to. That keeps mistakes out, and needs no secret: it says nothing that its
    holder has not seen, and a forged one only begins somewhere else in the holder's own list.
    """

    def __init__(self, where: Filter, sort: Sort, *, state: State = "active", valid_at: ValidAt = "now") -> None:
        self._order = Order.of(sort)
        self._layout = _TIME if self._order.is_time else _NUMBER
        held = "" if valid_at == "now" else f" {valid_at if valid_at == 'any' else utc_text(valid_at)}"
        self._key = hashlib.sha256(fingerprint(where) + f"{sort} {state}{held}".encode()).digest()

    def cursor_of(self, last: Place) -> str:
        """The cursor that continues after `last`."""
        value = (last.value - _EPOCH) // _MICROSECOND if isinstance(last.value, datetime) else last.value
        packed = self._layout.pack(value, last.id.bytes)
        return base64.urlsafe_b64encode(packed + self._seal(packed)).decode()

    def place_of(self, cursor: str | None, *, pointer: str) -> Place | None:
        """The place that a cursor continues after. Raises InvalidRequest for one that this list did not give."""
        if cursor is None:
            return None
        try:
            value, id_ = self._layout.unpack(self._unsealed(cursor))
            return Place(_EPOCH + value * _MICROSECOND if self._order.is_time else value, UUID(bytes=id_))
        except (binascii.Error, ValueError, OverflowError, struct.error):
            detail = "must be the next_cursor of an earlier page with the same filters, state, valid_at and sort"
            raise invalid(pointer, detail) from None

    def _unsealed(self, cursor: str) -> bytes:
        raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        packed = raw[: self._layout.size]
        if raw != packed + self._seal(packed):
            raise ValueError(cursor)
        return packed

    def _seal(self, packed: bytes) -> bytes:
        return hashlib.blake2b(packed, digest_size=_SEAL_BYTES, key=self._key).digest()

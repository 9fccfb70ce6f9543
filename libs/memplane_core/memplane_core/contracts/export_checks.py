"""What lines of an export must keep to, beside their types."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.contracts.checks import check_write, object_faults, text_faults
from memplane_core.contracts.export import (
    ID_BYTES,
    Count,
    HistoryLine,
    MemoryLine,
    Moment,
    ObservationLine,
    Total,
)
from memplane_core.contracts.memories import Importance, MemoryWrite, Priority, Scene
from memplane_core.contracts.observations import CITES
from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.domain.memory import CONTENT_BYTES, LABEL_BYTES, METADATA_BYTES, METADATA_DEPTH, to_utc
from memplane_core.domain.merge_ledger import Ledger, Own, Taken

_OBSERVED: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
"""When an observation can have come: it has a place that is no negative number, and room for others behind it."""

_CHANGES_BYTES: Final = 2 * (CONTENT_BYTES + METADATA_BYTES) * 6


def check_line(line: ObservationLine | MemoryLine | HistoryLine, *, pointer: str) -> None:
    """What the types cannot say.

    Raises:
        InvalidRequest: With a fault for each field that cannot be kept, or that another one contradicts.
    """
    match line:
        case MemoryLine():
            faults = _memory_faults(line)
        case ObservationLine():
            faults = _observation_faults(line)
        case HistoryLine():
            faults = _history_faults(line)
    if not isinstance(line, HistoryLine):
        check_write(_as_write(line), pointer=pointer)
    if faults:
        placed = [Fault(f"{pointer}/{fault.pointer}", fault.detail) for fault in faults]
        raise InvalidRequest("; ".join(f"{fault.pointer}: {fault.detail}" for fault in placed[:3]), faults=placed)
    for name in line.__struct_fields__:
        value: object = getattr(line, name)
        if isinstance(value, datetime):
            to_utc(value, pointer=f"{pointer}/{name}")


def _as_write(line: MemoryLine | ObservationLine) -> MemoryWrite:
    fields = frozenset(MemoryWrite.__struct_fields__) & frozenset(line.__struct_fields__)
    named = {name: getattr(line, name) for name in fields}
    return MemoryWrite(**named)


def _memory_faults(line: MemoryLine) -> list[Fault]:
    faults: list[Fault] = []
    if line.id.version != 7:
        faults.append(Fault("id", "must be a UUID of version 7"))
    if line.distinct and line.external_id is not None:
        faults.append(Fault("distinct", "must be false for a memory with an external_id"))
    if (line.merged_into is not None) != (line.state == "merged"):
        faults.append(Fault("merged_into", "must be given for a merged memory, and be null for all others"))
    if line.merged_into == line.id:
        faults.append(Fault("merged_into", "must be another memory"))
    if line.valid_from and line.valid_to and line.valid_to <= line.valid_from:
        faults.append(Fault("valid_to", "must be after valid_from"))
    if line.superseded_by is not None and (line.valid_to is None or line.superseded_by == line.id):
        faults.append(Fault("superseded_by", "must be another memory, for one that has a valid_to"))
    if line.state == "active" and line.purge_at is not None:
        faults.append(Fault("purge_at", "must be null for an active memory"))
    return faults if line.merges is None else faults + _ledger_faults(line.merges)


def _observation_faults(line: ObservationLine) -> list[Fault]:
    faults: list[Fault] = []
    if line.id.version != 7:
        faults.append(Fault("id", "must be a UUID of version 7"))
    if CITES in line.metadata:
        faults.append(Fault(f"metadata/{CITES}", "an observation is made from no memory"))
    first, end = _OBSERVED
    if not first <= line.observed_at < end:
        faults.append(Fault("observed_at", "must be a time between the years 1970 and 8999"))
    return faults


def _ledger_faults(ledger: Ledger) -> list[Fault]:
    """What could not be given back."""
    faults: list[Fault] = []
    parts: list[tuple[str, Own | Taken]] = [("own", ledger.own), ("made", ledger.made)]
    parts += [(f"taken/{n}", taken) for n, taken in enumerate(ledger.taken)]
    for where, part in parts:
        try:
            msgspec.convert(msgspec.to_builtins(part), _Kept if isinstance(part, Own) else _Brought)
        except msgspec.ValidationError as error:
            faults.append(Fault(f"merges/{where}", str(error)))
        else:
            for scene in part.scene or ():
                faults += text_faults(scene, f"merges/{where}/scene", LABEL_BYTES)
            if part.last_accessed_at is not None:
                faults += _moment_faults(part.last_accessed_at, f"merges/{where}/last_accessed_at")
    return faults


def _moment_faults(moment: datetime, pointer: str) -> list[Fault]:
    """What keeps it from being read again once it is stored."""
    try:
        to_utc(moment, pointer=pointer)
    except InvalidRequest as error:
        return list(error.faults)
    return []


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """An `Own` whose values can be a memory's."""

    scene: Scene
    importance: Importance
    priority: Priority
    last_accessed_at: Moment


class _Brought(msgspec.Struct, forbid_unknown_fields=True):
    """A `Taken` whose values can be a memory's."""

    id: UUID
    scene: Scene | None = None
    importance: Importance | None = None
    priority: Priority | None = None
    last_accessed_at: Moment | None = None
    uses: Count = 0
    helpful: Total = 0
    not_helpful: Total = 0


def _history_faults(line: HistoryLine) -> list[Fault]:
    faults: list[Fault] = []
    for name in ("event", "key_id", "request_id"):
        faults += text_faults(getattr(line, name), name, ID_BYTES)
    # One level more than metadata, which is a value in it.
    details = object_faults(line.changes, most_bytes=_CHANGES_BYTES, most_deep=METADATA_DEPTH + 1)
    return [*faults, *(Fault("changes", detail) for detail in details)]

"""Reads a part of an import, line by line, up to the first that cannot be taken."""

from typing import Any, cast

import msgspec

from memplane_core.contracts.export import (
    FORMAT,
    FORMAT_VERSION,
    LINE_BYTES,
    HeaderLine,
    HistoryLine,
    Line,
    MemoryLine,
    ObservationLine,
    PolicyLine,
    TrailerLine,
)
from memplane_core.contracts.export_checks import check_line
from memplane_core.contracts.imports import ImportFault, ImportPlace
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.chunking import FindableText, findable
from memplane_core.domain.errors import Fault, MemplaneError, invalid
from memplane_core.domain.memory import head_of, to_utc
from memplane_core.domain.observations import Session
from memplane_core.web.bodies import decode_json, refuse_repeated_keys

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(cast("Any", Line))


class Numbered(msgspec.Struct, frozen=True):
    """A memory and its line."""

    number: int
    line: MemoryLine


class Held(msgspec.Struct, frozen=True):
    """An observation and its line."""

    number: int
    line: ObservationLine

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return Session(user_id=self.line.user_id, agent_id=self.line.agent_id, session_id=self.line.session_id)


class Entry(msgspec.Struct, frozen=True):
    """A piece of a memory's history and its line."""

    number: int
    line: HistoryLine


class ImportPart(msgspec.Struct, kw_only=True):
    """What a part holds.

    Attributes:
        held: Observations in their order, times in UTC.
        memories: In their order, times in UTC.
        entries: In their order.
        place: Where the next part begins.
        fault: Of the line at which reading stopped; all above is good.
    """

    held: list[Held]
    memories: list[Numbered]
    entries: list[Entry]
    place: ImportPlace
    policy: PolicyPatch | None = None
    trailer: TrailerLine | None = None
    fault: ImportFault | None = None


def read_part(body: bytes, place: ImportPlace) -> ImportPart:
    """The lines of `body`, of which the first is the one at `place`."""
    part = ImportPart(held=[], memories=[], entries=[], place=place)
    lines = body.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    for number, raw in enumerate(lines, place.line):
        try:
            _take(part, number, raw)
        except MemplaneError as error:
            faults = list(error.faults) or [Fault(f"/lines/{number}", error.detail)]
            part.fault = ImportFault(line=number, status=422, detail=error.detail, errors=faults)
            break
        part.place = msgspec.structs.replace(part.place, line=number + 1)
    return part


def _take(part: ImportPart, number: int, raw: bytes) -> None:
    pointer = f"/lines/{number}"
    if part.place.ended:
        raise invalid(pointer, "nothing may follow the trailer")
    line = _decode(raw, pointer)
    if (number == 1) != isinstance(line, HeaderLine):
        raise invalid(f"{pointer}/kind", "the first line must be a header of this format, and no other may be one")
    match line:
        case HeaderLine():
            assert (line.format, line.version) == (FORMAT, FORMAT_VERSION)  # by its type
        case PolicyLine():
            if number != 2:
                raise invalid(f"{pointer}/kind", "a policy must be the second line")
            part.policy = line.policy
        case ObservationLine():
            _take_observation(part, number, line, pointer=pointer)
        case MemoryLine():
            _take_memory(part, number, line, pointer=pointer)
        case HistoryLine():
            _take_entry(part, number, line, pointer=pointer)
        case TrailerLine():
            part.trailer = line
            part.place = msgspec.structs.replace(part.place, ended=True)


def _take_observation(part: ImportPart, number: int, line: ObservationLine, *, pointer: str) -> None:
    check_line(line, pointer=pointer)
    if part.place.memory is not None:
        raise invalid(f"{pointer}/kind", "observations must stand before all memories")
    before = part.place.observation
    if before is not None and line.id <= before:
        raise invalid(f"{pointer}/id", "must be greater than that of the observation before: each comes once, in order")
    times = {name: to_utc(getattr(line, name), pointer=name) for name in ("occurred_at", "observed_at")}
    part.held.append(Held(number, msgspec.structs.replace(line, scene=list(dict.fromkeys(line.scene)), **times)))
    part.place = msgspec.structs.replace(part.place, observation=line.id)


def _take_memory(part: ImportPart, number: int, line: MemoryLine, *, pointer: str) -> None:
    check_line(line, pointer=pointer)
    before = part.place.memory
    if before is not None and line.id <= before:
        raise invalid(f"{pointer}/id", "must be greater than the id of the memory before: each comes once, in order")
    part.memories.append(Numbered(number, _in_utc(line)))
    part.place = ImportPlace(line=number, memory=line.id, version=line.version)


def _take_entry(part: ImportPart, number: int, line: HistoryLine, *, pointer: str) -> None:
    check_line(line, pointer=pointer)
    if line.memory_id != part.place.memory:
        raise invalid(f"{pointer}/memory_id", "must be the id of the memory above")
    if not part.place.entry < line.version <= part.place.version:
        raise invalid(
            f"{pointer}/version", "must be greater than that of the entry before, and not above that of the memory"
        )
    part.entries.append(Entry(number, line))
    part.place = msgspec.structs.replace(part.place, entry=line.version)


def _decode(raw: bytes, pointer: str) -> Line:
    """The line. Raises InvalidRequest, MalformedRequest."""
    if len(raw) > LINE_BYTES:
        raise invalid(pointer, f"must be at most {LINE_BYTES:,} bytes long")
    try:
        line = _DECODER.decode(raw)
        refuse_repeated_keys(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            decode_json(raw, cast("type[Any]", Line))
        except MemplaneError as error:
            raise _placed(error, pointer) from None
        raise
    except MemplaneError as error:
        raise _placed(error, pointer) from None
    return line


def _placed(error: MemplaneError, pointer: str) -> MemplaneError:
    """The same, with faults that point into the whole."""
    faults = [Fault(f"{pointer}{fault.pointer}", fault.detail) for fault in error.faults]
    faults = faults or [Fault(pointer, error.detail.replace("the body", "the line"))]
    return invalid_line(faults)


def invalid_line(faults: list[Fault]) -> MemplaneError:
    """An InvalidRequest of these faults."""
    error = invalid(faults[0].pointer, faults[0].detail)
    error.faults = tuple(faults)
    return error


def _in_utc(line: MemoryLine) -> MemoryLine:
    """The same with times in UTC, an expiry to the second, and no tag twice."""
    times = {
        name: to_utc(value, pointer=name)
        for name in ("occurred_at", "expires_at", "valid_from", "valid_to", "created_at", "updated_at",
                     "last_accessed_at", "purge_at", "priority_moved_at")
        if (value := getattr(line, name)) is not None
    }  # fmt: skip
    if "expires_at" in times:
        times["expires_at"] = times["expires_at"].replace(microsecond=0)
    return msgspec.structs.replace(line, scene=list(dict.fromkeys(line.scene)), **times)


def words_of(line: MemoryLine) -> FindableText:
    """What a memory is found by until it has been embedded."""
    return findable(line.content, head=head_of(line.actor, line.occurred_at), embedded=None)

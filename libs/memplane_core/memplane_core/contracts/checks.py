"""Limits that a type cannot say: lengths in bytes, text that no store can keep, times out of range."""

from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import UNSET

from memplane_core.contracts.memories import BatchWrite, EntityFilter, MemoryFields, MemoryPatch, MemoryWrite
from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.domain.memory import CONTENT_BYTES, ENTITY_BYTES, LABEL_BYTES, METADATA_BYTES

_BYTES = {
    "content": CONTENT_BYTES,
    "external_id": ENTITY_BYTES,
    "actor": ENTITY_BYTES,
    "user_id": ENTITY_BYTES,
    "agent_id": ENTITY_BYTES,
    "session_id": ENTITY_BYTES,
    "source": LABEL_BYTES,
    "memory_type": LABEL_BYTES,
}


def check_write(write: MemoryWrite, *, pointer: str = "") -> None:
    """Raises InvalidRequest with a fault for each field of `write` that cannot be kept."""
    _raise(_faults(write, pointer))


def check_batch(batch: BatchWrite) -> None:
    """`check_write` for each memory of a batch."""
    faults: list[Fault] = []
    for n, write in enumerate(batch.memories):
        faults += _faults(write, f"/memories/{n}")
    _raise(faults)


def check_patch(patch: MemoryPatch) -> None:
    """Raises InvalidRequest for a field that cannot be kept, or where nothing is to be changed."""
    if all(getattr(patch, name) is UNSET for name in patch.__struct_fields__):
        raise InvalidRequest("the patch names no field", faults=[Fault("", "name at least one field to change")])
    _raise(_faults(patch, ""))


def check_filter(where: EntityFilter, *, prefix: str = "/filters/") -> None:
    """Raises InvalidRequest for a value that no memory can have; `prefix` goes before each field's name."""
    faults: list[Fault] = []
    for name in where.__struct_fields__:
        value: object = getattr(where, name)
        if isinstance(value, str):
            faults += text_faults(value, f"{prefix}{name}", _BYTES[name])
    _raise(faults)


def text_faults(text: str, pointer: str, limit: int) -> list[Fault]:
    """What keeps `text` from being stored: its length in bytes, or a NUL."""
    size = len(text.encode())
    faults = [Fault(pointer, f"must be at most {limit} bytes of UTF-8, not {size}")] if size > limit else []
    if "\0" in text:
        faults.append(Fault(pointer, "must not hold a NUL character"))
    return faults


def _faults(fields: MemoryFields, pointer: str) -> list[Fault]:
    faults: list[Fault] = []
    for name, limit in _BYTES.items():
        value: object = getattr(fields, name, UNSET)
        if isinstance(value, str):
            faults += text_faults(value, f"{pointer}/{name}", limit)
    if isinstance(fields.scene, list):
        for n, scene in enumerate(fields.scene):
            faults += text_faults(scene, f"{pointer}/scene/{n}", LABEL_BYTES)
    if isinstance(fields.metadata, dict):
        raw = msgspec.json.encode(fields.metadata)
        if len(raw) > METADATA_BYTES:
            faults.append(Fault(f"{pointer}/metadata", f"must be at most {METADATA_BYTES} bytes of JSON"))
        if b"\\u0000" in raw and _has_nul(fields.metadata):
            faults.append(Fault(f"{pointer}/metadata", "must not hold a NUL character"))
    return faults


def _has_nul(value: object) -> bool:
    """True where a key or a string inside holds a NUL; text that merely spells its escape is none."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or _has_nul(inner) for key, inner in cast("dict[str, object]", value).items())
    return isinstance(value, list) and any(_has_nul(inner) for inner in cast("list[object]", value))


def _raise(faults: Sequence[Fault]) -> None:
    if faults:
        detail = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults[:3])
        raise InvalidRequest(detail, faults=faults)

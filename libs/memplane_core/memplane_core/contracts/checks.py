"""Limits that a type cannot say: lengths in bytes, text that no store can keep, times out of range."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
from msgspec import UNSET

from memplane_core.contracts.memories import (
    BatchWrite,
    MemoryFields,
    MemoryPatch,
    MemoryWrite,
    RecallFields,
    SessionRef,
)
from memplane_core.contracts.policy import MaintenancePatch, PolicyPatch, PrioritySchedule
from memplane_core.domain.context import ContextTemplate, check_template
from memplane_core.domain.errors import Fault, InvalidRequest, invalid
from memplane_core.domain.filters import parse_filter
from memplane_core.domain.memory import (
    CONTENT_BYTES,
    ENTITY_BYTES,
    LABEL_BYTES,
    METADATA_BYTES,
    METADATA_DEPTH,
    to_utc,
)
from memplane_core.domain.ranking import Weights
from memplane_core.domain.validity import valid_at_of

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

_QUERY_BYTES = 8192


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
    changed_fields(patch)
    _raise(_faults(patch, ""))


def check_ids(body: msgspec.Struct, *names: str, pointer: str = "/") -> None:
    """Raises InvalidRequest with a fault for each of these fields of a body that no id of a user or agent can be.

    `pointer` is what comes before the name of a field in a fault.
    """
    faults: list[Fault] = []
    for name in names:
        value: object = getattr(body, name)
        if isinstance(value, str):
            faults += text_faults(value, f"{pointer}{name}", ENTITY_BYTES)
    _raise(faults)


def check_session(session: SessionRef, *, pointer: str = "/") -> None:
    """`check_ids` for all that names a session."""
    check_ids(session, "session_id", "user_id", "agent_id", pointer=pointer)


def changed_fields(patch: msgspec.Struct, *, noun: str = "field") -> dict[str, Any]:
    """What a patch names, by field. Raises InvalidRequest where that is nothing.

    Args:
        patch: A field that it leaves out is UNSET.
        noun: What a field of it is called.
    """
    named = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    if not named:
        raise InvalidRequest(f"the patch names no {noun}", faults=[Fault("", f"name at least one {noun} to change")])
    return named


def check_recall(asked: RecallFields) -> None:
    """Raises InvalidRequest for a question that no search can answer, whatever is made of what it finds."""
    _raise(text_faults(asked.query, "/query", _QUERY_BYTES))
    parse_filter(asked.filters)
    if asked.now is not None:
        to_utc(asked.now, pointer="/now")
    valid_at_of(asked.valid_at, pointer="/valid_at")
    if asked.weights is not None:
        if asked.preset is not None:
            raise invalid("/preset", "cannot be given together with weights")
        check_weights(asked.weights)
    if asked.include_short_term is not None:
        check_session(asked.include_short_term, pointer="/include_short_term/")


def check_weights(weights: Weights) -> None:
    """Raises InvalidRequest where no part of a score would count."""
    if weights.total == 0:
        raise invalid("/weights", "at least one weight must be above 0")


def check_thresholds(thresholds: Sequence[float], *, pointer: str) -> None:
    """Raises InvalidRequest where a higher priority would take less than a lower one."""
    if any(after <= before for before, after in pairwise(thresholds)):
        raise invalid(pointer, "must ascend: each threshold above the one before it")


def check_policy(patch: PolicyPatch) -> None:
    """Raises InvalidRequest where what a policy names could not be worked by. For every way that one comes."""
    if isinstance(patch.weights, Weights):
        check_weights(patch.weights)
    if isinstance(patch.context_template, ContextTemplate):
        check_template(patch.context_template, pointer="/context_template")
    if isinstance(patch.maintenance, MaintenancePatch) and isinstance(patch.maintenance.priorities, PrioritySchedule):
        check_thresholds(patch.maintenance.priorities.thresholds, pointer="/maintenance/priorities/thresholds")


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
        details = object_faults(fields.metadata, most_bytes=METADATA_BYTES, most_deep=METADATA_DEPTH)
        faults += [Fault(f"{pointer}/metadata", detail) for detail in details]
    return faults


def object_faults(value: Mapping[str, object], *, most_bytes: int, most_deep: int) -> list[str]:
    """What keeps a JSON object from being stored: its length, its depth, or a NUL in it."""
    depth, has_nul = _depth_and_nul(value, most_deep)
    if depth > most_deep:
        # Some hundreds deep it could be stored, and then no answer with it in it be written.
        return [f"must nest objects and lists at most {most_deep} deep"]
    faults = ["must not hold a NUL character"] if has_nul else []
    if len(msgspec.json.encode(value)) > most_bytes:
        faults.append(f"must be at most {most_bytes} bytes of JSON")
    return faults


def _depth_and_nul(metadata: Mapping[str, object], most: int) -> tuple[int, bool]:
    """How deep it is nested, itself included, counted to just past the limit; whether a key or text holds a NUL."""
    depth, has_nul = 0, False
    level: list[object] = [metadata]
    while level and depth <= most:
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                has_nul = has_nul or any("\0" in key for key in cast("dict[str, object]", value))
                inner += cast("dict[str, object]", value).values()
            elif isinstance(value, list):
                inner += cast("list[object]", value)
            elif isinstance(value, str):
                has_nul = has_nul or "\0" in value
        depth += any(isinstance(value, dict | list) for value in level)
        level = inner
    return depth, has_nul


def _raise(faults: Sequence[Fault]) -> None:
    if faults:
        detail = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults[:3])
        raise InvalidRequest(detail, faults=faults)

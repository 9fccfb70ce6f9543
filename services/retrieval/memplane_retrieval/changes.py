"""What a write or a patch makes of a memory."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import uuid_utils.compat
from msgspec import UNSET

from memplane_core.contracts.memories import MemoryFields, MemoryWrite
from memplane_core.contracts.policy import Policy
from memplane_core.domain.chunking import FindableText
from memplane_core.domain.importance import guess_importance
from memplane_core.domain.memory import (
    DEFAULT_PRIORITY,
    DEFAULT_TYPE,
    IDENTITY_FIELDS,
    INDEX_FIELDS,
    TEXT_FIELDS,
    Memory,
    dedup_key,
    to_utc,
)
from memplane_core.domain.validity import check_interval
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.new_memories import NewMemory
from memplane_retrieval.embedding import TextToChunk

_DEFAULTS: Final[dict[str, Any]] = {
    "actor": None,
    "scene": [],
    "source": None,
    "memory_type": DEFAULT_TYPE,
    "user_id": None,
    "agent_id": None,
    "session_id": None,
    "priority": DEFAULT_PRIORITY,
    "pinned": False,
    "metadata": {},
    "expires_at": None,
    "valid_from": None,
    "valid_to": None,
}


def given_fields(fields: MemoryFields, *, pointer: str = "") -> dict[str, Any]:
    """The fields that the caller named, with times in UTC; an expiry is kept to the second.

    Raises:
        InvalidRequest: A time is out of range.
    """
    given = {
        name: value
        for name in fields.__struct_fields__
        if name not in ("external_id", "on_duplicate", "supersedes") and (value := getattr(fields, name)) is not UNSET
    }
    if "occurred_at" in given:
        given["occurred_at"] = to_utc(given["occurred_at"], pointer=f"{pointer}/occurred_at")
    if given.get("expires_at") is not None:
        given["expires_at"] = to_utc(given["expires_at"], pointer=f"{pointer}/expires_at").replace(microsecond=0)
    for name in ("valid_from", "valid_to"):
        if given.get(name) is not None:
            given[name] = to_utc(given[name], pointer=f"{pointer}/{name}")
    if "scene" in given:
        given["scene"] = list(dict.fromkeys(given["scene"]))
    return given


def new_memory(write: MemoryWrite, *, now: datetime, policy: Policy, pointer: str = "") -> NewMemory:
    """A memory with a fresh id, defaults where the caller said nothing, and its twin's key unless it has a name."""
    given = given_fields(write, pointer=pointer)
    occurred_at: datetime | None = given.pop("occurred_at", None)
    scorer = policy.importance_scorer
    importance = policy.default_importance if scorer == "default" else guess_importance(given["content"])
    values: dict[str, Any] = {**_DEFAULTS, "importance": importance, **given}
    check_interval(values["valid_from"], values["valid_to"], pointer=pointer)
    key = dedup_key(
        content=values["content"],
        actor=values["actor"],
        memory_type=values["memory_type"],
        user_id=values["user_id"],
        agent_id=values["agent_id"],
        session_id=values["session_id"],
        occurred_at=occurred_at,
        valid_from=values["valid_from"],
        valid_to=values["valid_to"],
    )
    return NewMemory(
        id=uuid_utils.compat.uuid7(),
        external_id=write.external_id,
        occurred_at=occurred_at or now,
        occurred_given=occurred_at is not None,
        dedup_key=None if write.external_id is not None else key,
        unscored=scorer == "llm" and "importance" not in given,
        **values,
    )


class Amended(msgspec.Struct, frozen=True, kw_only=True):
    """A memory after a change, and what the change touches.

    Attributes:
        changed: Old values of the fields that differ.
        reindex: The index holds something that differs.
        new_text: The indexed text differs: it has to be embedded again.
    """

    after: Memory
    occurred_given: bool
    dedup_key: bytes | None
    changed: dict[str, Any]
    reindex: bool
    new_text: bool

    @property
    def text(self) -> TextToChunk:
        """What its chunks are made of."""
        return TextToChunk(self.after.content, self.after.actor, self.after.occurred_at)

    def as_change(self, locked: Revision, *, revive: bool, text: FindableText | None) -> Change:
        """What is to be stored of it, now that the memory is locked; `text` is given where it is new."""
        return Change(
            before=locked,
            after=self.after,
            occurred_given=self.occurred_given,
            dedup_key=self.dedup_key,
            revive=revive,
            reindex=self.reindex or revive,
            text=text,
            changed=self.changed,
        )


def amend(before: Revision, given: dict[str, Any]) -> Amended:
    """`before` with the given fields; what is not named stays.

    An importance that is given counts as changed where nobody had given one, though it be the same number. What has no
    end any more is not superseded either.

    Raises:
        InvalidRequest: It would end before it begins.
    """
    memory = before.memory
    changed = {name: old for name, value in given.items() if not _same(old := getattr(memory, name), value)}
    if before.unscored and "importance" in given:
        changed["importance"] = memory.importance
    if memory.superseded_by is not None and given.get("valid_to", memory.valid_to) is None:
        given = given | {"superseded_by": None}
        changed["superseded_by"] = memory.superseded_by
    after = msgspec.structs.replace(memory, **given)
    check_interval(after.valid_from, after.valid_to)
    occurred_given = before.occurred_given or "occurred_at" in given
    key = before.dedup_key
    if key is not None and (changed.keys() & IDENTITY_FIELDS or occurred_given != before.occurred_given):
        key = dedup_key(
            content=after.content,
            actor=after.actor,
            memory_type=after.memory_type,
            user_id=after.user_id,
            agent_id=after.agent_id,
            session_id=after.session_id,
            occurred_at=after.occurred_at if occurred_given else None,
            valid_from=after.valid_from,
            valid_to=after.valid_to,
        )
    return Amended(
        after=after,
        occurred_given=occurred_given,
        dedup_key=key,
        changed=changed,
        reindex=bool(changed.keys() & INDEX_FIELDS),
        new_text=bool(changed.keys() & TEXT_FIELDS),
    )


def _same(old: object, new: object) -> bool:
    """Equal as JSON: to Python, 1 is true as well."""
    if isinstance(old, dict):
        return msgspec.json.encode(old, order="deterministic") == msgspec.json.encode(new, order="deterministic")
    return old == new


def repeated(twin: Revision, writes: Sequence[MemoryWrite]) -> dict[str, Any]:
    """What writes of a memory that is there already, one after the other, make of its fields."""
    given: dict[str, Any] = {}
    expires_at = twin.memory.expires_at
    for write in writes:
        fields = given_fields(write)
        if write.on_duplicate == "update":
            given |= fields
            expires_at = fields.get("expires_at", expires_at)
        else:
            expires_at = later_expiry(expires_at, fields.get("expires_at"))
    return given | {"expires_at": expires_at}


def later_expiry(known: datetime | None, given: datetime | None) -> datetime | None:
    """The later of two expiries; None is never."""
    return None if known is None or given is None else max(known, given)


def folded(first: MemoryWrite, repeat: MemoryWrite) -> MemoryWrite:
    """One write for two of the same memory in one batch, as if they had come one after the other."""
    if first.external_id is None and repeat.on_duplicate == "return":
        return _with_later_expiry(first, repeat)
    named = {
        name: value
        for name in repeat.__struct_fields__
        if name != "on_duplicate" and (value := getattr(repeat, name)) is not UNSET
    }
    return msgspec.structs.replace(first, **named)


def _with_later_expiry(first: MemoryWrite, repeat: MemoryWrite) -> MemoryWrite:
    known, given = (None if write.expires_at is UNSET else write.expires_at for write in (first, repeat))
    if known is None or given is None:
        return msgspec.structs.replace(first, expires_at=None)
    later = max(to_utc(known, pointer="/expires_at"), to_utc(given, pointer="/expires_at"))
    return msgspec.structs.replace(first, expires_at=later)

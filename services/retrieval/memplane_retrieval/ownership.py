"""Whose the memories of a write or a patch are."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from memplane_core.contracts.memories import MemoryFields, MemoryPatch, MemoryWrite
from memplane_core.contracts.policy import Policy
from memplane_core.domain.binding import check_fields
from memplane_core.domain.tenancy import Principal


def owned(principal: Principal, writes: Sequence[MemoryWrite], *, policy: Policy, batch: bool) -> list[MemoryWrite]:
    """`writes` with what the caller's key is bound to filled in.

    Raises:
        Forbidden: One names somebody else.
        InvalidRequest: One names no user, and the policy asks for it.
    """
    given: list[MemoryWrite] = []
    for n, write in enumerate(writes):
        named = _named(write)
        if policy.require_user:
            named = {"user_id": principal.bind_user_id} | named
        pointer = f"/memories/{n}/" if batch else "/"
        check_fields(principal, named, require_user=policy.require_user, pointer=pointer)
        given.append(msgspec.structs.replace(write, **principal.bind) if principal.bind else write)
    return given


def check_patch_owner(principal: Principal, patch: MemoryPatch, *, policy: Policy) -> None:
    """Check that a patch gives the memory to nobody else.

    Raises:
        Forbidden: It does.
        InvalidRequest: It takes the memory's user away, and the policy asks for one.
    """
    check_fields(principal, _named(patch), require_user=policy.require_user)


def _named(fields: MemoryFields) -> dict[str, object]:
    given = {"user_id": fields.user_id, "agent_id": fields.agent_id}
    return {name: value for name, value in given.items() if value is not UNSET}

"""What a bound key may touch: the memories of its user and agent, and nothing else.

The one place for it. Reads put `narrowed` around their filter or ask `sees`; writes and patches ask `check_fields`.
"""

from collections.abc import Mapping
from typing import Final, Protocol, cast

from memplane_core.domain.errors import Fault, Forbidden, InvalidRequest
from memplane_core.domain.filters import EVERYTHING, FIELDS, And, Condition, Filter, index_superset
from memplane_core.domain.tenancy import Principal

_NOTHING_NAMED: Final = "this tenant asks for a user_id here: name one, or use a key that is bound to a user"


def narrowed(principal: Principal, where: Filter, *, require_user: bool = False, pointer: str = "/filters/") -> Filter:
    """`where` among the memories that the caller may see.

    Args:
        principal: Who is asking.
        where: What is asked for.
        require_user: Whether the tenant's policy asks every request to name a user.
        pointer: What comes before the name of a field in a fault.

    Raises:
        Forbidden: It asks for nothing but memories of others.
        InvalidRequest: It names no user, and has to.
    """
    if principal.bind:
        asked = index_superset(where, alive_at=0)
        for name, value in principal.bind.items():
            allowed = cast("tuple[str, ...] | None", getattr(asked, name))
            if allowed is not None and value not in allowed:
                raise _conflict(name, pointer)
    if require_user and principal.bind_user_id is None and not _names_user(where):
        raise InvalidRequest(f"{pointer}user_id: {_NOTHING_NAMED}", faults=[Fault(f"{pointer}user_id", _NOTHING_NAMED)])
    return And((visible(principal), where)) if principal.bind else where


def visible(principal: Principal) -> Filter:
    """What every memory that the caller may see fulfils."""
    if not principal.bind:
        return EVERYTHING
    return And(tuple(Condition(FIELDS[name], "in", (value,)) for name, value in principal.bind.items()))


class Owned(Protocol):
    """What belongs to a user and an agent: a memory, a session."""

    @property
    def user_id(self) -> str | None:
        """Whose it is."""
        ...

    @property
    def agent_id(self) -> str | None:
        """Which agent's it is."""
        ...


def sees(principal: Principal, its: Owned) -> bool:
    """Whether the caller may know of it at all."""
    return all(getattr(its, name) == value for name, value in principal.bind.items())


def check_fields(
    principal: Principal, named: Mapping[str, object], *, require_user: bool = False, pointer: str = "/"
) -> None:
    """Check the entity fields that a write or a patch names.

    Args:
        principal: Who is writing.
        named: Those that it names, with their values; None where it asks for none.
        require_user: Whether the memory has to belong to a user.
        pointer: What comes before the name of a field in a fault.

    Raises:
        Forbidden: One of them is not the caller's.
        InvalidRequest: `user_id` is taken away, and has to be there.
    """
    for name, value in principal.bind.items():
        if name in named and named[name] != value:
            raise _conflict(name, pointer)
    if require_user and named.get("user_id", "") is None:
        raise InvalidRequest(f"{pointer}user_id: {_NOTHING_NAMED}", faults=[Fault(f"{pointer}user_id", _NOTHING_NAMED)])


def _conflict(name: str, pointer: str) -> Forbidden:
    detail = f"this key is bound to another {name}"
    return Forbidden(f"{pointer}{name}: {detail}", faults=[Fault(f"{pointer}{name}", detail)])


def _names_user(where: Filter) -> bool:
    """Whether it asks for named users at its top level."""
    match where:
        case And():
            return any(_names_user(part) for part in where.parts)
        case Condition():
            return where.field.name == "user_id" and where.op == "in"
        case _:
            return False

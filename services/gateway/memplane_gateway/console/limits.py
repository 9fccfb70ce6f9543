"""A tenant's limits, for operators: what was set, what holds, and how full the quotas are."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_type_hints
from uuid import UUID

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.limits import (
    Amount,
    BatchItems,
    BodyBytes,
    EffectiveLimits,
    QuotaUse,
    Rate,
    TenantLimits,
    TenantLimitsView,
    UsageView,
)
from memplane_core.domain.errors import Fault, invalid
from memplane_gateway.console.calls import Refused
from memplane_gateway.console.rendering import number, seconds
from memplane_gateway.console.tenants import operators_only
from memplane_gateway.console.visits import Form, Visit

Choice = Literal["default", "unlimited", "number"]
Given = Rate | int | Literal["unlimited"] | None
"""A limit as it is set; None is the installation's default."""


class Part(msgspec.Struct, frozen=True):
    """A number that a limit is made of.

    Attributes:
        name: Of the field of a rate; empty where the limit is one number.
        label: What is counted; stands behind the field.
        kind: Its type in the body, which says what it may be.
    """

    name: str
    label: str
    kind: Any

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest that it may be."""
        info = msgspec.inspect.type_info(self.kind)
        assert isinstance(info, msgspec.inspect.IntType)
        assert info.ge is not None
        assert info.le is not None
        return info.ge, info.le


_RATE: Final = tuple(Part(name, name, kind) for name, kind in get_type_hints(Rate, include_extras=True).items())


class Limit(msgspec.Struct, frozen=True):
    """A limit as the page offers it.

    Attributes:
        lifted: Whether it may be set to none at all.
        quota: Field of the usage that tells how full it is.
    """

    name: str
    label: str
    parts: Sequence[Part] = _RATE
    lifted: bool = True
    quota: Literal["", "stored_memories", "tokens_today"] = ""


class Group(msgspec.Struct, frozen=True):
    """Limits that are saved together."""

    name: str
    title: str
    told: str
    limits: Sequence[Limit]


GROUPS: Final = (
    Group(
        "quotas",
        "Quotas",
        "What the tenant may have. One set below what is used takes nothing away; nothing more can be added.",
        (
            Limit("stored_memories", "Stored memories", (Part("", "memories", Amount),), quota="stored_memories"),
            Limit("tokens_a_day", "Tokens a day", (Part("", "tokens", Amount),), quota="tokens_today"),
        ),
    ),
    Group(
        "rates",
        "Rates",
        "How many requests all keys of the tenant may make together, in any span of so many seconds.",
        (
            Limit("search", "Requests that read"),
            Limit("write", "Requests that change something"),
            Limit("admin", "Requests of its own administration"),
        ),
    ),
    Group(
        "requests",
        "Requests",
        "How large a single one may be.",
        (
            Limit("body_bytes", "Longest body", (Part("", "bytes", BodyBytes),), lifted=False),
            Limit("batch_items", "Largest batch", (Part("", "memories", BatchItems),), lifted=False),
        ),
    ),
)
_BY_NAME: Final = {group.name: group for group in GROUPS}


class Box(msgspec.Struct, frozen=True):
    """A field for a number, as it is filled in.

    Attributes:
        name: Of the field of the form.
        fault: What is wrong with it; empty where nothing is.
    """

    name: str
    label: str
    value: str
    least: int
    most: int
    fault: str


class Row(msgspec.Struct, frozen=True):
    """A limit as the page shows it.

    Attributes:
        was: What it was set to when the page was made, so that only what somebody changed is saved.
        holds: What the installation's default comes to; empty where it does not hold.
        use: How full it is, for a quota.
    """

    limit: Limit
    choice: str
    was: str
    holds: str
    boxes: list[Box]
    use: QuotaUse | None


class _Filled(msgspec.Struct, frozen=True):
    """One limit of a form.

    Attributes:
        texts: What the boxes hold, by their names.
        faults: What is wrong with them, likewise.
    """

    choice: str
    was: str
    texts: Mapping[str, str]
    faults: Mapping[str, str] = {}


@get("/t/{tenant:uuid}/limits")
async def limits_page(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """What is set, as forms."""
    operators_only(visit)
    return await _show(visit, tenant)


@post("/t/{tenant:uuid}/limits", status_code=200)
async def change_limits(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Save those of one group that were changed."""
    operators_only(visit)
    form = await visit.form()
    group = _BY_NAME.get(form.text("group") or "")
    if group is None:
        raise invalid("group", "is no group of fields")
    filled = {limit.name: _filled(form, limit) for limit in group.limits}
    if any(its.faults for its in filled.values()):
        return await _show(visit, tenant, filled=filled)
    values: dict[str, Given] = {limit.name: _value(limit, filled[limit.name]) for limit in group.limits}
    changed = {name: value for name, value in values.items() if _told(value) != filled[name].was}
    if not changed:
        return await _show(visit, tenant, notice="Nothing was changed.")
    try:
        await visit.send("PATCH", f"{visit.base(tenant)}/limits", body=changed, repeat_key=form.text("once"))
    except Refused as refused:
        marked = _with(refused.faults, filled)
        if marked == filled:
            raise
        return await _show(visit, tenant, filled=marked)
    return await _show(visit, tenant, notice=f"{group.title} are saved. Every gateway knows within ten seconds.")


async def _show(
    visit: Visit, tenant: UUID, *, notice: str | None = None, filled: Mapping[str, _Filled] | None = None
) -> Response[bytes]:
    view = (await visit.ask(f"{visit.base(tenant)}/limits")).read(TenantLimitsView)
    usage = (await visit.ask(f"{visit.base(tenant)}/usage")).read(UsageView)
    given = filled or {}
    rows = {
        limit.name: _row(limit, view, usage=usage, filled=given.get(limit.name))
        for group in GROUPS
        for limit in group.limits
    }
    # A form whose answer the page's script puts in is told of as a success, like every other of its faults.
    return await visit.page(
        "limits.html",
        title="Limits",
        tenant=tenant,
        status=200 if filled is None or visit.htmx else 422,
        groups=GROUPS,
        rows=rows,
        usage=usage,
        notice=notice,
        fault=None if filled is None else "Nothing is saved: see the fields that are marked.",
    )


def _row(limit: Limit, view: TenantLimitsView, *, usage: UsageView, filled: _Filled | None) -> Row:
    its = filled or _as_filled(limit, view.limits)
    return Row(
        limit=limit,
        choice=its.choice,
        was=its.was,
        holds=_holds(limit, view.effective) if getattr(view.limits, limit.name) is None else "",
        boxes=[
            Box(
                name=_box(limit, part),
                label=part.label,
                value=its.texts.get(_box(limit, part), ""),
                least=part.bounds[0],
                most=part.bounds[1],
                fault=its.faults.get(_box(limit, part), ""),
            )
            for part in limit.parts
        ],
        use=getattr(usage, limit.quota) if limit.quota else None,
    )


def _box(limit: Limit, part: Part) -> str:
    return f"{limit.name}.{part.name or 'number'}"


def _holds(limit: Limit, effective: EffectiveLimits) -> str:
    match getattr(effective, limit.name):
        case None:
            return "unlimited"
        case Rate() as rate:
            return f"{number(rate.requests)} in {seconds(rate.seconds)}"
        case amount:
            return f"{number(amount)} {limit.parts[0].label}"


def _as_filled(limit: Limit, limits: TenantLimits) -> _Filled:
    """The form of a limit as it is set."""
    value: Given = getattr(limits, limit.name)
    texts: dict[str, str] = {f"{limit.name}.seconds": "1"}
    match value:
        case Rate():
            texts = {_box(limit, part): str(getattr(value, part.name)) for part in limit.parts}
        case int():
            texts = {_box(limit, limit.parts[0]): str(value)}
        case _:
            pass
    told = _told(value)
    return _Filled("number" if isinstance(value, Rate | int) else told, told, texts)


def _filled(form: Form, limit: Limit) -> _Filled:
    """What a form says of a limit."""
    choice = form.text(limit.name) or ""
    if choice not in ("default", "number", *(("unlimited",) if limit.lifted else ())):
        raise invalid(f"/{limit.name}", "is none of what can be chosen")
    texts = {_box(limit, part): form.text(_box(limit, part)) or "" for part in limit.parts}
    faults: dict[str, str] = {}
    for part in limit.parts if choice == "number" else ():
        least, most = part.bounds
        text = texts[_box(limit, part)]
        if not (text.isdecimal() and text.isascii() and len(text) < 19 and least <= int(text) <= most):
            faults[_box(limit, part)] = f"must be a whole number, {number(least)} to {number(most)}."
    return _Filled(choice, form.text(f"{limit.name}.was") or "", texts, faults)


def _value(limit: Limit, filled: _Filled) -> Given:
    """What a limit without faults is to be."""
    if filled.choice == "default":
        return None
    if filled.choice == "unlimited":
        return "unlimited"
    numbers = {part.name: int(filled.texts[_box(limit, part)]) for part in limit.parts}
    return numbers[""] if "" in numbers else Rate(requests=numbers["requests"], seconds=numbers["seconds"])


def _told(value: Given) -> str:
    """A limit as one word, to see whether it was changed."""
    match value:
        case None:
            return "default"
        case Rate():
            return f"{value.requests}/{value.seconds}"
        case _:
            return str(value)


def _with(faults: Sequence[Fault], filled: Mapping[str, _Filled]) -> dict[str, _Filled]:
    """A form together with what the route says is wrong with it."""
    marked = dict(filled)
    for fault in faults:
        name, _, part = fault.pointer.removeprefix("/").partition("/")
        if (its := marked.get(name)) is not None:
            told = {**its.faults, f"{name}.{part or 'number'}": fault.detail}
            marked[name] = msgspec.structs.replace(its, faults=told)
    return marked


LIMIT_PAGES: Final[Sequence[ControllerRouterHandler]] = (limits_page, change_limits)

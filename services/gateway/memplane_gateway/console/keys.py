"""A tenant's keys: made, replaced and revoked. A secret is on one answer and nowhere else."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import KeyCreated, KeyPage
from memplane_core.domain.errors import invalid
from memplane_core.domain.tenancy import SCOPES
from memplane_gateway.console.visits import Visit

_MOST: Final = 200


@get("/t/{tenant:uuid}/keys")
async def keys_page(
    visit: NamedDependency[Visit], tenant: FromPath[UUID], cursor: FromQuery[str | None] = None
) -> Response[bytes]:
    """All keys, revoked ones included."""
    return await _show(visit, tenant, cursor=cursor)


@post("/t/{tenant:uuid}/keys", status_code=200)
async def make_key(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Make a key, and show its secret this once."""
    form = await visit.form()
    body: dict[str, Any] = {"name": form.text("name") or "", "scopes": form.texts("scopes")}
    if (days := form.text("days")) is not None:
        if not days.isdecimal() or not 1 <= int(days) <= 3650:
            raise invalid("/days", "must be a whole number of days, 1 to 3650")
        body["expires_at"] = datetime.now(UTC) + timedelta(days=int(days))
    bind = {name: text for name in ("user_id", "agent_id") if (text := form.text(name)) is not None}
    if bind:
        body["bind"] = bind
    path = f"{visit.base(tenant)}/keys"
    made = (await visit.send("POST", path, body=body, repeat_key=form.text("once"))).read(KeyCreated)
    return await _show(visit, tenant, made=made)


@post("/t/{tenant:uuid}/keys/{key_id:str}", status_code=200)
async def change_key(visit: NamedDependency[Visit], tenant: FromPath[UUID], key_id: FromPath[str]) -> Response[bytes]:
    """Replace a key, or revoke it."""
    form = await visit.form()
    path = f"{visit.base(tenant)}/keys/{key_id}"
    match form.text("do"):
        case "rotate":
            hours = form.number("overlap_h")
            body = {"overlap_s": hours * 3600 if isinstance(hours, int) else hours}
            answer = await visit.send("POST", f"{path}/rotate", body=body, repeat_key=form.text("once"))
            made = answer.read(KeyCreated)
            if key_id == visit.session.key_id:
                await visit.become(made.id, made.key)
            return await _show(visit, tenant, made=made)
        case "revoke":
            await visit.send("DELETE", path, repeat_key=form.text("once"))
            return await _show(
                visit, tenant, notice=f"The key {key_id} is revoked: every gateway refuses it within 30 s."
            )
        case _:
            raise invalid("do", "is nothing that can be done to a key")


async def _show(
    visit: Visit,
    tenant: UUID,
    *,
    made: KeyCreated | None = None,
    notice: str | None = None,
    cursor: FromQuery[str | None] = None,
) -> Response[bytes]:
    answer = await visit.ask(f"{visit.base(tenant)}/keys", query={"limit": _MOST, "cursor": cursor})
    held = sorted(SCOPES) if visit.session.operator else visit.session.scopes
    now = datetime.now(UTC)
    return await visit.page(
        "keys.html",
        title="Keys",
        tenant=tenant,
        keys=answer.read(KeyPage),
        made=made,
        notice=notice,
        scopes=held,
        now=now,
    )


KEY_PAGES: Final[Sequence[ControllerRouterHandler]] = (keys_page, make_key, change_key)

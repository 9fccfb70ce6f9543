"""`memplane tenants` and `memplane keys`: the admin routes from the command line."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from memplane_core.contracts.admin import KeyView, TenantView
from memplane_core.domain.tenancy import Scope
from memplane_standalone.admin import AdminApi, ApiError
from memplane_standalone.home import DEFAULT_HOME, read_credentials

Answer = TypeVar("Answer")

tenants = App(name="tenants", help="Make and list tenants.")
keys = App(name="keys", help="Make, list and revoke API keys.")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Target:
    """Which platform.

    Attributes:
        url: Of the gateway; else MEMPLANE_URL, else that of the home.
        admin_key: Else MEMPLANE_ADMIN_KEY, else that of the home.
        home: Of a `memplane up` on this machine.
        json: Print JSON.
    """

    url: Annotated[str | None, Parameter(env_var="MEMPLANE_URL")] = None
    admin_key: Annotated[str | None, Parameter(env_var="MEMPLANE_ADMIN_KEY")] = None
    home: Path = DEFAULT_HOME
    json: Annotated[bool, Parameter(negative="")] = False

    def admin(self) -> AdminApi:
        """A client of the platform. Raises ApiError where nothing says how to reach it."""
        known = None if self.url and self.admin_key else read_credentials(self.home)
        url = self.url or (known.url if known else None)
        key = self.admin_key or (known.admin_key if known else None)
        if not url or not key:
            raise ApiError(
                f"there are no credentials in {self.home}: start Memplane with `memplane up`,"
                " or give --url and --admin-key"
            )
        return AdminApi(url, key)


_HERE = Target()


@tenants.command(name="create")
def create_tenant(name: str, *, target: Target = _HERE) -> None:
    """Make a tenant.

    Parameters
    ----------
    name
        Unique among tenants.
    """
    made = run(target, lambda admin: admin.create_tenant(name))
    _show_tenants([made], target)


@tenants.command(name="list")
def list_tenants(*, target: Target = _HERE) -> None:
    """List all tenants."""
    _show_tenants(run(target, lambda admin: admin.tenants()), target)


@keys.command(name="create")
def create_key(
    tenant: str,
    *,
    name: str = "default",
    scope: Annotated[tuple[Scope, ...], Parameter(negative="")] = ("memories:read", "memories:write"),
    target: Target = _HERE,
) -> None:
    """Make a key for a tenant. It is shown once.

    Parameters
    ----------
    tenant
        Name or id.
    name
        What it is for.
    scope
        What it may do; may be repeated.
    """

    async def work(admin: AdminApi) -> KeyView:
        found = await admin.find_tenant(tenant)
        return await admin.create_key(found.id, name=name, scopes=list(scope))

    _show_keys([run(target, work)], target)


@keys.command(name="list")
def list_keys(tenant: str, *, target: Target = _HERE) -> None:
    """List a tenant's keys, without their secrets.

    Parameters
    ----------
    tenant
        Name or id.
    """

    async def work(admin: AdminApi) -> list[KeyView]:
        return await admin.keys((await admin.find_tenant(tenant)).id)

    _show_keys(run(target, work), target)


@keys.command(name="revoke")
def revoke_key(tenant: str, key_id: str, *, target: Target = _HERE) -> None:
    """Make a key invalid, for good, within 30 seconds.

    Parameters
    ----------
    tenant
        Name or id.
    key_id
        As `memplane keys list` shows it.
    """

    async def work(admin: AdminApi) -> None:
        await admin.revoke_key((await admin.find_tenant(tenant)).id, key_id)

    run(target, work)
    if not target.json:
        print(f"revoked {key_id}")


def run(target: Target, work: Callable[[AdminApi], Awaitable[Answer]]) -> Answer:
    """Do `work` with a client of the platform. Raises ApiError."""

    async def inside() -> Answer:
        async with target.admin() as admin:
            return await work(admin)

    return asyncio.run(inside())


def _show_tenants(found: Sequence[TenantView], target: Target) -> None:
    if target.json:
        show_json(found)
        return
    table = Table("id", "name", "made")
    for tenant in found:
        table.add_row(str(tenant.id), tenant.name, f"{tenant.created_at:%Y-%m-%d %H:%M}")
    Console().print(table)


def _show_keys(found: Sequence[KeyView], target: Target) -> None:
    if target.json:
        show_json(found)
        return
    table = Table("id", "name", "scopes", "made", "state")
    for key in found:
        state = "revoked" if key.revoked_at else "valid"
        table.add_row(key.id, key.name, " ".join(key.scopes), f"{key.created_at:%Y-%m-%d %H:%M}", state)
    Console().print(table)
    for key in found:
        if secret := getattr(key, "key", None):
            print(f"key (shown once): {secret}")


def show_json(found: Sequence[msgspec.Struct]) -> None:
    """Print what was found for a program to read."""
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())

"""`memplane erase` and `memplane tenants delete`: nothing is left of a person, or of a tenant."""

import asyncio
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from memplane_core.contracts.erasures import ErasureStart, ErasureView
from memplane_standalone.admin import AdminApi, Api, ApiError
from memplane_standalone.cli_admin import Target, run, show_json, tenants
from memplane_standalone.home import DEFAULT_HOME, read_credentials

_HERE: Final = Target()
_POLL_S: Final = 0.5


def erase(
    *,
    user: str | None = None,
    agent: str | None = None,
    url: Annotated[str | None, Parameter(env_var="MEMPLANE_URL")] = None,
    api_key: Annotated[str | None, Parameter(env_var="MEMPLANE_API_KEY")] = None,
    home: Path = DEFAULT_HOME,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Erase for good all that is kept of a user, of an agent, or of both together, and show the receipt.

    Parameters
    ----------
    user
        The `user_id`.
    agent
        The `agent_id`.
    url
        Of the gateway; else that of the home.
    api_key
        With the scope memories:admin; else that of the home.
    home
        Of a `memplane up` on this machine.
    json
        Print JSON.
    """
    if user is None and agent is None:
        raise ApiError("name whom to erase: --user, --agent, or both")
    known = None if url and api_key else read_credentials(home)
    url, api_key = url or (known.url if known else None), api_key or (known.api_key if known else None)
    if not url or not api_key:
        raise ApiError(
            f"there are no credentials in {home}: start Memplane with `memplane up`, or give --url and --api-key"
        )

    async def work(url: str, key: str) -> ErasureView:
        async with Api(url, key) as api:
            begun = await api.post("/v1/erasures", ErasureStart(user_id=user, agent_id=agent), ErasureView)
            return await _ended(api, f"/v1/erasures/{begun.id}", begun)

    return _show(asyncio.run(work(url, api_key)), json=json)


@tenants.command(name="delete")
def delete_tenant(name: str, *, sure: Annotated[bool, Parameter(negative="")] = False, target: Target = _HERE) -> int:
    """Delete a tenant and all that it has, for good, and wait until that is gone: a minute or more.

    Parameters
    ----------
    name
        Of the tenant; an id will not do.
    sure
        Without it nothing is deleted.
    """
    if not sure:
        raise ApiError(f"this deletes all memories, keys and settings of {name!r} for good: say --sure")

    async def work(admin: AdminApi) -> ErasureView:
        found = await admin.find_tenant(name)
        begun = await admin.delete_tenant(found.id, name=name)
        return await _ended(admin, f"/admin/v1/tenants/{found.id}/erasure", begun)

    return _show(run(target, work), json=target.json)


async def _ended(api: Api, path: str, begun: ErasureView) -> ErasureView:
    now = begun
    while now.state == "running":
        await asyncio.sleep(_POLL_S)
        now = await api.get(path, ErasureView)
    return now


def _show(ended: ErasureView, *, json: bool) -> int:
    """Print how it ended; 1 where it has failed."""
    if json:
        show_json([ended])
    elif ended.receipt is None:
        print(f"it has failed, and something may be left: ask again ({ended.error})")
    else:
        print(f"erased {ended.receipt.subject}")
        for name, count in ended.receipt.erased.items():
            print(f"  {count:>9} {name}")
        print(f"receipt {ended.id}, sha256 {ended.receipt_sha256}")
    return 0 if ended.state == "done" else 1

"""The tenant that a first start makes, so that there is something to begin with."""

import asyncio
import time

from memplane_core.contracts.memories import MemoryPage
from memplane_core.domain.tenancy import SCOPES
from memplane_standalone.admin import AdminApi, Api, ApiError
from memplane_standalone.home import Credentials

TENANT_NAME = "demo"

_UNAUTHORIZED = 401
_CONFLICT = 409
_SERVER_FAULT = 500


async def ensure_credentials(
    url: str, *, admin_key: str, known: Credentials | None, patience_s: float = 20.0
) -> Credentials:
    """Credentials that work on the platform at `url`: the known ones, or those of a new key of the demo tenant.

    Args:
        url: Of the gateway, ready.
        admin_key: Of this installation.
        known: From the last start. Its key is tried, for the database may be another one since.
        patience_s: For how long a gateway that cannot do it yet is asked again.

    Raises:
        ApiError: The gateway does not do it.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await _ensure(url, admin_key=admin_key, known=known)
        except ApiError as error:
            if 0 < error.status < _SERVER_FAULT or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.5)


async def _ensure(url: str, *, admin_key: str, known: Credentials | None) -> Credentials:
    tenant, key = (known.tenant, known.api_key) if known else ("", "")
    if not key or not await _is_valid(url, key):
        async with AdminApi(url, admin_key) as admin:
            try:
                made = await admin.create_tenant(TENANT_NAME)
            except ApiError as error:
                if error.status != _CONFLICT:
                    raise
                made = await admin.find_tenant(TENANT_NAME)
            tenant = str(made.id)
            key = (await admin.create_key(made.id, name="laptop", scopes=sorted(SCOPES))).key
    return Credentials(url=url, tenant=tenant, api_key=key, admin_key=admin_key, console_url=f"{url}/console")


async def _is_valid(url: str, key: str) -> bool:
    async with Api(url, key) as api:
        try:
            await api.get("/v1/memories", MemoryPage, query={"limit": "1"})
        except ApiError as error:
            if error.status != _UNAUTHORIZED:
                raise
            return False
    return True

"""The tenant's own policy, kept as what it has set; defaults are filled in when it is read."""

from typing import Any

import msgspec

from memplane_core.contracts.policy import Policy
from memplane_core.domain.errors import NotFound, invalid
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection


async def policy_of(tenant: TenantId, connection: Connection) -> Policy:
    """What holds for the tenant now. Raises NotFound where it is gone."""
    return msgspec.convert(await _stored(tenant, connection, lock=False), Policy)


async def change_policy(tenant: TenantId, connection: Connection, *, changes: dict[str, Any]) -> Policy:
    """Set the named fields; None takes one back to its default.

    Args:
        tenant: Whose policy it is.
        connection: Inside a transaction of that tenant.
        changes: Builtin values, checked. Those of `maintenance` are changes in turn, one level deep.

    Returns:
        What holds from now on.

    Raises:
        NotFound: The tenant is gone.
        InvalidRequest: It would have both weights and a preset.
    """
    stored = await _stored(tenant, connection, lock=True)
    if changes.get("maintenance") is not None:
        maintenance = _changed(stored.get("maintenance", {}), changes["maintenance"])
        changes = {**changes, "maintenance": maintenance or None}
    kept = _changed(stored, changes)
    if "weights" in kept and "preset" in kept:
        raise invalid("/preset", "cannot stand beside weights: set one of the two to null")
    await connection.execute("UPDATE tenant SET policy = $2 WHERE id = $1", tenant, kept)
    return msgspec.convert(kept, Policy)


def _changed(stored: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (stored | changes).items() if value is not None}


async def _stored(tenant: TenantId, connection: Connection, *, lock: bool) -> dict[str, Any]:
    row = await connection.fetchrow(
        f"SELECT policy FROM tenant WHERE id = $1 AND deleted_at IS NULL{' FOR NO KEY UPDATE' if lock else ''}", tenant
    )
    if row is None:
        raise NotFound("this tenant does not exist any more")
    return row["policy"]

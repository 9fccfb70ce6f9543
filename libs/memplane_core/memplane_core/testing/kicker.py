"""A kicker that remembers instead of sending."""

from memplane_core.domain.tenancy import TenantId


class RecordingKicker:
    """Keeps the tenants it was asked to kick, in order, repeats included."""

    def __init__(self) -> None:
        self.kicked: list[TenantId] = []

    def kick(self, tenant: TenantId) -> None:
        """Remember it."""
        self.kicked.append(tenant)

"""The installation as a worker's metrics show it."""

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from memplane_core.contracts.limits import EffectiveLimits, TenantLimits
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.certificates import Certificates
from memplane_core.storage.limits import set_tenant_limits
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.tenants import make_tenant
from memplane_maintenance.measuring import TENANTS, Measures

pytestmark = pytest.mark.anyio

DEFAULTS = EffectiveLimits(body_bytes=1024, batch_items=10, stored_memories=1_000_000)


def shown(measures: Measures) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and labels."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in measures.collect()
        for sample in family.samples
    }


@pytest.fixture
def measures(database: Database) -> Measures:
    return Measures(database, defaults=DEFAULTS)


class TestTheOutboxAndTheIndex:
    async def test_what_waits_is_counted_over_all_tenants(
        self, database: Database, tenant: TenantId, measures: Measures
    ) -> None:
        before = await measures.measure()
        await MemoryDesk(database, tenant, HashEmbedder()).write("one", "two")
        after = await measures.measure()
        assert after.outbox.pending == before.outbox.pending + 2
        assert after.outbox.failed == before.outbox.failed
        values = shown(measures)
        assert values["memplane_maintenance_outbox_pending_rows", ()] == after.outbox.pending
        assert values["memplane_maintenance_index_lag_seconds", ()] >= after.behind[0].oldest_s > 0

    async def test_a_generation_that_is_being_built_is_not_behind(
        self, database: Database, tenant: TenantId, measures: Measures
    ) -> None:
        await MemoryDesk(database, tenant, HashEmbedder()).write("one")
        assert (
            tenant in {its.tenant_id for its in (await measures.measure()).behind}
            or len((await measures.measure()).behind) == TENANTS
        )
        async with database.tenant(tenant) as connection:
            await connection.execute("UPDATE outbox SET generation = 9 WHERE tenant_id = $1", tenant)
        assert tenant not in {its.tenant_id for its in (await measures.measure()).behind}


class TestTenants:
    async def test_only_the_largest_and_those_near_a_quota_are_named(
        self, database: Database, measures: Measures
    ) -> None:
        tenants = [await make_tenant(database) for _ in range(TENANTS + 3)]
        full = tenants[0]
        await MemoryDesk(database, full, HashEmbedder()).write(*map(str, range(40)))
        async with database.tenant(full) as connection:  # further above it than what other tests leave behind
            await set_tenant_limits(full, connection, TenantLimits(stored_memories=2))
        await measures.measure()
        values = shown(measures)
        assert values["memplane_tenant_quota_used_ratio", (str(full), "stored_memories")] == 20.0
        assert values["memplane_tenant_memories", (str(full),)] == 40
        named = {labels[0] for name, labels in values if name == "memplane_tenant_memories"}
        assert len(named) <= 3 * TENANTS

    async def test_before_the_first_look_nothing_is_told(self, measures: Measures) -> None:
        assert shown(measures) == {}


class TestCertificates:
    def test_tells_when_the_first_of_a_file_ends_and_sees_a_new_one(self, tmp_path: Path) -> None:
        file = tmp_path / "ca.pem"
        certificates = Certificates({"postgres.ca_pem_path": str(file)})

        def told() -> float:
            (family,) = certificates.collect()
            return family.samples[0].value

        assert told() == 0
        later = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
        sooner = dt.datetime(2035, 1, 1, tzinfo=dt.UTC)
        file.write_bytes(certificate(later) + certificate(sooner))
        assert told() == sooner.timestamp()
        file.write_bytes(b"no certificate")
        assert told() == 0


def certificate(ends: dt.datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).not_valid_after(ends)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

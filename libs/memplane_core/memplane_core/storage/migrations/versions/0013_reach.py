"""Finding the few rows that an erasure has to look at, in a tenant of any size."""

from alembic import op

revision = "0013"
down_revision = "0012"

_INDEXES = {
    # Memories that were made from others, and changes by which a memory became somebody else's: both are rare.
    "memory_derived": "memory (tenant_id, id) WHERE metadata ? 'derived_from'",
    "history_moved": "history (tenant_id, memory_id) WHERE changes ?| '{user_id,agent_id}'::text[]",
}


def upgrade() -> None:
    for name, where in _INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {where}")


def downgrade() -> None:
    for name in _INDEXES:
        op.execute(f"DROP INDEX {name}")

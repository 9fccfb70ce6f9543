"""Finding the memories that others were merged into, in a tenant of any size: an erasure looks at all of them."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.execute("CREATE INDEX memory_ledgers ON memory (tenant_id, id) WHERE merges IS NOT NULL")


def downgrade() -> None:
    op.execute("DROP INDEX memory_ledgers")

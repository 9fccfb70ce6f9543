"""When what a memory says was so, and which memory says what has been so since."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    # The interval is half open; null is without a bound.
    op.execute("""
        ALTER TABLE memory
            ADD COLUMN valid_from timestamptz,
            ADD COLUMN valid_to timestamptz,
            ADD COLUMN superseded_by uuid,
            ADD CONSTRAINT memory_valid CHECK (valid_to > valid_from)
    """)
    op.execute(
        "CREATE INDEX memory_superseded ON memory (tenant_id, superseded_by, id) WHERE superseded_by IS NOT NULL"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE memory DROP COLUMN superseded_by, DROP COLUMN valid_to, DROP COLUMN valid_from")

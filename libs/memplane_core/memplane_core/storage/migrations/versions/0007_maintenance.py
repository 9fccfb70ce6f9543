"""What moves priorities, what was touched by a run, and what is due to be deleted."""

from alembic import op

revision = "0007"
down_revision = "0006"

_STATEMENTS = (
    # moved_at: when maintenance last moved the priority, by the clock of that run.
    """
    ALTER TABLE memory_usage
        ADD COLUMN helpful int NOT NULL DEFAULT 0,
        ADD COLUMN not_helpful int NOT NULL DEFAULT 0,
        ADD COLUMN moved_at timestamptz
    """,
    # sample: some of the memories that a run touched, by id.
    "ALTER TABLE job ADD COLUMN sample uuid[] NOT NULL DEFAULT '{}'",
    "CREATE INDEX memory_purge ON memory (tenant_id, purge_at, id) WHERE purge_at IS NOT NULL",
    "CREATE INDEX memory_expiry ON memory (tenant_id, expires_at, id) WHERE expires_at IS NOT NULL",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP INDEX memory_expiry")
    op.execute("DROP INDEX memory_purge")
    op.execute("ALTER TABLE job DROP COLUMN sample")
    op.execute("ALTER TABLE memory_usage DROP COLUMN helpful, DROP COLUMN not_helpful, DROP COLUMN moved_at")

"""How far reflection has come is found by a key, whatever the planner knows of the table; nobody is the empty id."""

from alembic import op

revision = "0012"
down_revision = "0011"

_STATEMENTS = (
    # Nothing has been reflected upon before this revision.
    "TRUNCATE reflection",
    "ALTER TABLE reflection DROP CONSTRAINT reflection_tenant_id_user_id_agent_id_key",
    "ALTER TABLE reflection ALTER COLUMN user_id SET DEFAULT '', ALTER COLUMN user_id SET NOT NULL",
    "ALTER TABLE reflection ALTER COLUMN agent_id SET DEFAULT '', ALTER COLUMN agent_id SET NOT NULL",
    "ALTER TABLE reflection ADD PRIMARY KEY (tenant_id, user_id, agent_id)",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE reflection DROP CONSTRAINT reflection_pkey")
    for column in ("user_id", "agent_id"):
        op.execute(f"ALTER TABLE reflection ALTER COLUMN {column} DROP NOT NULL, ALTER COLUMN {column} DROP DEFAULT")
    op.execute("ALTER TABLE reflection ADD UNIQUE NULLS NOT DISTINCT (tenant_id, user_id, agent_id)")

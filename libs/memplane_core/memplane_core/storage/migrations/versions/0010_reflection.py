"""Which memories wait to be scored, and how far the reflection upon whose memories has come."""

from alembic import context, op

revision = "0010"
down_revision = "0009"

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

_TABLES = (
    # True where nobody gave its importance, and a language model is to.
    "ALTER TABLE memory ADD COLUMN unscored boolean NOT NULL DEFAULT false",
    "CREATE INDEX memory_unscored ON memory (tenant_id, id) WHERE unscored",
    # What was made up to here, in the order of (created_at, id), has been reflected upon. user_id and agent_id are null
    # where the memories name none.
    """
    CREATE TABLE reflection (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        user_id text,
        agent_id text,
        seen_at timestamptz NOT NULL,
        seen_id uuid NOT NULL,
        UNIQUE NULLS NOT DISTINCT (tenant_id, user_id, agent_id)
    )
    """,
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in _TABLES:
        op.execute(statement)
    op.execute("ALTER TABLE reflection ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE reflection FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY own_rows ON reflection USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON reflection TO {role}")


def downgrade() -> None:
    op.execute("DROP TABLE reflection")
    op.execute("DROP INDEX memory_unscored")
    op.execute("ALTER TABLE memory DROP COLUMN unscored")

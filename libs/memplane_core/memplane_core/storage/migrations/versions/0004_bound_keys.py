"""Policies of tenants; keys that are bound, rotated, and known by when they were last used."""

from alembic import context, op

revision = "0004"
down_revision = "0003"

_STATEMENTS = (
    # What the tenant has set; all else has the installation's default.
    "ALTER TABLE tenant ADD COLUMN policy jsonb NOT NULL DEFAULT '{}'",
    # replaced_by: the key that a rotation put in this one's place.
    """
    ALTER TABLE api_key
        ADD COLUMN bind_user_id text,
        ADD COLUMN bind_agent_id text,
        ADD COLUMN replaced_by text
    """,
    # Of several gateways that tell of one key at a time one is enough, and none waits for the other.
    """
    CREATE FUNCTION mark_keys_used(ids text[], moments timestamptz[]) RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH used AS (
            SELECT id, max(at) AS at FROM unnest(ids, moments) AS u (id, at) GROUP BY id
        ), free AS MATERIALIZED (
            SELECT k.id, used.at FROM api_key k JOIN used ON used.id = k.id
            WHERE k.last_used_at IS NULL OR k.last_used_at < used.at
            FOR NO KEY UPDATE OF k SKIP LOCKED
        ), marked AS (
            UPDATE api_key k SET last_used_at = free.at FROM free WHERE k.id = free.id RETURNING 1
        )
        SELECT count(*) FROM marked
    $$
    """,
    "CREATE POLICY owner_marks_keys ON api_key FOR UPDATE TO CURRENT_USER USING (true) WITH CHECK (true)",
    "REVOKE ALL ON FUNCTION mark_keys_used(text[], timestamptz[]) FROM PUBLIC",
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in _STATEMENTS:
        op.execute(statement)
    op.execute(f"GRANT EXECUTE ON FUNCTION mark_keys_used(text[], timestamptz[]) TO {role}")


def downgrade() -> None:
    op.execute("DROP POLICY owner_marks_keys ON api_key")
    op.execute("DROP FUNCTION mark_keys_used(text[], timestamptz[])")
    op.execute("ALTER TABLE api_key DROP COLUMN bind_user_id, DROP COLUMN bind_agent_id, DROP COLUMN replaced_by")
    op.execute("ALTER TABLE tenant DROP COLUMN policy")

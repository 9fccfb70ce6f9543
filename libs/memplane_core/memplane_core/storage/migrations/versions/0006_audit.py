"""What was done by whom: rows that the services can add and read, and nobody can change."""

from alembic import context, op

revision = "0006"
down_revision = "0005"

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

# Not partitioned by tenant: it grows with what is done to an installation, not with its memories, and whoever operates
# it reads all of it in the order of time.
_TABLE = """
    CREATE TABLE audit (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        tenant_id uuid,
        actor text NOT NULL,
        action text NOT NULL,
        target text NOT NULL,
        result text NOT NULL CHECK (result IN ('done', 'refused')),
        source text,
        request_id text NOT NULL,
        details jsonb NOT NULL
    )
"""

_LIST = """
    CREATE FUNCTION list_audit(whose uuid, who text, what text, since timestamptz, until timestamptz,
                               before_at timestamptz, before_id uuid, page int)
    RETURNS SETOF audit
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT * FROM audit
        WHERE (whose IS NULL OR tenant_id = whose) AND (who IS NULL OR actor = who) AND (what IS NULL OR action = what)
          AND (since IS NULL OR at >= since) AND (until IS NULL OR at < until)
          AND (before_at IS NULL OR (at, id) < (before_at, before_id))
        ORDER BY at DESC, id DESC LIMIT page
    $$
"""

_SIGNATURE = "list_audit(uuid, text, text, timestamptz, timestamptz, timestamptz, uuid, int)"


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    op.execute(_TABLE)
    op.execute("CREATE INDEX audit_time ON audit (at, id)")
    op.execute("CREATE INDEX audit_tenant ON audit (tenant_id, at, id)")
    op.execute(_LIST)
    op.execute("ALTER TABLE audit ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE audit FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_rows ON audit FOR SELECT USING (tenant_id = {_CURRENT})")
    # Without a tenant there is none to write about either.
    op.execute(f"CREATE POLICY adds_rows ON audit FOR INSERT WITH CHECK (tenant_id IS NOT DISTINCT FROM {_CURRENT})")
    op.execute("CREATE POLICY owner_reads_audit ON audit FOR SELECT TO CURRENT_USER USING (true)")
    op.execute(f"GRANT SELECT, INSERT ON audit TO {role}")
    op.execute(f"REVOKE ALL ON FUNCTION {_SIGNATURE} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {_SIGNATURE} TO {role}")


def downgrade() -> None:
    op.execute(f"DROP FUNCTION {_SIGNATURE}")
    op.execute("DROP TABLE audit")

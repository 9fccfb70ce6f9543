"""Jobs, and the lives of generations."""

from alembic import context, op

revision = "0003"
down_revision = "0002"

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

_TABLES = (
    # building: filled, and not searched yet. kept: active, or fed until drop_at so that it can be active again.
    # dropping: no longer fed, and being removed. dropped: all that is left is the number, which is not given again.
    """
    ALTER TABLE generation
        ADD COLUMN life text NOT NULL DEFAULT 'kept' CHECK (life IN ('building', 'kept', 'dropping', 'dropped')),
        ADD COLUMN drop_at timestamptz,
        ADD COLUMN made_by uuid,
        ADD COLUMN vectors_of int
    """,
    # checkpoint: how far the job's own work has come. epoch: of the lease under which the row was last taken.
    """
    CREATE TABLE job (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        id uuid NOT NULL,
        kind text NOT NULL,
        params jsonb NOT NULL,
        dry_run boolean NOT NULL DEFAULT false,
        state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
        cancel_asked boolean NOT NULL DEFAULT false,
        checkpoint jsonb NOT NULL DEFAULT '{}',
        done bigint NOT NULL DEFAULT 0,
        total bigint,
        result jsonb NOT NULL DEFAULT '{}',
        error text,
        attempts int NOT NULL DEFAULT 0,
        epoch bigint NOT NULL DEFAULT 0,
        not_before timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_by text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_at timestamptz,
        finished_at timestamptz,
        PRIMARY KEY (tenant_id, id)
    )
    """,
    "CREATE UNIQUE INDEX job_active ON job (tenant_id, kind) WHERE state IN ('queued', 'running')",
    "CREATE INDEX job_due ON job (not_before) WHERE state IN ('queued', 'running')",
    "ALTER TABLE job ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE job FORCE ROW LEVEL SECURITY",
    f"CREATE POLICY own_rows ON job USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})",
)

_FUNCTIONS = (
    # A volatile function reads with a snapshot of its own, taken after the wait for the lock: whoever holds it writes
    # for every generation there is, however old the calling statement's snapshot.
    """
    CREATE FUNCTION fed_generations(whose uuid, stored_for int) RETURNS SETOF int
    LANGUAGE plpgsql VOLATILE SET search_path = public, pg_temp
    AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(whose::text, 0));
        IF stored_for <> (SELECT active_generation FROM tenant WHERE id = whose) THEN
            RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'another generation is active by now';
        END IF;
        RETURN QUERY SELECT number FROM generation WHERE tenant_id = whose AND life IN ('building', 'kept');
    END $$
    """,
    """
    CREATE FUNCTION jobs_due(page int) RETURNS TABLE (tenant_id uuid, id uuid)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT j.tenant_id, j.id FROM job j
        LEFT JOIN lease l ON l.tenant_id = j.tenant_id AND l.name = 'job:' || j.kind
        WHERE j.state IN ('queued', 'running') AND j.not_before <= clock_timestamp()
          AND (l.expires_at IS NULL OR l.expires_at <= clock_timestamp())
        ORDER BY j.not_before LIMIT page
    $$
    """,
    """
    CREATE FUNCTION tenants_to_retire(page int) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT DISTINCT g.tenant_id FROM generation g JOIN tenant t ON t.id = g.tenant_id
        WHERE g.life = 'dropping'
           OR (g.life = 'kept' AND g.drop_at <= clock_timestamp() AND g.number <> t.active_generation)
        LIMIT page
    $$
    """,
)

_FUNCTION_NAMES = ("fed_generations(uuid, int)", "jobs_due(int)", "tenants_to_retire(int)")

_OWNER_POLICIES = (
    "CREATE POLICY owner_finds_jobs ON job FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_sees_leases ON lease FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_finds_generations ON generation FOR SELECT TO CURRENT_USER USING (true)",
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in (*_TABLES, *_FUNCTIONS, *_OWNER_POLICIES):
        op.execute(statement)
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON job TO {role}")
    for name in _FUNCTION_NAMES:
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {role}")


def downgrade() -> None:
    for name in _FUNCTION_NAMES:
        op.execute(f"DROP FUNCTION {name}")
    op.execute("DROP POLICY owner_sees_leases ON lease")
    op.execute("DROP POLICY owner_finds_generations ON generation")
    op.execute("DROP TABLE job")
    op.execute(
        "ALTER TABLE generation DROP COLUMN life, DROP COLUMN drop_at, DROP COLUMN made_by, DROP COLUMN vectors_of"
    )

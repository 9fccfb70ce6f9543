"""Erasure of persons and of tenants: who is being erased, and that nobody writes about them meanwhile."""

from alembic import context, op

revision = "0008"
down_revision = "0007"

_ERASE_TENANT = "erase_tenant"
_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

_TABLES = (
    # A row that is running is the tombstone: it refuses writes about its subject. user_id and agent_id are null once it
    # has ended; subject is an HMAC of them under a secret that the database does not hold.
    """
    CREATE TABLE erasure (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        id uuid NOT NULL,
        kind text NOT NULL CHECK (kind IN ('user', 'agent', 'pair', 'tenant')),
        user_id text,
        agent_id text,
        subject text NOT NULL,
        state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed')),
        phase text NOT NULL DEFAULT '',
        pass int NOT NULL DEFAULT 1,
        unsettled boolean NOT NULL DEFAULT false,
        not_before timestamptz NOT NULL DEFAULT clock_timestamp(),
        counts jsonb NOT NULL DEFAULT '{}',
        error text,
        receipt jsonb,
        started_by text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_at timestamptz,
        finished_at timestamptz,
        PRIMARY KEY (tenant_id, id),
        CHECK (state <> 'running' OR kind = 'tenant' OR user_id IS NOT NULL OR agent_id IS NOT NULL)
    )
    """,
    """
    CREATE UNIQUE INDEX erasure_running ON erasure (tenant_id, user_id, agent_id) NULLS NOT DISTINCT
    WHERE state = 'running'
    """,
    # What has been erased so far: until it ends, an erasure looks for traces of these ids.
    """
    CREATE TABLE erased_memory (
        tenant_id uuid NOT NULL,
        erasure_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        PRIMARY KEY (tenant_id, erasure_id, memory_id)
    )
    """,
)

# Whoever takes the other side of the lock to begin an erasure has waited for all writers before it, and all after it
# see the erasure: a volatile function reads with a snapshot of its own, taken after the wait. On statements, so that no
# way of writing a memory goes around it; a memory that is moved away from its subject is refused too.
_REFUSE = """
    CREATE FUNCTION refuse_erased() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        whose uuid := NULLIF(current_setting('memplane.tenant', true), '')::uuid;
        found uuid;
    BEGIN
        IF whose IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(whose::text, 0));
        IF EXISTS (SELECT FROM public.tenant WHERE id = whose AND deleted_at IS NOT NULL) THEN
            RAISE EXCEPTION USING ERRCODE = 'MPT01', MESSAGE = 'this tenant does not exist any more';
        END IF;
        IF NOT EXISTS (SELECT FROM public.erasure WHERE tenant_id = whose AND state = 'running') THEN
            RETURN NULL;
        END IF;
        SELECT e.id INTO found FROM public.erasure e JOIN came m ON (e.user_id IS NULL OR m.user_id = e.user_id)
            AND (e.agent_id IS NULL OR m.agent_id = e.agent_id)
        WHERE e.tenant_id = whose AND e.state = 'running' LIMIT 1;
        IF found IS NULL AND TG_OP = 'UPDATE' THEN
            SELECT e.id INTO found FROM public.erasure e JOIN went m ON (e.user_id IS NULL OR m.user_id = e.user_id)
                AND (e.agent_id IS NULL OR m.agent_id = e.agent_id)
            WHERE e.tenant_id = whose AND e.state = 'running' LIMIT 1;
        END IF;
        IF found IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'MPE01', MESSAGE = 'its subject is being erased', DETAIL = found::text;
        END IF;
        RETURN NULL;
    END $$
"""

_TRIGGERS = (
    """
    CREATE TRIGGER refuse_new AFTER INSERT ON memory REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_erased()
    """,
    """
    CREATE TRIGGER refuse_changed AFTER UPDATE ON memory REFERENCING OLD TABLE AS went NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_erased()
    """,
)

# Of a tenant that is gone nothing is done any more, but for what removes the rest of it.
_FIND_WORK = """
    CREATE OR REPLACE FUNCTION tenants_with_work(page int) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT o.tenant_id FROM outbox o JOIN tenant t ON t.id = o.tenant_id {living}
        WHERE o.done_at IS NULL AND o.failed_at IS NULL AND o.not_before <= clock_timestamp()
        GROUP BY o.tenant_id ORDER BY min(o.seq) LIMIT page
    $$
"""

_FIND_JOBS = """
    CREATE OR REPLACE FUNCTION jobs_due(page int) RETURNS TABLE (tenant_id uuid, id uuid)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT j.tenant_id, j.id FROM job j JOIN tenant t ON t.id = j.tenant_id {living}
        LEFT JOIN lease l ON l.tenant_id = j.tenant_id AND l.name = 'job:' || j.kind
        WHERE j.state IN ('queued', 'running') AND j.not_before <= clock_timestamp()
          AND (l.expires_at IS NULL OR l.expires_at <= clock_timestamp())
        ORDER BY j.not_before LIMIT page
    $$
"""

_FIND_RETIREMENTS = """
    CREATE OR REPLACE FUNCTION tenants_to_retire(page int) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT DISTINCT g.tenant_id FROM generation g JOIN tenant t ON t.id = g.tenant_id {living}
        WHERE g.life = 'dropping'
           OR (g.life = 'kept' AND g.drop_at <= clock_timestamp() AND g.number <> t.active_generation)
        LIMIT page
    $$
"""


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in (*_TABLES, _REFUSE, *_TRIGGERS):
        op.execute(statement)
    for table in ("erasure", "erased_memory"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY own_rows ON {table} USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
    living = "AND t.deleted_at IS NULL"
    op.execute(_FIND_WORK.format(living=living))
    op.execute(_FIND_JOBS.format(living=f"AND (t.deleted_at IS NULL OR j.kind = {_ERASE_TENANT!r})"))
    op.execute(_FIND_RETIREMENTS.format(living=living))


def downgrade() -> None:
    for statement in (_FIND_WORK, _FIND_JOBS, _FIND_RETIREMENTS):
        op.execute(statement.format(living=""))
    for trigger in ("refuse_new", "refuse_changed"):
        op.execute(f"DROP TRIGGER {trigger} ON memory")
    op.execute("DROP FUNCTION refuse_erased()")
    op.execute("DROP TABLE erased_memory")
    op.execute("DROP TABLE erasure")

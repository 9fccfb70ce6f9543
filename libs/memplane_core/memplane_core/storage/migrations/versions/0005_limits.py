"""Limits of tenants and keys; how many memories each tenant has, counted as they are written; usage day by day."""

from alembic import context, op

revision = "0005"
down_revision = "0004"

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

# A tenant's numbers are spread over rows. A transaction takes one that nobody holds, or makes another, and so never
# waits for a counter: what counts is the sum.
_TABLES = (
    "ALTER TABLE tenant ADD COLUMN limits jsonb NOT NULL DEFAULT '{}'",
    "ALTER TABLE api_key ADD COLUMN limits jsonb NOT NULL DEFAULT '{}'",
    """
    CREATE TABLE memory_count (
        tenant_id uuid NOT NULL,
        shard uuid NOT NULL DEFAULT gen_random_uuid(),
        stored bigint NOT NULL,
        PRIMARY KEY (tenant_id, shard)
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE usage_day (
        tenant_id uuid NOT NULL,
        day date NOT NULL,
        shard uuid NOT NULL DEFAULT gen_random_uuid(),
        tokens bigint NOT NULL DEFAULT 0,
        writes bigint NOT NULL DEFAULT 0,
        searches bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant_id, day, shard)
    ) WITH (fillfactor = 50)
    """,
)

_FILL = """
    INSERT INTO memory_count (tenant_id, stored)
    SELECT tenant_id, count(*) FROM memory WHERE state = 'active' GROUP BY tenant_id
"""

# A limit is exact, and writers far from it do not wait for each other. Whoever writes few memories and sees room for
# twice as many as all other connections could be writing few of, goes on under a shared lock; all others take the
# lock for themselves, wait so until every write under way is committed, and count again.
_FEW = 8

_ADD_STORED = f"""
    CREATE FUNCTION add_stored(whose uuid, change bigint) RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        given jsonb;
        most bigint;
        used bigint;
        mine bigint;
        room bigint := {_FEW} * current_setting('max_connections')::bigint;
        gate bigint := hashtextextended('stored ' || whose::text, 0);
    BEGIN
        UPDATE public.memory_count SET stored = stored + change WHERE tenant_id = whose AND shard = (
            SELECT shard FROM public.memory_count WHERE tenant_id = whose LIMIT 1 FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            INSERT INTO public.memory_count (tenant_id, stored) VALUES (whose, change);
        END IF;
        IF change <= 0 THEN
            RETURN;
        END IF;
        SELECT limits -> 'stored_memories' INTO given FROM public.tenant WHERE id = whose;
        most := CASE jsonb_typeof(given)
            WHEN 'number' THEN given::bigint
            WHEN 'string' THEN NULL
            ELSE NULLIF(current_setting('memplane.stored_memories', true), '')::bigint END;
        IF most IS NULL THEN
            RETURN;
        END IF;
        mine := coalesce(NULLIF(current_setting('memplane.stored_here', true), '')::bigint, 0) + change;
        PERFORM set_config('memplane.stored_here', mine::text, true);
        SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = whose;
        IF mine <= {_FEW} AND used + 2 * room <= most THEN
            PERFORM pg_advisory_xact_lock_shared(gate);
            SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = whose;
            IF used + room > most THEN
                RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the quota fills up; look again';
            END IF;
            RETURN;
        END IF;
        PERFORM pg_advisory_xact_lock(gate);
        SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = whose;
        IF used > most THEN
            RAISE EXCEPTION USING ERRCODE = 'MPQ01', MESSAGE = 'stored_memories',
                DETAIL = json_build_object('limit', most, 'used', used - change)::text;
        END IF;
    END $$
"""

# On statements, so that whoever writes memories in whatever way is counted.
_COUNT_MEMORIES = """
    CREATE FUNCTION count_memories() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        whose uuid;
        change bigint;
    BEGIN
        IF TG_OP = 'INSERT' THEN
            FOR whose, change IN SELECT tenant_id, count(*) FROM came WHERE state = 'active' GROUP BY tenant_id LOOP
                PERFORM public.add_stored(whose, change);
            END LOOP;
        ELSIF TG_OP = 'DELETE' THEN
            FOR whose, change IN SELECT tenant_id, -count(*) FROM went WHERE state = 'active' GROUP BY tenant_id LOOP
                PERFORM public.add_stored(whose, change);
            END LOOP;
        ELSE
            FOR whose, change IN
                SELECT tenant_id, sum(n) FROM (
                    SELECT tenant_id, count(*) AS n FROM came WHERE state = 'active' GROUP BY tenant_id
                    UNION ALL SELECT tenant_id, -count(*) FROM went WHERE state = 'active' GROUP BY tenant_id
                ) AS both_ways GROUP BY tenant_id HAVING sum(n) <> 0
            LOOP
                PERFORM public.add_stored(whose, change);
            END LOOP;
        END IF;
        RETURN NULL;
    END $$
"""

_TRIGGERS = (
    """
    CREATE TRIGGER memories_came AFTER INSERT ON memory REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_memories()
    """,
    """
    CREATE TRIGGER memories_went AFTER DELETE ON memory REFERENCING OLD TABLE AS went
    FOR EACH STATEMENT EXECUTE FUNCTION count_memories()
    """,
    """
    CREATE TRIGGER memories_changed AFTER UPDATE ON memory REFERENCING OLD TABLE AS went NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_memories()
    """,
)

# Counts of many tenants at once, told by a process every few seconds.
_ADD_USAGE = """
    CREATE FUNCTION add_usage(tenants uuid[], days date[], more_tokens bigint[], more_writes bigint[],
                              more_searches bigint[])
    RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
    DECLARE
        n int;
        free uuid;
    BEGIN
        FOR n IN 1..cardinality(tenants) LOOP
            SELECT shard INTO free FROM usage_day WHERE tenant_id = tenants[n] AND day = days[n]
                LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF free IS NULL THEN
                INSERT INTO usage_day (tenant_id, day, tokens, writes, searches)
                SELECT tenants[n], days[n], more_tokens[n], more_writes[n], more_searches[n]
                FROM tenant WHERE id = tenants[n] AND deleted_at IS NULL;
            ELSE
                UPDATE usage_day SET tokens = tokens + more_tokens[n], writes = writes + more_writes[n],
                    searches = searches + more_searches[n]
                WHERE tenant_id = tenants[n] AND day = days[n] AND shard = free;
            END IF;
        END LOOP;
    END $$
"""

_SIGNATURE = "add_usage(uuid[], date[], bigint[], bigint[], bigint[])"


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in (*_TABLES, _ADD_STORED, _COUNT_MEMORIES, _ADD_USAGE):
        op.execute(statement)
    # The owner itself sees no rows of a tenant otherwise. The table is locked until this transaction ends.
    op.execute("ALTER TABLE memory NO FORCE ROW LEVEL SECURITY")
    op.execute(_FILL)
    op.execute("ALTER TABLE memory FORCE ROW LEVEL SECURITY")
    for statement in _TRIGGERS:
        op.execute(statement)
    for table in ("memory_count", "usage_day"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY own_rows ON {table} USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
        )
        op.execute(f"CREATE POLICY owner_counts ON {table} TO CURRENT_USER USING (true) WITH CHECK (true)")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
    op.execute(f"REVOKE ALL ON FUNCTION {_SIGNATURE} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {_SIGNATURE} TO {role}")


def downgrade() -> None:
    for trigger in ("memories_came", "memories_went", "memories_changed"):
        op.execute(f"DROP TRIGGER {trigger} ON memory")
    for name in ("count_memories()", "add_stored(uuid, bigint)", _SIGNATURE):
        op.execute(f"DROP FUNCTION {name}")
    op.execute("DROP TABLE memory_count")
    op.execute("DROP TABLE usage_day")
    op.execute("ALTER TABLE tenant DROP COLUMN limits")
    op.execute("ALTER TABLE api_key DROP COLUMN limits")

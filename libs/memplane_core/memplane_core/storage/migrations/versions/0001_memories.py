"""Tenants, keys, memories and what the index is told of them.

Every table with a `tenant_id` is under forced row-level security. The runtime role is granted the parents of
partitioned tables alone: a partition named directly is refused to it.
"""

from alembic import context, op

revision = "0001"
down_revision = None

_PARTITIONS = 64

_TENANT_TABLES = (
    "generation",
    "api_key",
    "memory",
    "memory_usage",
    "memory_scene",
    "chunk",
    "history",
    "outbox",
    "idempotency",
    "lease",
)

_PARTITIONED = ("memory", "memory_usage", "memory_scene", "chunk", "history", "outbox")

_TABLES = (
    """
    CREATE TABLE tenant (
        id uuid PRIMARY KEY,
        name text NOT NULL,
        active_generation int NOT NULL DEFAULT 1,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        deleted_at timestamptz
    )
    """,
    "CREATE UNIQUE INDEX tenant_name ON tenant (name) WHERE deleted_at IS NULL",
    """
    CREATE TABLE generation (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        number int NOT NULL,
        model text NOT NULL,
        dim int NOT NULL CHECK (dim > 0),
        index_type text NOT NULL,
        index_params jsonb NOT NULL,
        state text NOT NULL DEFAULT 'absent' CHECK (state IN ('absent', 'ready')),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (tenant_id, number)
    )
    """,
    """
    CREATE TABLE api_key (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        id text NOT NULL,
        name text NOT NULL,
        digest bytea NOT NULL,
        scopes text[] NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        expires_at timestamptz,
        revoked_at timestamptz,
        last_used_at timestamptz,
        PRIMARY KEY (id)
    )
    """,
    "CREATE INDEX api_key_tenant ON api_key (tenant_id, id)",
    # dedup_key: digest of what makes two memories one (domain.memory.dedup_key). Null where it may have twins.
    """
    CREATE TABLE memory (
        tenant_id uuid NOT NULL,
        id uuid NOT NULL,
        external_id text,
        content text NOT NULL,
        actor text,
        scene text[] NOT NULL,
        source text,
        memory_type text NOT NULL,
        user_id text,
        agent_id text,
        session_id text,
        importance float8 NOT NULL CHECK (importance BETWEEN 0 AND 1),
        pinned boolean NOT NULL,
        metadata jsonb NOT NULL,
        occurred_at timestamptz NOT NULL,
        occurred_given boolean NOT NULL,
        expires_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        version int NOT NULL DEFAULT 1,
        rev int NOT NULL DEFAULT 1,
        state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'forgotten', 'merged')),
        merged_into uuid,
        purge_at timestamptz,
        dedup_key bytea,
        PRIMARY KEY (tenant_id, id)
    ) PARTITION BY HASH (tenant_id)
    """,
    "CREATE UNIQUE INDEX memory_twin ON memory (tenant_id, dedup_key) WHERE state = 'active' AND dedup_key IS NOT NULL",
    """
    CREATE UNIQUE INDEX memory_external ON memory (tenant_id, external_id, user_id, agent_id) NULLS NOT DISTINCT
    WHERE external_id IS NOT NULL
    """,
    "CREATE INDEX memory_user ON memory (tenant_id, user_id, id)",
    "CREATE INDEX memory_agent ON memory (tenant_id, agent_id, id) WHERE agent_id IS NOT NULL",
    "CREATE INDEX memory_session ON memory (tenant_id, session_id, id) WHERE session_id IS NOT NULL",
    """
    CREATE TABLE memory_usage (
        tenant_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 5),
        last_accessed_at timestamptz NOT NULL,
        access_count bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant_id, memory_id)
    ) PARTITION BY HASH (tenant_id)
    """,
    """
    CREATE TABLE memory_scene (
        tenant_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        scene text NOT NULL,
        PRIMARY KEY (tenant_id, memory_id, scene)
    ) PARTITION BY HASH (tenant_id)
    """,
    "CREATE INDEX memory_scene_members ON memory_scene (tenant_id, scene, memory_id)",
    # embedding is null until the text has been embedded; tokens serve the lexical arm from the first moment.
    """
    CREATE TABLE chunk (
        tenant_id uuid NOT NULL,
        generation int NOT NULL,
        memory_id uuid NOT NULL,
        rev int NOT NULL,
        n int NOT NULL,
        span_start int NOT NULL,
        span_end int NOT NULL,
        tokens text[] NOT NULL,
        embedding vector,
        PRIMARY KEY (tenant_id, memory_id, generation, n)
    ) PARTITION BY HASH (tenant_id)
    """,
    """
    CREATE TABLE history (
        tenant_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        version int NOT NULL,
        event text NOT NULL,
        key_id text NOT NULL,
        request_id text NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        changes jsonb NOT NULL,
        PRIMARY KEY (tenant_id, memory_id, version)
    ) PARTITION BY HASH (tenant_id)
    """,
    "CREATE SEQUENCE outbox_seq",
    # One row for each revision that the index has to hold or lose. fresh_until bounds how long Postgres answers for it.
    """
    CREATE TABLE outbox (
        tenant_id uuid NOT NULL,
        generation int NOT NULL,
        memory_id uuid NOT NULL,
        rev int NOT NULL,
        op text NOT NULL CHECK (op IN ('upsert', 'delete')),
        chunks int NOT NULL DEFAULT 0,
        seq bigint NOT NULL DEFAULT nextval('outbox_seq'),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        not_before timestamptz NOT NULL DEFAULT clock_timestamp(),
        attempts int NOT NULL DEFAULT 0,
        error text,
        failed_at timestamptz,
        done_at timestamptz,
        fresh_until timestamptz NOT NULL DEFAULT 'infinity',
        PRIMARY KEY (tenant_id, memory_id, generation, rev, op)
    ) PARTITION BY HASH (tenant_id)
    """,
    """
    CREATE INDEX outbox_due ON outbox (tenant_id, generation, op, seq) INCLUDE (not_before)
    WHERE done_at IS NULL AND failed_at IS NULL
    """,
    "CREATE INDEX outbox_fresh ON outbox (tenant_id, generation, fresh_until) WHERE op = 'upsert'",
    "CREATE INDEX outbox_done ON outbox (done_at) WHERE done_at IS NOT NULL",
    "CREATE INDEX outbox_failed ON outbox (failed_at) WHERE failed_at IS NOT NULL",
    # What an answer is rendered from when a request is repeated: ids and statuses, never content.
    """
    CREATE TABLE idempotency (
        tenant_id uuid NOT NULL,
        key text NOT NULL,
        route text NOT NULL,
        body_hash bytea NOT NULL,
        outcome jsonb,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (tenant_id, key)
    )
    """,
    "CREATE INDEX idempotency_age ON idempotency (created_at)",
    """
    CREATE TABLE lease (
        tenant_id uuid NOT NULL,
        name text NOT NULL,
        owner text NOT NULL,
        epoch bigint NOT NULL,
        expires_at timestamptz NOT NULL,
        PRIMARY KEY (tenant_id, name)
    )
    """,
)

_MAKE_PARTITIONS = f"""
DO $$
DECLARE parent text; n int;
BEGIN
    FOREACH parent IN ARRAY ARRAY{list(_PARTITIONED)!r} LOOP
        FOR n IN 0..{_PARTITIONS - 1} LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER %s)',
                           parent || '_p' || n, parent, n);
            IF parent = 'memory_usage' THEN
                -- Room on each page, so that a touch rewrites neither index.
                EXECUTE format('ALTER TABLE %I SET (fillfactor = 80)', parent || '_p' || n);
            END IF;
        END LOOP;
    END LOOP;
END $$
"""

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

# Functions that cross tenants. They answer one question each; the owner's policies let them see no more than that.
_FUNCTIONS = (
    """
    CREATE FUNCTION find_api_key(key_id text) RETURNS SETOF api_key
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT k.* FROM api_key k JOIN tenant t ON t.id = k.tenant_id
        WHERE k.id = key_id AND t.deleted_at IS NULL
    $$
    """,
    """
    CREATE FUNCTION list_tenants(after uuid, page int) RETURNS SETOF tenant
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT * FROM tenant
        WHERE deleted_at IS NULL AND (after IS NULL OR id > after)
        ORDER BY id LIMIT page
    $$
    """,
    """
    CREATE FUNCTION tenants_with_work(page int) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT tenant_id FROM outbox
        WHERE done_at IS NULL AND failed_at IS NULL AND not_before <= clock_timestamp()
        GROUP BY tenant_id ORDER BY min(seq) LIMIT page
    $$
    """,
    # Counts no further than it is told to, so that a large backlog costs no more to watch than a small one.
    """
    CREATE FUNCTION outbox_backlog(most int) RETURNS TABLE (pending bigint, failed bigint, oldest_s float8)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH waiting AS MATERIALIZED (
            SELECT created_at FROM outbox WHERE done_at IS NULL AND failed_at IS NULL LIMIT most
        ), refused AS MATERIALIZED (
            SELECT 1 FROM outbox WHERE failed_at IS NOT NULL LIMIT most
        )
        SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM refused),
            (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 FROM waiting)
    $$
    """,
    """
    CREATE FUNCTION trim_finished(outbox_age interval, idempotency_age interval) RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH sent AS (
            DELETE FROM outbox WHERE done_at < clock_timestamp() - outbox_age RETURNING 1
        ), answered AS (
            DELETE FROM idempotency WHERE created_at < clock_timestamp() - idempotency_age RETURNING 1
        )
        SELECT (SELECT count(*) FROM sent) + (SELECT count(*) FROM answered)
    $$
    """,
)

_FUNCTION_NAMES = (
    "find_api_key(text)",
    "list_tenants(uuid, int)",
    "tenants_with_work(int)",
    "outbox_backlog(int)",
    "trim_finished(interval, interval)",
)

_OWNER_POLICIES = (
    "CREATE POLICY owner_finds_keys ON api_key FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_lists_tenants ON tenant FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_finds_work ON outbox FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_trims_outbox ON outbox FOR DELETE TO CURRENT_USER USING (done_at IS NOT NULL)",
    "CREATE POLICY owner_sees_idempotency ON idempotency FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_trims_idempotency ON idempotency FOR DELETE TO CURRENT_USER USING (true)",
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    for statement in _TABLES:
        op.execute(statement)
    op.execute(_MAKE_PARTITIONS)
    # Inline where it fits: a scan by pgvector must not fetch each vector from a side table.
    op.execute("ALTER TABLE chunk ALTER COLUMN embedding SET STORAGE MAIN")
    for statement in _FUNCTIONS:
        op.execute(statement)
    for table in ("tenant", *_TENANT_TABLES):
        column = "id" if table == "tenant" else "tenant_id"
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY own_rows ON {table} USING ({column} = {_CURRENT}) WITH CHECK ({column} = {_CURRENT})"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
    for statement in _OWNER_POLICIES:
        op.execute(statement)
    for name in _FUNCTION_NAMES:
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {role}")
    op.execute(f"GRANT USAGE ON SEQUENCE outbox_seq TO {role}")
    op.execute(f"GRANT USAGE ON SCHEMA public TO {role}")


def downgrade() -> None:
    for name in _FUNCTION_NAMES:
        op.execute(f"DROP FUNCTION {name}")
    for table in reversed(("tenant", *_TENANT_TABLES)):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP SEQUENCE outbox_seq")

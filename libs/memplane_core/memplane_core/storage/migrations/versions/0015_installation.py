"""What operators see of the installation: how far the index is behind, what runs, who is large or near a limit."""

from alembic import context, op

revision = "0015"
down_revision = "0014"

# Each reads no further than it is told to, so that to watch a large installation costs no more than a small one.
_FUNCTIONS = (
    # Only of the generations that answer searches: what is still being built is not behind.
    """
    CREATE FUNCTION index_lag(most int, page int) RETURNS TABLE (tenant_id uuid, pending bigint, oldest_s float8)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH waiting AS MATERIALIZED (
            SELECT o.tenant_id, o.created_at FROM outbox o
            JOIN tenant t ON t.id = o.tenant_id AND t.active_generation = o.generation AND t.deleted_at IS NULL
            WHERE o.done_at IS NULL AND o.failed_at IS NULL AND o.op = 'upsert' LIMIT most
        )
        SELECT w.tenant_id, count(*), extract(epoch FROM clock_timestamp() - min(w.created_at))::float8 AS oldest_s
        FROM waiting w GROUP BY w.tenant_id ORDER BY oldest_s DESC, w.tenant_id LIMIT page
    $$
    """,
    """
    CREATE FUNCTION generation_states() RETURNS TABLE (state text, generations bigint)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT CASE WHEN g.number = t.active_generation THEN 'active' ELSE g.life END AS state, count(*)
        FROM generation g JOIN tenant t ON t.id = g.tenant_id
        WHERE t.deleted_at IS NULL AND g.life <> 'dropped' GROUP BY 1 ORDER BY 1
    $$
    """,
    # waits_s: how long the one that could have gone on the longest has not been worked on.
    """
    CREATE FUNCTION job_states() RETURNS TABLE (kind text, state text, runs bigint, held_up bigint, waits_s float8)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT j.kind, j.state, count(*), count(*) FILTER (WHERE j.attempts > 0),
            greatest(coalesce(max(extract(epoch FROM clock_timestamp() - j.not_before)) FILTER (
                WHERE l.expires_at IS NULL OR l.expires_at <= clock_timestamp()), 0), 0)::float8
        FROM job j LEFT JOIN lease l ON l.tenant_id = j.tenant_id AND l.name = 'job:' || j.kind
        WHERE j.state IN ('queued', 'running') GROUP BY j.kind, j.state ORDER BY j.kind, j.state
    $$
    """,
    # The largest, those that have used the most tokens today, and those nearest to a quota; `page` of each.
    """
    CREATE FUNCTION tenants_to_watch(page int, default_stored bigint, default_tokens bigint)
    RETURNS TABLE (tenant_id uuid, stored bigint, stored_limit bigint, tokens bigint, tokens_limit bigint)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH numbers AS MATERIALIZED (
            SELECT t.id,
                coalesce(c.n, 0)::bigint AS stored,
                CASE jsonb_typeof(t.limits -> 'stored_memories') WHEN 'number'
                    THEN (t.limits ->> 'stored_memories')::bigint WHEN 'string' THEN NULL ELSE default_stored
                END AS stored_limit,
                coalesce(u.n, 0)::bigint AS tokens,
                CASE jsonb_typeof(t.limits -> 'tokens_a_day') WHEN 'number'
                    THEN (t.limits ->> 'tokens_a_day')::bigint WHEN 'string' THEN NULL ELSE default_tokens
                END AS tokens_limit
            FROM tenant t
            LEFT JOIN (SELECT m.tenant_id, sum(m.stored) AS n FROM memory_count m GROUP BY m.tenant_id) c
                ON c.tenant_id = t.id
            LEFT JOIN (SELECT d.tenant_id, sum(d.tokens) AS n FROM usage_day d
                WHERE d.day = (clock_timestamp() AT TIME ZONE 'UTC')::date GROUP BY d.tenant_id) u
                ON u.tenant_id = t.id
            WHERE t.deleted_at IS NULL
        ), picked AS (
            (SELECT id FROM numbers ORDER BY numbers.stored DESC, id LIMIT page)
            UNION (SELECT id FROM numbers ORDER BY numbers.tokens DESC, id LIMIT page)
            UNION (SELECT id FROM numbers WHERE numbers.stored_limit > 0 OR numbers.tokens_limit > 0
                ORDER BY greatest(numbers.stored::float8 / nullif(numbers.stored_limit, 0),
                    numbers.tokens::float8 / nullif(numbers.tokens_limit, 0)) DESC NULLS LAST, id LIMIT page)
        )
        SELECT n.id, n.stored, n.stored_limit, n.tokens, n.tokens_limit
        FROM numbers n JOIN picked p ON p.id = n.id ORDER BY n.stored DESC, n.id
    $$
    """,
    """
    CREATE FUNCTION keys_expiring(within_time interval, page int)
    RETURNS TABLE (tenant_id uuid, id text, expires_at timestamptz)
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT k.tenant_id, k.id, k.expires_at FROM api_key k JOIN tenant t ON t.id = k.tenant_id
        WHERE t.deleted_at IS NULL AND k.revoked_at IS NULL AND k.replaced_by IS NULL
          AND k.expires_at > clock_timestamp() AND k.expires_at <= clock_timestamp() + within_time
        ORDER BY k.expires_at, k.id LIMIT page
    $$
    """,
)

_NAMES = (
    "index_lag(int, int)",
    "generation_states()",
    "job_states()",
    "tenants_to_watch(int, bigint, bigint)",
    "keys_expiring(interval, int)",
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in _FUNCTIONS:
        op.execute(statement)
    for name in _NAMES:
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {role}")


def downgrade() -> None:
    for name in _NAMES:
        op.execute(f"DROP FUNCTION {name}")

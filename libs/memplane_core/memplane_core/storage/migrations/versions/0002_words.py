"""Words beside chunks: one row a memory, whatever its generations, and its session."""

from alembic import context, op

revision = "0002"
down_revision = "0001"

_PARTITIONS = 64
_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

# terms: packed, in order, repeats kept: what is scored. marks: distinct terms and owners, mixed with the tenant's id:
# what is looked up. session: of user, agent and session together (storage/words.py).
_TABLE = """
    CREATE TABLE memory_words (
        tenant_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        terms bytea NOT NULL,
        marks int4[] NOT NULL,
        session int8,
        PRIMARY KEY (tenant_id, memory_id)
    ) PARTITION BY HASH (tenant_id)
"""

_MAKE_PARTITIONS = f"""
DO $$
BEGIN
    FOR n IN 0..{_PARTITIONS - 1} LOOP
        EXECUTE format('CREATE TABLE memory_words_p%s PARTITION OF memory_words
                        FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER %s)', n, n);
    END LOOP;
END $$
"""

# What waits unsorted is read through by every search: 128 kB of it at most.
_INDEX = "CREATE INDEX memory_words_marks ON memory_words USING gin (marks) WITH (gin_pending_list_limit = 128)"

_FIRST = "substring(decode(md5({}), 'hex') FROM 1 FOR 4)"
_NUMBER = "('x' || left(md5({}), 8))::bit(32)::int4"
_MARK = _NUMBER + " # " + _NUMBER.format("tenant_id::text")

_FILL = f"""
    WITH words AS (
        SELECT m.tenant_id, m.id, m.user_id, m.agent_id, m.session_id,
               ARRAY(SELECT token FROM chunk c, unnest(c.tokens) WITH ORDINALITY AS t(token, place)
                     WHERE c.tenant_id = m.tenant_id AND c.memory_id = m.id AND c.generation = t0.active_generation
                     ORDER BY c.n, place) AS tokens
        FROM memory m JOIN tenant t0 ON t0.id = m.tenant_id WHERE m.state = 'active'
    )
    INSERT INTO memory_words (tenant_id, memory_id, terms, marks, session)
    SELECT tenant_id, id,
           (SELECT coalesce(string_agg({_FIRST.format("token")}, ''::bytea ORDER BY place), ''::bytea)
            FROM unnest(tokens) WITH ORDINALITY AS t(token, place)),
           ARRAY(SELECT DISTINCT {_MARK.format("token")}
                 FROM unnest(tokens || ARRAY['user ' || user_id, 'agent ' || agent_id, 'session ' || session_id])
                 AS t(token) WHERE token IS NOT NULL),
           CASE WHEN session_id IS NOT NULL THEN
               ('x' || left(md5(concat_ws(chr(31), coalesce(user_id, ''), coalesce(agent_id, ''), session_id)), 16))
               ::bit(64)::int8 END
    FROM words
"""

# Row-level security keeps the runtime role from using the index: array operators are not leakproof. The owner may see
# words of all tenants, and this function looks up those of the transaction's tenant alone.
_NOMINATE = f"""
    CREATE FUNCTION nominate_by_words(tenant uuid, wanted int4[], owners int4[], per_word int, most int)
    RETURNS SETOF uuid LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp ROWS 200
    AS $$
    BEGIN
        IF tenant IS DISTINCT FROM {_CURRENT} THEN
            RAISE insufficient_privilege USING MESSAGE = 'words are looked up in the tenant of the transaction alone';
        END IF;
        RETURN QUERY
        WITH found AS MATERIALIZED (
            SELECT w.mark, f.memory_id FROM unnest(wanted) AS w(mark)
            CROSS JOIN LATERAL (
                SELECT m.memory_id FROM memory_words m
                WHERE m.tenant_id = tenant AND m.marks @> (ARRAY[w.mark] || owners) LIMIT per_word
            ) f
        ), rarity AS (
            SELECT mark, ln(1 + 20.0 * per_word / count(*)) AS weight FROM found GROUP BY mark
        ), whole AS (
            SELECT m.memory_id FROM memory_words m
            WHERE m.tenant_id = tenant AND m.marks @> (wanted || owners) LIMIT most
        ), weighed AS (
            SELECT f.memory_id, sum(r.weight) AS weight FROM found f JOIN rarity r USING (mark) GROUP BY f.memory_id
            UNION ALL SELECT whole.memory_id, (SELECT sum(r.weight) FROM rarity r) FROM whole
        )
        SELECT weighed.memory_id FROM weighed GROUP BY weighed.memory_id ORDER BY max(weighed.weight) DESC LIMIT most;
    END $$
"""


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    op.execute(_TABLE)
    op.execute(_MAKE_PARTITIONS)
    # The owner itself sees no rows of a tenant otherwise. The tables are locked until this transaction ends.
    for table in ("tenant", "memory", "chunk"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(_FILL)
    for table in ("tenant", "memory", "chunk"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(_INDEX)
    op.execute("ALTER TABLE chunk DROP COLUMN tokens")
    op.execute("ALTER TABLE memory_words ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE memory_words FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY own_rows ON memory_words USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
    )
    op.execute("CREATE POLICY owner_looks_up_words ON memory_words FOR SELECT TO CURRENT_USER USING (true)")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON memory_words TO {role}")
    op.execute(_NOMINATE)
    signature = "nominate_by_words(uuid, int4[], int4[], int, int)"
    op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")
    # Lists are newest first unless told otherwise.
    op.execute("CREATE INDEX memory_created ON memory (tenant_id, created_at, id)")


def downgrade() -> None:
    raise NotImplementedError("words cannot be turned back into tokens of chunks")

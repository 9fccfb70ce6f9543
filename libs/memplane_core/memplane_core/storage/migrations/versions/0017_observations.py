"""Short-term memory: what sessions have observed and not yet handed to long-term memory."""

from alembic import context, op

revision = "0017"
down_revision = "0016"

_PARTITIONS = 64

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

_TABLES = (
    # A session is (user_id, agent_id, session_id), and its rows are ordered by seq: microseconds by the database's
    # clock, never two the same in a session. strengthened: how often something alike came after it. generation: of
    # the vectors, one for each pair of spans, code points of the content; null where it has not been embedded.
    """
    CREATE TABLE observation (
        tenant_id uuid NOT NULL,
        id uuid NOT NULL,
        seq bigint NOT NULL,
        user_id text,
        agent_id text,
        session_id text NOT NULL,
        content text NOT NULL,
        actor text,
        scene text[] NOT NULL,
        source text,
        memory_type text NOT NULL,
        importance float8 NOT NULL CHECK (importance BETWEEN 0 AND 1),
        unscored boolean NOT NULL,
        metadata jsonb NOT NULL,
        occurred_at timestamptz NOT NULL,
        occurred_given boolean NOT NULL,
        observed_at timestamptz NOT NULL,
        strengthened int NOT NULL DEFAULT 0,
        generation int,
        spans int[],
        vectors vector[],
        PRIMARY KEY (tenant_id, id)
    ) PARTITION BY HASH (tenant_id)
    """,
    "CREATE INDEX observation_session ON observation (tenant_id, session_id, seq)",
)

_MAKE_PARTITIONS = f"""
DO $$
DECLARE n int;
BEGIN
    FOR n IN 0..{_PARTITIONS - 1} LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF observation FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER %s)',
                       'observation_p' || n, n);
    END LOOP;
END $$
"""

# Nothing is observed about whoever is being erased, just as no memory is written.
_TRIGGERS = (
    """
    CREATE TRIGGER refuse_new AFTER INSERT ON observation REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_erased()
    """,
    """
    CREATE TRIGGER refuse_changed AFTER UPDATE ON observation REFERENCING OLD TABLE AS went NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_erased()
    """,
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in (*_TABLES, _MAKE_PARTITIONS, *_TRIGGERS):
        op.execute(statement)
    op.execute("ALTER TABLE observation ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE observation FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY own_rows ON observation USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON observation TO {role}")


def downgrade() -> None:
    op.execute("DROP TABLE observation")

"""Nothing that was made from an erased memory is written later: its id is known for a day."""

from alembic import op

revision = "0011"
down_revision = "0010"

_BEGIN = """
    CREATE OR REPLACE FUNCTION refuse_erased() RETURNS trigger
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
"""

# What cites an erased memory may be a summary of it that was under way: a job that asks a language model takes minutes.
_DERIVED = """
        IF EXISTS (SELECT FROM public.erased_memory WHERE tenant_id = whose) THEN
            SELECT e.erasure_id INTO found FROM came m
            CROSS JOIN LATERAL jsonb_path_query(m.metadata, 'lax $.derived_from[*]') AS source(id)
            JOIN public.erased_memory e ON e.tenant_id = whose
                AND replace(e.memory_id::text, '-', '') = replace(lower(source.id #>> '{}'), '-', '')
            WHERE m.metadata ? 'derived_from' LIMIT 1;
            IF found IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'MPE02', MESSAGE = 'it was made from what is erased',
                    DETAIL = found::text;
            END IF;
        END IF;
"""

_END = """
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

_TRIM = """
    CREATE OR REPLACE FUNCTION trim_finished(outbox_age interval, idempotency_age interval) RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH sent AS (
            DELETE FROM outbox WHERE done_at < clock_timestamp() - outbox_age RETURNING 1
        ), answered AS (
            DELETE FROM idempotency WHERE created_at < clock_timestamp() - idempotency_age RETURNING 1
        ){forgotten}
        SELECT (SELECT count(*) FROM sent) + (SELECT count(*) FROM answered)
    $$
"""

_FORGOTTEN = """, forgotten AS (
            DELETE FROM erased_memory m USING erasure e
            WHERE e.tenant_id = m.tenant_id AND e.id = m.erasure_id
              AND e.finished_at < clock_timestamp() - interval '1 day'
        )"""

_POLICIES = (
    "CREATE POLICY owner_sees_erased ON erased_memory FOR SELECT TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_trims_erased ON erased_memory FOR DELETE TO CURRENT_USER USING (true)",
    "CREATE POLICY owner_sees_erasures ON erasure FOR SELECT TO CURRENT_USER USING (true)",
)


def upgrade() -> None:
    op.execute(_BEGIN + _DERIVED + _END)
    op.execute(_TRIM.format(forgotten=_FORGOTTEN))
    for statement in _POLICIES:
        op.execute(statement)


def downgrade() -> None:
    op.execute(_BEGIN + _END)
    op.execute(_TRIM.format(forgotten=""))
    op.execute("DROP POLICY owner_sees_erasures ON erasure")
    op.execute("DROP POLICY owner_trims_erased ON erased_memory")
    op.execute("DROP POLICY owner_sees_erased ON erased_memory")

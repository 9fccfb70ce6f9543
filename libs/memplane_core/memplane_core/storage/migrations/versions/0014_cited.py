"""Whether a write cites an erased memory is looked up by key: it costs the same however many were erased that day."""

from alembic import op

revision = "0014"
down_revision = "0013"

_BEGIN = """
    CREATE OR REPLACE FUNCTION refuse_erased() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        whose uuid := NULLIF(current_setting('memplane.tenant', true), '')::uuid;
        found uuid;
        cited uuid[];
    BEGIN
        IF whose IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(whose::text, 0));
        IF EXISTS (SELECT FROM public.tenant WHERE id = whose AND deleted_at IS NOT NULL) THEN
            RAISE EXCEPTION USING ERRCODE = 'MPT01', MESSAGE = 'this tenant does not exist any more';
        END IF;
"""

# Gathered first: a comparison with what functions make of a text is no use to an index under row-level security.
_CITED = """
        IF EXISTS (SELECT FROM public.erased_memory WHERE tenant_id = whose) THEN
            SELECT array_agg(DISTINCT CASE WHEN named.id ~ '^[0-9A-Fa-f]{32}$' THEN named.id::uuid END) INTO cited
            FROM came m CROSS JOIN LATERAL (
                SELECT replace(source.id #>> '{}', '-', '') AS id
                FROM jsonb_path_query(m.metadata, 'lax $.derived_from[*]') AS source(id)
            ) AS named
            WHERE m.metadata ? 'derived_from';
            SELECT e.erasure_id INTO found FROM public.erased_memory e
            WHERE e.tenant_id = whose AND e.memory_id = ANY (cited) LIMIT 1;
            IF found IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'MPE02', MESSAGE = 'it was made from what is erased',
                    DETAIL = found::text;
            END IF;
        END IF;
"""

_CITED_BEFORE = """
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


def upgrade() -> None:
    op.execute("CREATE INDEX erased_memory_id ON erased_memory (tenant_id, memory_id)")
    op.execute(_BEGIN + _CITED + _END)


def downgrade() -> None:
    op.execute(_BEGIN + _CITED_BEFORE + _END)
    op.execute("DROP INDEX erased_memory_id")

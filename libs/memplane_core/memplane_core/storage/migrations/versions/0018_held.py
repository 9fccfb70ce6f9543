"""What sessions hold counts as stored; and a quota is looked at when a transaction ends, by what it comes to."""

from importlib import import_module

from alembic import op

revision = "0018"
down_revision = "0017"

# held: how many of those that are stored are observations.
_HELD = "ALTER TABLE memory_count ADD COLUMN held bigint NOT NULL DEFAULT 0"

_FILL = """
    INSERT INTO memory_count (tenant_id, stored, held)
    SELECT tenant_id, count(*), count(*) FROM observation GROUP BY tenant_id
"""

_ADD_STORED = """
    CREATE FUNCTION add_stored(whose uuid, change bigint, observed bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
    BEGIN
        UPDATE public.memory_count SET stored = stored + change, held = held + observed
        WHERE tenant_id = whose AND shard = (
            SELECT shard FROM public.memory_count WHERE tenant_id = whose LIMIT 1 FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            INSERT INTO public.memory_count (tenant_id, stored, held) VALUES (whose, change, observed);
        END IF;
        PERFORM set_config('memplane.stored_here',
            (coalesce(NULLIF(current_setting('memplane.stored_here', true), '')::bigint, 0) + change)::text, true);
    END $$
"""

# Runs when the transaction is about to commit, once for each time that it counted: what an observation leaves to the
# memory that it becomes needs no room, whichever of the two is written first, and what adds nothing is never refused.
#
# A limit is exact, and writers far from it do not wait for each other. Whoever adds little and sees room for twice as
# many as all other connections could be adding so, goes on under a shared lock; all others take the lock for
# themselves, wait so until every such transaction is committed, and count again.
_FEW = 8

_CHECK_STORED = f"""
    CREATE FUNCTION check_stored() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        given jsonb;
        most bigint;
        used bigint;
        mine bigint := coalesce(NULLIF(current_setting('memplane.stored_here', true), '')::bigint, 0);
        room bigint := {_FEW} * current_setting('max_connections')::bigint;
        gate bigint := hashtextextended('stored ' || NEW.tenant_id::text, 0);
    BEGIN
        IF mine <= 0 OR current_setting('memplane.stored_checked', true) = mine::text THEN
            RETURN NULL;
        END IF;
        SELECT limits -> 'stored_memories' INTO given FROM public.tenant WHERE id = NEW.tenant_id;
        most := CASE jsonb_typeof(given)
            WHEN 'number' THEN given::bigint
            WHEN 'string' THEN NULL
            ELSE NULLIF(current_setting('memplane.stored_memories', true), '')::bigint END;
        IF most IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM set_config('memplane.stored_checked', mine::text, true);
        SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = NEW.tenant_id;
        IF mine <= {_FEW} AND used + 2 * room <= most THEN
            PERFORM pg_advisory_xact_lock_shared(gate);
            SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = NEW.tenant_id;
            IF used + room > most THEN
                RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the quota fills up; look again';
            END IF;
            RETURN NULL;
        END IF;
        PERFORM pg_advisory_xact_lock(gate);
        SELECT sum(stored) INTO used FROM public.memory_count WHERE tenant_id = NEW.tenant_id;
        IF used > most THEN
            RAISE EXCEPTION USING ERRCODE = 'MPQ01', MESSAGE = 'stored_memories',
                DETAIL = json_build_object('limit', most, 'used', used - mine)::text;
        END IF;
        RETURN NULL;
    END $$
"""

_COUNT_OBSERVATIONS = """
    CREATE FUNCTION count_observations() RETURNS trigger
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        whose uuid;
        change bigint;
    BEGIN
        IF TG_OP = 'INSERT' THEN
            FOR whose, change IN SELECT tenant_id, count(*) FROM came GROUP BY tenant_id LOOP
                PERFORM public.add_stored(whose, change, change);
            END LOOP;
        ELSE
            FOR whose, change IN SELECT tenant_id, -count(*) FROM went GROUP BY tenant_id LOOP
                PERFORM public.add_stored(whose, change, change);
            END LOOP;
        END IF;
        RETURN NULL;
    END $$
"""

_TRIGGERS = (
    """
    CREATE TRIGGER observations_came AFTER INSERT ON observation REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_observations()
    """,
    """
    CREATE TRIGGER observations_went AFTER DELETE ON observation REFERENCING OLD TABLE AS went
    FOR EACH STATEMENT EXECUTE FUNCTION count_observations()
    """,
    """
    CREATE CONSTRAINT TRIGGER stored_at_the_end AFTER INSERT OR UPDATE ON memory_count DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION check_stored()
    """,
)


def upgrade() -> None:
    # The owner itself sees no rows of a tenant otherwise. The table is locked until this transaction ends.
    op.execute("ALTER TABLE observation NO FORCE ROW LEVEL SECURITY")
    op.execute("DROP FUNCTION add_stored(uuid, bigint)")
    for statement in (_HELD, _FILL, _ADD_STORED, _CHECK_STORED, _COUNT_OBSERVATIONS, *_TRIGGERS):
        op.execute(statement)
    op.execute("ALTER TABLE observation FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.execute("DROP TRIGGER stored_at_the_end ON memory_count")
    op.execute("DROP TRIGGER observations_came ON observation")
    op.execute("DROP TRIGGER observations_went ON observation")
    for name in ("count_observations()", "check_stored()", "add_stored(uuid, bigint, bigint)"):
        op.execute(f"DROP FUNCTION {name}")
    op.execute("UPDATE memory_count SET stored = stored - held")
    op.execute("ALTER TABLE memory_count DROP COLUMN held")
    op.execute(getattr(import_module("memplane_core.storage.migrations.versions.0005_limits"), "_ADD_STORED"))  # noqa: B009

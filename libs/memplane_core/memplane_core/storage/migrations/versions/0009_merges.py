"""What memories have taken from those merged into them, what a run is about to merge, and how far runs have come."""

from alembic import context, op

revision = "0009"
down_revision = "0008"

_CURRENT = "NULLIF(current_setting('memplane.tenant', true), '')::uuid"

_TABLES = (
    # What it was before others were merged into it, and what each of them brought: on the memory itself, so that it is
    # gone with it, however that goes.
    "ALTER TABLE memory ADD COLUMN merges jsonb",
    "CREATE INDEX memory_merged ON memory (tenant_id, merged_into, id) WHERE merged_into IS NOT NULL",
    "CREATE INDEX memory_updated ON memory (tenant_id, updated_at, id) WHERE state = 'active'",
    # survivor_id: that stands for it once the plan is carried out; itself, where it stays.
    """
    CREATE TABLE merge_plan (
        tenant_id uuid NOT NULL,
        job_id uuid NOT NULL,
        memory_id uuid NOT NULL,
        survivor_id uuid NOT NULL,
        rev int NOT NULL,
        PRIMARY KEY (tenant_id, job_id, memory_id),
        FOREIGN KEY (tenant_id, job_id) REFERENCES job (tenant_id, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX merge_plan_survivor ON merge_plan (tenant_id, job_id, survivor_id, memory_id)",
    # What was changed before `seen` has been compared with all there was, under these terms.
    """
    CREATE TABLE merge_mark (
        tenant_id uuid NOT NULL REFERENCES tenant (id),
        generation int NOT NULL,
        terms jsonb NOT NULL,
        seen timestamptz NOT NULL,
        PRIMARY KEY (tenant_id, generation)
    )
    """,
)


def upgrade() -> None:
    app_role: str = context.config.attributes["app_role"]
    role = '"' + app_role.replace('"', '""') + '"'
    for statement in _TABLES:
        op.execute(statement)
    for table in ("merge_plan", "merge_mark"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY own_rows ON {table} USING (tenant_id = {_CURRENT}) WITH CHECK (tenant_id = {_CURRENT})"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")


def downgrade() -> None:
    for table in ("merge_mark", "merge_plan"):
        op.execute(f"DROP TABLE {table}")
    for index in ("memory_updated", "memory_merged"):
        op.execute(f"DROP INDEX {index}")
    op.execute("ALTER TABLE memory DROP COLUMN merges")

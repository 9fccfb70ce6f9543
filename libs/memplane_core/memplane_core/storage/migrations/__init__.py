"""Schema versions, applied by alembic."""

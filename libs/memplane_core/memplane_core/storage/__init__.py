"""Postgres: the truth. The only importer of asyncpg and sqlalchemy."""

-- Roles and database of Memplane, for psql as a superuser; the passwords come from its environment. Safe to run again.
\getenv owner_password OWNER_PASSWORD
\getenv app_password APP_PASSWORD
SELECT format('CREATE ROLE %I LOGIN', name) FROM unnest(ARRAY['memplane_owner', 'memplane_app']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE memplane_owner NOSUPERUSER NOBYPASSRLS PASSWORD :'owner_password';
ALTER ROLE memplane_app NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'app_password';
SELECT 'CREATE DATABASE memplane OWNER memplane_owner'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'memplane') \gexec
REVOKE ALL ON DATABASE memplane FROM PUBLIC;
GRANT CONNECT ON DATABASE memplane TO memplane_app;
\connect memplane
CREATE EXTENSION IF NOT EXISTS vector;
GRANT CREATE, USAGE ON SCHEMA public TO memplane_owner;
GRANT USAGE ON SCHEMA public TO memplane_app;

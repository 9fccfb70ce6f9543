"""TLS to Postgres, as asyncpg takes it."""

import ssl

from memplane_core.settings import PostgresSettings


def ssl_of(settings: PostgresSettings) -> ssl.SSLContext | str | None:
    """The `ssl` argument of asyncpg: a mode by its name, a context where files count, None where the URL decides.

    Raises:
        OSError: A file is not what it should be.
    """
    mode = settings.ssl_mode
    if mode is None and settings.has_tls_files:
        mode = "verify-full"
    if mode in ("verify-ca", "verify-full") or (mode == "require" and settings.client_pem_path):
        return _context(settings, verified=mode != "require", named=mode == "verify-full")
    return mode


def _context(settings: PostgresSettings, *, verified: bool, named: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_pem_path or None)
    context.check_hostname = named
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    if settings.client_pem_path:
        context.load_cert_chain(settings.client_pem_path, settings.client_key_path or None)
    return context

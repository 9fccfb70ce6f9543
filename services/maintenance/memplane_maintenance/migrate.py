"""Brings the database to the newest schema, as a program that ends: what runs before the services of a new version."""

import sys

from pydantic import SecretStr, ValidationError

from memplane_core.observability.logs import configure_logs, get_logger
from memplane_core.settings import PostgresSettings
from memplane_core.storage.migrate import MigrationError, upgrade_patiently
from memplane_core.storage.tls import ssl_of
from memplane_maintenance.settings import MigrationSettings

log = get_logger(__name__)


def run_migration(settings: MigrationSettings) -> int:
    """Migrate once. Returns 0, or 1 with a sentence on standard error; the schema is as it was then."""
    configure_logs(settings.log, service="migration")
    owner = settings.postgres
    url = owner.owner_url.get_secret_value()
    try:
        about = PostgresSettings(
            url=SecretStr(url),
            ssl_mode=owner.ssl_mode,
            ca_pem_path=owner.ca_pem_path,
            client_pem_path=owner.client_pem_path,
            client_key_path=owner.client_key_path,
        )
        upgrade_patiently(url, owner.app_role, lock_timeout_s=settings.migration.lock_timeout_s, ssl=ssl_of(about))
    except ValidationError as error:
        return _failed("; ".join(fault["msg"] for fault in error.errors()))
    except MigrationError as error:
        return _failed(f"{error}; nothing was changed")
    log.info("schema_is_up_to_date")
    return 0


def _failed(sentence: str) -> int:
    print(f"migration: {sentence}", file=sys.stderr)  # noqa: T201 - where every fault of a start is told
    return 1

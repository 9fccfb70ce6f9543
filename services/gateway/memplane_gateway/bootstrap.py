"""First tenants and their keys, as a program that ends: `python -m memplane_gateway bootstrap`.

The keys are made beforehand (`python -m memplane_gateway key`) and handed in as files, so that nothing that runs has to
give a secret away. Whatever is there already stays as it is: it may run again and again, and two may run at once.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field
from uuid_utils.compat import uuid7

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.domain.embedding import ModelProfiles
from memplane_core.domain.errors import Conflict, MemplaneError, NotFound, Unavailable
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import SCOPES, Scope, TenantId
from memplane_core.observability.logs import configure_logs, get_logger
from memplane_core.security.internal import InternalTokens
from memplane_core.security.keys import Keyring, PresentedKey, parse_key
from memplane_core.settings import Section
from memplane_core.storage import api_keys, tenants
from memplane_core.storage.api_keys import find_api_key
from memplane_core.storage.session import Database
from memplane_gateway.settings import GatewaySettings
from memplane_gateway.tenants import check_name, default_model

log = get_logger(__name__)

_PAUSE_S: Final = 2.0
_PAGE: Final = 200
_SCOPES: Final[tuple[Scope, ...]] = tuple(sorted(SCOPES))


class FirstTenant(Section):
    """A tenant that there shall be, and a key that shall open it.

    Attributes:
        key_file: Holds the key, as `python -m memplane_gateway key` prints it.
        key_name: What the key is called in lists of keys.
    """

    name: Annotated[str, Field(min_length=1, max_length=128)]
    key_file: Path
    key_name: Annotated[str, Field(min_length=1, max_length=128)] = "bootstrap"
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = _SCOPES


class BootstrapSection(Section):
    """Which tenants, and for how long a platform that is still starting is waited for."""

    tenants: tuple[FirstTenant, ...] = ()
    patience_s: float = Field(default=300.0, ge=0)


class BootstrapSettings(GatewaySettings):
    """Everything that it reads: what the gateway reads, and the tenants."""

    bootstrap: BootstrapSection


class BootstrapError(Exception):
    """What is asked for cannot be; says why. Quotes no key."""


def print_key() -> int:
    """Print a new key that nobody knows yet. Returns 0."""
    print(Keyring(("of no use: only its text is wanted",)).issue().text)  # noqa: T201 - what it is for
    return 0


def run_bootstrap(settings: BootstrapSettings) -> int:
    """Make what is missing. Returns 0, or 1 with a sentence on standard error."""
    configure_logs(settings.log, service="bootstrap")
    try:
        wanted = [(tenant, _key_in(tenant)) for tenant in settings.bootstrap.tenants]
        asyncio.run(_ensure_all(settings, wanted))
    except (BootstrapError, MemplaneError) as error:
        print(f"bootstrap: {error}", file=sys.stderr)  # noqa: T201 - where every fault of a start is told
        return 1
    return 0


def _key_in(tenant: FirstTenant) -> PresentedKey:
    try:
        text = tenant.key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BootstrapError(f"the key of {tenant.name!r} cannot be read: {type(error).__name__}") from None
    key = parse_key(text)
    if key is None:
        raise BootstrapError(f"what is given as the key of {tenant.name!r} is no key: make one with `... key`")
    return key


async def _ensure_all(settings: BootstrapSettings, wanted: list[tuple[FirstTenant, PresentedKey]]) -> None:
    deadline = time.monotonic() + settings.bootstrap.patience_s
    async with _opened(settings) as bootstrap:
        for tenant, key in wanted:
            while True:
                try:
                    await bootstrap.ensure(tenant, key)
                    break
                except Unavailable as error:
                    if time.monotonic() > deadline:
                        raise
                    log.info("waiting", reason=type(error).__name__)
                await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def _opened(settings: BootstrapSettings) -> AsyncGenerator["Bootstrap"]:
    embedder = HttpEmbedder(settings.endpoints.embedding_url, InternalTokens(*settings.trust.secrets))
    try:
        async with Database.open(settings.postgres) as database:
            yield Bootstrap(database, embedder, Keyring(settings.gateway.peppers), settings)
    finally:
        await embedder.close()


class Bootstrap:
    """Makes tenants and keys that are missing."""

    def __init__(self, database: Database, embedder: HttpEmbedder, keyring: Keyring, settings: GatewaySettings) -> None:
        self._database = database
        self._embedder = embedder
        self._keyring = keyring
        self._index = settings.milvus

    async def ensure(self, wanted: FirstTenant, key: PresentedKey) -> None:
        """Make one tenant and its key, where they are missing.

        Raises:
            BootstrapError: The key is another tenant's, was revoked, or was made under a pepper that is not listed.
            Unavailable: Postgres or the embedding service cannot be reached.
        """
        check_name(wanted.name)
        tenant = await self._find(wanted.name) or await self._make(wanted.name)
        known = await self._stored(key)
        if known is None:
            known = await self._add(tenant, wanted, key)
        if known.tenant != tenant:
            raise BootstrapError(f"the key given for {wanted.name!r} is another tenant's")
        if not self._keyring.matches(key, known.digest):
            raise BootstrapError(f"the key given for {wanted.name!r} was made under a pepper that is not listed now")
        if known.revoked_at is not None:
            raise BootstrapError(f"the key given for {wanted.name!r} was revoked: hand in another")
        log.info("tenant_is_there", tenant=str(tenant), key=key.id)

    async def _find(self, name: str) -> TenantId | None:
        after = None
        while True:
            async with self._database.system() as connection:
                page = await tenants.list_tenants(connection, after=after, limit=_PAGE)
            for tenant in page:
                if tenant.name == name:
                    return tenant.id
            if len(page) < _PAGE:
                return None
            after = page[-1].id

    async def _make(self, name: str) -> TenantId:
        profiles: ModelProfiles = await self._embedder.profiles()
        model, dim = default_model(profiles)
        tenant = TenantId(uuid7())
        generation = Generation(
            tenant=tenant,
            number=1,
            model=model,
            dim=dim,
            index_type=self._index.index_type,
            index_params=self._index.index_params,
            state="absent",
        )
        try:
            async with self._database.tenant(tenant) as connection:
                await tenants.create_tenant(tenant, connection, name=name, generation=generation)
        except Conflict:  # another of us was first
            found = await self._find(name)
            if found is None:
                raise
            return found
        return tenant

    async def _stored(self, key: PresentedKey) -> api_keys.StoredKey | None:
        async with self._database.system() as connection:
            return await find_api_key(connection, key_id=key.id)

    async def _add(self, tenant: TenantId, wanted: FirstTenant, key: PresentedKey) -> api_keys.StoredKey:
        try:
            async with self._database.tenant(tenant) as connection:
                return await api_keys.create_api_key(
                    tenant,
                    connection,
                    key_id=key.id,
                    name=wanted.key_name,
                    digest=self._keyring.digest(key),
                    scopes=frozenset(wanted.scopes),
                    expires_at=None,
                )
        except Conflict:
            raise BootstrapError(f"the key given for {wanted.name!r} was made by another at this moment") from None
        except NotFound:
            raise BootstrapError(f"the tenant {wanted.name!r} was deleted at this moment") from None

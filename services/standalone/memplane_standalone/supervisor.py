"""Starts parts in the order of their needs, keeps them running, and stops them."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence

from memplane_core.embedded.processes import Launch, await_group, kill_group, log_tail
from memplane_standalone.parts.part import Part, Step
from memplane_standalone.progress import Reporter

_FIRST_TRIES = 3
"""A part that ends so often before it was ever ready will not get ready."""

_BACKOFF_S = 0.2
_BACKOFF_MAX_S = 10.0
_STEADY_S = 30.0
"""After running so long, a part's next failure counts as its first."""

_POLL_S = 0.1

_UNREADY_GRACE_S = 2.0
"""A part that is told to end before it is ready has nothing to finish, and may not listen yet."""


class StartError(Exception):
    """The platform cannot be started; says which part, and why."""


class Supervisor:
    """Runs a set of parts.

    Args:
        parts: What to keep running.
        steps: What to do once, in between.
        reporter: Who is told.
    """

    def __init__(self, parts: Sequence[Part], steps: Sequence[Step], *, reporter: Reporter) -> None:
        self._reporter = reporter
        self._steps = steps
        self._done = {item.name: asyncio.Event() for item in (*parts, *steps)}
        self._keepers = [_Keeper(part, reporter=reporter, done=self._done) for part in parts]
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Return when all parts are ready and all steps done. Raises StartError; then call `stop` all the same."""
        for keeper in self._keepers:
            self._begin(self._keep(keeper))
        for step in self._steps:
            self._begin(self._run(step))
        everything = asyncio.create_task(self._all_done())
        try:
            await asyncio.wait([everything, self._failure], return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            everything.cancel()

    async def watch(self) -> None:
        """Never return. Raises what has ended the watching of a part, which is a fault of ours."""
        await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """Stop every part, those of the highest stage first, and return when no process of theirs is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stage in sorted({keeper.part.stage for keeper in self._keepers}, reverse=True):
            await asyncio.gather(*(keeper.stop() for keeper in self._keepers if keeper.part.stage == stage))

    def kill(self) -> None:
        """Kill every part at once; `stop` is still to be awaited."""
        for keeper in self._keepers:
            keeper.kill()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_failure)
        self._tasks.append(task)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    async def _keep(self, keeper: "_Keeper") -> None:
        await self._await(keeper.part.needs)
        await keeper.run()

    async def _run(self, step: Step) -> None:
        await self._await(step.needs)
        self._reporter.starting(step.name)
        began = time.monotonic()
        await step.run()
        self._reporter.ready(step.name, seconds=time.monotonic() - began)
        self._done[step.name].set()

    async def _await(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._done:  # one that is not ours to run, such as an external database, is taken to be there
                await self._done[name].wait()

    async def _all_done(self) -> None:
        for event in self._done.values():
            await event.wait()


class _Keeper:
    """Keeps one part running."""

    def __init__(self, part: Part, *, reporter: Reporter, done: Mapping[str, asyncio.Event]) -> None:
        self.part = part
        self._reporter = reporter
        self._ready = done[part.name]
        self._asked_after = [done[name] for name in part.asked_after if name in done]
        self._process: asyncio.subprocess.Process | None = None
        self._launch: Launch | None = None
        self._failures = 0
        self._serving = False

    async def run(self) -> None:
        """Start the part and start it again whenever it ends. Raises StartError if it never gets ready."""
        while True:
            began = time.monotonic()
            self._reporter.starting(self.part.name)
            try:
                what = await self._run_to_its_end(began)
            except (OSError, RuntimeError) as error:
                what = f"cannot be started: {error}"
                if not self._ready.is_set():
                    raise StartError(f"{self.part.name} {what}") from error
            self._failures = 1 if time.monotonic() - began > _STEADY_S else self._failures + 1
            if not self._ready.is_set() and self._failures >= _FIRST_TRIES:
                raise StartError(f"{self.part.name} {what}. The end of its log:\n{self._log_tail()}")
            self._reporter.trouble(self.part.name, what=f"{what}, starting it again")
            await asyncio.sleep(min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** (self._failures - 1)))

    async def _run_to_its_end(self, began: float) -> str:
        process = await self._spawn()
        if await self._until_ready(process):
            self._reporter.ready(self.part.name, seconds=time.monotonic() - began)
            self._ready.set()
            self._serving = True
            await process.wait()
            self._serving = False
            what = f"ended ({_reason(process)})"
        else:
            what = self._why_not_ready(process)
        await _end_group(process)
        return what

    async def stop(self) -> None:
        """Ask the part to end, and kill it after its grace."""
        process, launch = self._process, self._launch
        if process is None or launch is None:
            return
        if process.returncode is None:
            grace_s = launch.grace_s if self._serving else min(_UNREADY_GRACE_S, launch.grace_s)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(launch.stop_signal)
            try:
                await asyncio.wait_for(process.wait(), grace_s)
            except TimeoutError:
                self._reporter.trouble(self.part.name, what=f"did not end in {grace_s:g} s, killing it")
        await _end_group(process)

    def kill(self) -> None:
        """Kill the part with its group."""
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)

    async def _spawn(self) -> asyncio.subprocess.Process:
        if self.part.prepare is not None:
            await asyncio.to_thread(self.part.prepare)
        self._launch = launch = self.part.launch()
        with launch.log.open("ab") as log:
            # From the loop's own thread, the main one: a child is told of the death of the thread it came from.
            self._process = await asyncio.create_subprocess_exec(
                *launch.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                cwd=launch.cwd,
                env=dict(launch.env),
                start_new_session=True,
                umask=0o077,
            )
        return self._process

    async def _until_ready(self, process: asyncio.subprocess.Process) -> bool:
        deadline = time.monotonic() + self.part.ready_s
        while process.returncode is None and time.monotonic() < deadline:
            may_ask = all(event.is_set() for event in self._asked_after)
            if may_ask and await asyncio.to_thread(self.part.is_ready):
                return process.returncode is None
            await asyncio.sleep(_POLL_S)
        return False

    def _why_not_ready(self, process: asyncio.subprocess.Process) -> str:
        if process.returncode is None:
            return f"was not ready in {self.part.ready_s:g} s"
        return f"ended before it was ready ({_reason(process)})"

    def _log_tail(self) -> str:
        return log_tail(self._launch.log) if self._launch else ""


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Return when neither a process nor any other of its group is left."""
    kill_group(process.pid)
    await process.wait()
    await asyncio.to_thread(await_group, process.pid)


async def run_once(launch: Launch, *, timeout_s: float) -> None:
    """Run a program to its end. Raises StartError with its last words if it fails or takes too long."""
    name = launch.log.stem
    with launch.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *launch.command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(launch.env),
            start_new_session=True,
            umask=0o077,
        )
    try:
        code = await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        raise StartError(f"{name} was not done in {timeout_s:g} s; see {launch.log}") from None
    finally:
        if process.returncode is None:
            await _end_group(process)
    if code != 0:
        raise StartError(f"{name} failed with code {code}. The end of its log:\n{log_tail(launch.log)}")


def _reason(process: asyncio.subprocess.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"

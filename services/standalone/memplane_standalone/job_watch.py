"""Jobs as a terminal shows them: a bar each until all have ended, then a table."""

import asyncio
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from memplane_core.contracts.admin import TenantView
from memplane_core.contracts.job_runs import JobView
from memplane_standalone.admin import AdminApi

_POLL_S: Final = 0.5
_ENDED: Final = frozenset(("done", "failed", "cancelled"))


def has_ended(job: JobView) -> bool:
    """Whether nothing more comes of it."""
    return job.state in _ENDED


def exit_code(jobs: Sequence[JobView]) -> int:
    """1 where one has failed or was cancelled."""
    return 1 if any(job.state in ("failed", "cancelled") for job in jobs) else 0


def result_of(job: JobView) -> str:
    """What it did so far, in one line."""
    return " ".join(f"{name}={number}" for name, number in sorted(job.result.items()))


async def watch_jobs(
    admin: AdminApi, started: Sequence[tuple[TenantView, JobView]], *, quiet: bool, by_kind: bool = False
) -> list[JobView]:
    """Show how jobs go until all have ended, and return them as they are then.

    Args:
        admin: A client of the platform.
        started: Jobs with their tenants.
        quiet: Show nothing.
        by_kind: Call a job by its kind, and not by its tenant.
    """
    latest = {job.id: job for _, job in started}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(quiet=quiet)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        names = {job.id: job.kind if by_kind else tenant.name for tenant, job in started}
        shown: dict[object, TaskID] = {job.id: bars.add_task(names[job.id], total=None) for _, job in started}
        while True:
            for tenant, job in started:
                if not has_ended(latest[job.id]):
                    now = latest[job.id] = await admin.job(tenant.id, job.id)
                    about = f"{names[job.id]} ({now.error})" if now.error else names[job.id]
                    bars.update(shown[job.id], total=now.progress.total, completed=now.progress.done, description=about)
            if all(map(has_ended, latest.values())):
                return list(latest.values())
            await asyncio.sleep(_POLL_S)

"""`memplane jobs`: what is done to a tenant's memories in the background."""

from collections.abc import Sequence
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from memplane_core.contracts.job_runs import JobStart, JobView
from memplane_standalone.admin import AdminApi, ApiError
from memplane_standalone.cli_admin import Target, run, show_json
from memplane_standalone.job_watch import exit_code, has_ended, result_of, watch_jobs

_HERE: Final = Target()

jobs = App(name="jobs", help="List, start, watch and cancel jobs.")


@jobs.command(name="list")
def list_jobs(tenant: str, *, kind: str | None = None, limit: int = 20, target: Target = _HERE) -> None:
    """List a tenant's runs, the newest first.

    Parameters
    ----------
    tenant
        Name or id.
    kind
        Only runs of this kind.
    limit
        Most that are listed.
    """

    async def work(admin: AdminApi) -> list[JobView]:
        return await admin.jobs((await admin.find_tenant(tenant)).id, kind=kind, limit=limit)

    _show(run(target, work), target)


@jobs.command(name="start")
def start_job(
    kind: str,
    *,
    tenant: str,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    as_of: str | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    target: Target = _HERE,
) -> int:
    """Start a job. What is not said of its rules is the tenant's policy's.

    Parameters
    ----------
    kind
        priorities, prune, expire, purge, merge, reflect, reconcile or reindex.
    tenant
        Name or id.
    set_
        A rule or an option, as `max_idle_days=90`; may be repeated. What the API's document says of the kind.
    dry_run
        Only tell what would be done.
    as_of
        For a dry run: do as if it were that moment, as `2027-01-01T00:00:00Z`.
    wait
        Show how it goes until it has ended; the exit code is 1 where it fails.
    """
    start = _body(kind, set_, dry_run=dry_run, as_of=as_of)

    async def work(admin: AdminApi) -> JobView:
        found = await admin.find_tenant(tenant)
        job = await admin.start_job(found.id, start)
        if wait or dry_run:
            [job] = await watch_jobs(admin, [(found, job)], quiet=target.json, by_kind=True)
        return job

    return _show([run(target, work)], target, sample=True)


@jobs.command(name="show")
def show_job(tenant: str, job: UUID, *, target: Target = _HERE) -> int:
    """Show one run, with the ids of some of the memories that it touched.

    Parameters
    ----------
    tenant
        Name or id.
    job
        Its id.
    """

    async def work(admin: AdminApi) -> JobView:
        return await admin.job((await admin.find_tenant(tenant)).id, job)

    return _show([run(target, work)], target, sample=True)


@jobs.command(name="cancel")
def cancel_job(tenant: str, job: UUID, *, target: Target = _HERE) -> None:
    """Have a run end before its next batch. What it has done stays, where that is complete in itself.

    Parameters
    ----------
    tenant
        Name or id.
    job
        Its id.
    """

    async def work(admin: AdminApi) -> JobView:
        return await admin.cancel_job((await admin.find_tenant(tenant)).id, job)

    _show([run(target, work)], target)


@jobs.command(name="watch")
def watch_job(tenant: str, job: UUID | None = None, *, target: Target = _HERE) -> int:
    """Show how a run goes until it has ended, or all that have not.

    Parameters
    ----------
    tenant
        Name or id.
    job
        Its id; all that are under way where it is left out.
    """

    async def work(admin: AdminApi) -> list[JobView]:
        found = await admin.find_tenant(tenant)
        if job is not None:
            watched = [await admin.job(found.id, job)]
        else:
            watched = [one for one in await admin.jobs(found.id, limit=100) if not has_ended(one)]
        return await watch_jobs(admin, [(found, one) for one in watched], quiet=target.json, by_kind=True)

    return _show(run(target, work), target, sample=job is not None)


def _body(kind: str, given: Sequence[str], *, dry_run: bool, as_of: str | None) -> JobStart:
    """The body that starts such a job. Raises ApiError where there is none such."""
    body: dict[str, Any] = {"kind": kind, "dry_run": dry_run}
    if as_of is not None:
        body["as_of"] = as_of
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise ApiError(f"--set {item!r} is not like max_idle_days=90")
        try:
            body[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            body[name] = value
    try:
        return msgspec.convert(body, JobStart)
    except msgspec.ValidationError as error:
        raise ApiError(f"a {kind} cannot be started like that: {error}") from None


def _show(found: Sequence[JobView], target: Target, *, sample: bool = False) -> int:
    if target.json:
        show_json(found)
        return exit_code(found)
    table = Table("job", "kind", "state", "progress", "result", "begun", "by", "error")
    for job in found:
        done, total = job.progress.done, job.progress.total
        table.add_row(
            str(job.id),
            f"{job.kind} (dry run)" if job.dry_run else job.kind,
            "cancelling" if job.cancel_asked and not has_ended(job) else job.state,
            str(done) if total is None else f"{done}/{total}",
            result_of(job),
            f"{job.started_at:%Y-%m-%d %H:%M}" if job.started_at else "",
            job.started_by,
            job.error or "",
        )
    console = Console()
    console.print(table)
    if sample:
        for memory_id in (memory_id for job in found for memory_id in job.sample):
            console.print(str(memory_id), highlight=False)
    return exit_code(found)

"""`memplane reindex`, `memplane rebuild-index` and `memplane generations`: a tenant's collections."""

from collections.abc import Sequence
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from memplane_core.contracts.admin import TenantView
from memplane_core.contracts.job_runs import WEEK_S, JobView, ReindexStart
from memplane_core.domain.indexing import IndexType
from memplane_standalone.admin import AdminApi, ApiError
from memplane_standalone.cli_admin import Target, run, show_json
from memplane_standalone.job_watch import exit_code, result_of, watch_jobs

_HERE: Final = Target()
_CONFLICT: Final = 409

_REBUILD_GRACE_S: Final = 60
"""The collection before is lost or suspect: nobody will want to go back to it."""


def reindex(
    *,
    tenant: str,
    model: str | None = None,
    index_type: IndexType | None = None,
    index_param: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    reembed: Annotated[bool, Parameter(negative="")] = False,
    to_generation: int | None = None,
    grace_s: int = WEEK_S,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    wait: Annotated[bool, Parameter(negative="")] = False,
    target: Target = _HERE,
) -> int:
    """Make a tenant's collection anew, for another model or index, while it keeps answering.

    Parameters
    ----------
    tenant
        Name or id.
    model
        To embed with from now on; else the tenant's own.
    index_type
        HNSW, IVF_FLAT or AUTOINDEX; else the installation's.
    index_param
        What the index is built with, as `M=32`; may be repeated.
    reembed
        Embed every memory again even if the model stays.
    to_generation
        Go back to one that is still kept, instead: see `memplane generations`.
    grace_s
        For how many seconds the collection that answers now is kept up to date, to go back to.
    dry_run
        Only tell what would be done.
    wait
        Show how it goes until it has ended; the exit code is 1 where it fails.
    """
    start = ReindexStart(
        model=model,
        index_type=index_type,
        index_params=_params(index_param) if index_param else None,
        reembed=reembed,
        to_generation=to_generation,
        grace_s=grace_s,
        dry_run=dry_run,
    )

    async def work(admin: AdminApi) -> JobView:
        found = await admin.find_tenant(tenant)
        job = await admin.start_job(found.id, start)
        if wait or dry_run:
            [job] = await watch_jobs(admin, [(found, job)], quiet=target.json)
        return job

    return _show([run(target, work)], target)


def rebuild_index(*, tenant: str | None = None, target: Target = _HERE) -> int:
    """Make lost or suspect collections anew from Postgres, of one tenant or of all, and wait for them.

    Nothing is embedded again that has been embedded before; searches are answered meanwhile.

    Parameters
    ----------
    tenant
        Name or id; all where it is left out.
    """

    async def work(admin: AdminApi) -> list[JobView]:
        found = await admin.tenants() if tenant is None else [await admin.find_tenant(tenant)]
        started: list[tuple[TenantView, JobView]] = []
        for one in found:
            start = ReindexStart(grace_s=_REBUILD_GRACE_S)
            try:
                started.append((one, await admin.start_job(one.id, start)))
            except ApiError as error:
                if tenant is not None or error.status != _CONFLICT:
                    raise
                print(f"{one.name}: {error}")
        return await watch_jobs(admin, started, quiet=target.json)

    return _show(run(target, work), target)


def generations(tenant: str, *, target: Target = _HERE) -> None:
    """List a tenant's collections: which one answers, and how far each is behind.

    Parameters
    ----------
    tenant
        Name or id.
    """

    async def work(admin: AdminApi) -> None:
        found = await admin.generations((await admin.find_tenant(tenant)).id)
        if target.json:
            show_json(found)
            return
        table = Table("no.", "state", "model", "dim", "index", "embedded", "pending", "failed", "lag", "dropped at")
        for one in found:
            table.add_row(
                str(one.number),
                one.state,
                one.model,
                str(one.dim),
                one.index_type,
                f"{one.embedded}/{one.chunks}",
                str(one.pending),
                str(one.failed),
                f"{one.lag_s:.1f} s",
                f"{one.drop_at:%Y-%m-%d %H:%M}" if one.drop_at else "",
            )
        Console().print(table)

    run(target, work)


def _show(jobs: Sequence[JobView], target: Target) -> int:
    """Print jobs; 1 where one has failed."""
    if target.json:
        show_json(jobs)
    else:
        table = Table("job", "state", "model", "index", "result", "error")
        for job in jobs:
            index = str(job.params.get("index_type", ""))
            table.add_row(
                str(job.id), job.state, str(job.params.get("model", "")), index, result_of(job), job.error or ""
            )
        Console().print(table)
    return exit_code(jobs)


def _params(given: Sequence[str]) -> dict[str, int]:
    """`M=32` and the like as a dictionary. Raises ApiError for what is not."""
    found: dict[str, int] = {}
    for item in given:
        name, _, value = item.partition("=")
        if not name or not value.isascii() or not value.isdigit():
            raise ApiError(f"--index-param {item!r} is not like M=32")
        found[name] = int(value)
    return found

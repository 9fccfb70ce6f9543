"""A tenant's jobs: begun as a dry run or for real, watched, and ended early."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.job_runs import JobPage, JobView
from memplane_core.domain.errors import invalid
from memplane_gateway.console.fields import Field, filled_in
from memplane_gateway.console.visits import Form, Visit

_PAGE: Final = 25


class Kind(msgspec.Struct, frozen=True):
    """A kind of job as the page offers it. What is left empty is the policy's.

    Attributes:
        hides: Whether it takes memories out of recall, or deletes them.
    """

    name: str
    told: str
    fields: Sequence[Field] = ()
    hides: bool = False


KINDS: Final = (
    Kind(
        "prune",
        "Forget memories that are of no use. Each can be restored until it is purged; pinned ones are left alone.",
        (
            Field("age_by", "Age counts from", "choice", ("", "accessed", "occurred")),
            Field("max_idle_days", "Idle for days"),
            Field("max_priority", "Of at most the priority"),
            Field("grace_days", "Can be restored for days"),
        ),
        hides=True,
    ),
    Kind(
        "merge",
        "Make one of memories that tell the same. It can be undone for as long as what was merged is kept.",
        (
            Field("threshold", "Least cosine"),
            Field("guard", "Must be the same", "choice", ("", "words", "facts", "none")),
            Field("grace_days", "Can be undone for days"),
            Field("full", "Look at all memories once more", "tick"),
        ),
        hides=True,
    ),
    Kind(
        "priorities",
        "Move each memory’s priority one step towards what its use and feedback have earned.",
        (Field("feedback_weight", "Weight of feedback"),),
    ),
    Kind(
        "expire",
        "Delete memories for good that expired some time ago.",
        (Field("grace_days", "Expired for days"),),
        hides=True,
    ),
    Kind("purge", "Delete what is forgotten or merged and can be restored no more.", hides=True),
    Kind("reconcile", "Compare the index with Postgres both ways, and mend what differs."),
    Kind(
        "reindex",
        "Build a new collection, let it answer once it is complete, and keep the old one for a while.",
        (
            Field("model", "Embedding model", "text", help="The tenant’s own where it is left empty"),
            Field("index_type", "Index", "choice", ("", "HNSW", "IVF_FLAT", "AUTOINDEX")),
            Field("to_generation", "Go back to the generation"),
            Field("grace_s", "Keep the old one for seconds"),
            Field("reembed", "Embed every memory again", "tick"),
        ),
    ),
    Kind(
        "reflect",
        "Have the language model score memories and come to insights.",
        (
            Field("threshold", "Importance that has to gather"),
            Field("max_memories", "Most memories shown at once"),
            Field("max_insights", "Most insights from those"),
        ),
    ),
)
_BY_NAME: Final = {kind.name: kind for kind in KINDS}


@get("/t/{tenant:uuid}/jobs")
async def jobs_page(
    visit: NamedDependency[Visit], tenant: FromPath[UUID], cursor: FromQuery[str | None] = None
) -> Response[bytes]:
    """All runs, and what can be begun."""
    query = {"limit": _PAGE, "cursor": cursor}
    page = (await visit.ask(f"{visit.base(tenant)}/jobs", query=query)).read(JobPage)
    return await visit.page("jobs.html", title="Jobs", tenant=tenant, jobs=page, kinds=KINDS)


@post("/t/{tenant:uuid}/jobs", status_code=200)
async def begin_job(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Begin a job and go to it."""
    form = await visit.form()
    body = _body(form)
    path = f"{visit.base(tenant)}/jobs"
    job = (await visit.send("POST", path, body=body, repeat_key=form.text("once"))).read(JobView)
    return visit.go(f"/t/{tenant}/jobs/{job.id}")


def _body(form: Form) -> dict[str, Any]:
    kind = _BY_NAME.get(form.text("kind") or "")
    if kind is None:
        raise invalid("/kind", "is no kind of job")
    return {**filled_in(form, kind.fields, empty=False), "kind": kind.name, "dry_run": form.text("run") != "real"}


@get("/t/{tenant:uuid}/jobs/{job:uuid}")
async def job_page(visit: NamedDependency[Visit], tenant: FromPath[UUID], job: FromPath[UUID]) -> Response[bytes]:
    """A run: how far it is, and what came of it."""
    return await _show(visit, tenant, job)


@post("/t/{tenant:uuid}/jobs/{job:uuid}", status_code=200)
async def cancel_job(visit: NamedDependency[Visit], tenant: FromPath[UUID], job: FromPath[UUID]) -> Response[bytes]:
    """Ask a run to end."""
    form = await visit.form()
    path = f"{visit.base(tenant)}/jobs/{job}/cancel"
    await visit.send("POST", path, repeat_key=form.text("once"))
    return await _show(visit, tenant, job, notice="It ends before its next batch.")


async def _show(visit: Visit, tenant: UUID, job: UUID, notice: str | None = None) -> Response[bytes]:
    found = (await visit.ask(f"{visit.base(tenant)}/jobs/{job}")).read(JobView)
    kind = _BY_NAME.get(found.kind)
    rules: dict[str, Any] = found.params.get("rules", found.params)
    again = {field.name: rules[field.name] for field in kind.fields if _is_given(rules, field)} if kind else {}
    return await visit.page(
        "job.html", title=found.kind, tenant=tenant, job=found, kind=kind, rules=rules, again=again, notice=notice
    )


def _is_given(rules: dict[str, Any], field: Field) -> bool:
    return rules.get(field.name) not in (None, False)


JOB_PAGES: Final[Sequence[ControllerRouterHandler]] = (jobs_page, begin_job, job_page, cancel_job)

"""A tenant's policy, a group of fields at a time."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.domain.errors import invalid
from memplane_gateway.console.fields import Field, filled_in
from memplane_gateway.console.visits import Visit


class Group(msgspec.Struct, frozen=True):
    """Fields that are changed together.

    Attributes:
        within: Object of the policy that they are in; empty for the policy itself.
        whole: That object is replaced as a whole: what the form has no field for is sent along as it is.
    """

    name: str
    title: str
    told: str
    fields: Sequence[Field]
    within: str = ""
    whole: bool = False

    def of(self, policy: dict[str, Any]) -> dict[str, Any]:
        """The object that its fields are in."""
        found = policy
        for step in self.within.split(".") if self.within else ():
            found = found[step]
        return found


_EVERY: Final = (Field("enabled", "By itself", "tick"), Field("every_hours", "At most every hours"))


def _schedule(name: str, told: str, *fields: Field) -> Group:
    return Group(name, name.capitalize(), told, (*_EVERY, *fields), f"maintenance.{name}", whole=True)


GROUPS: Final = (
    Group(
        "ranking",
        "Ranking",
        "How searches order what they find, where they do not say.",
        (
            Field("weights.match", "Weight of likeness"),
            Field("weights.recency", "Weight of recency"),
            Field("weights.importance", "Weight of importance"),
            Field("weights.priority", "Weight of priority"),
            Field("preset", "Preset in place of weights", "choice", ("", "dbgpt")),
            Field("decay_rate", "Recency lost in an hour"),
            Field("min_relevance", "Least relevance"),
        ),
    ),
    Group(
        "writing",
        "Writing",
        "What a memory gets that is written without an importance, and whether a user must be named.",
        (
            Field("default_importance", "Importance"),
            Field("importance_scorer", "Scored by", "choice", ("default", "heuristic", "llm")),
            Field("require_user", "Each request must name a user", "tick"),
        ),
    ),
    Group(
        "sessions",
        "Sessions",
        "What a session observes is held in a buffer, and becomes a memory when it leaves it.",
        (
            Field("kind", "Leaves first", "choice", ("fifo", "enhanced")),
            Field("buffer_size", "Observations held"),
            Field("threshold", "Least importance to be held"),
            Field("overflow", "What leaves for lack of room", "choice", ("promote", "drop")),
            Field("enhance_threshold", "Becomes a memory once strengthened"),
            Field(
                "enhance_similarity_threshold",
                "Least cosine to strengthen",
                help="The model’s own where it is left empty",
            ),
        ),
        "short_term",
        whole=True,
    ),
    Group(
        "keeping",
        "Keeping",
        "How long what is hidden is kept before it is deleted for good.",
        (Field("forget_grace_days", "Forgotten memories, days"), Field("expired_grace_days", "Expired memories, days")),
        "maintenance",
    ),
    _schedule(
        "prune",
        "Forgets memories that are of no use.",
        Field("age_by", "Age counts from", "choice", ("accessed", "occurred")),
        Field("max_idle_days", "Idle for days"),
        Field("max_priority", "Of at most the priority"),
        Field("grace_days", "Can be restored for days"),
    ),
    _schedule(
        "merge",
        "Makes one of near-copies.",
        Field("threshold", "Least cosine", help="The model’s own where it is left empty"),
        Field("guard", "Must be the same", "choice", ("words", "facts", "none")),
        Field("grace_days", "Can be undone for days"),
    ),
    _schedule("priorities", "Moves priorities by use and feedback.", Field("feedback_weight", "Weight of feedback")),
    _schedule(
        "reflect",
        "Has a language model, where there is one, score memories and come to insights.",
        Field("threshold", "Importance that has to gather"),
        Field("max_memories", "Most memories shown at once"),
        Field("max_insights", "Most insights from those"),
    ),
    _schedule("expire", "Deletes memories that have expired, once their time is over."),
    _schedule("purge", "Deletes what is hidden and can be restored no more."),
)
_BY_NAME: Final = {group.name: group for group in GROUPS}


@get("/t/{tenant:uuid}/policy")
async def policy_page(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """What holds now, as forms."""
    return await _show(visit, tenant)


@post("/t/{tenant:uuid}/policy", status_code=200)
async def change_policy(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Change one group."""
    form = await visit.form()
    group = _BY_NAME.get(form.text("group") or "")
    if group is None:
        raise invalid("group", "is no group of fields")
    path = f"{visit.base(tenant)}/policy"
    changed = filled_in(form, group.fields, empty=True)
    if group.whole:
        changed = {**group.of(await _read(visit, tenant)), **changed}
        changed = {name: value for name, value in changed.items() if value is not None}
    for step in reversed(group.within.split(".") if group.within else ()):
        changed = {step: changed}
    await visit.send("PATCH", path, body=changed, repeat_key=form.text("once"))
    return await _show(visit, tenant, notice=f"{group.title} is changed. Every service knows within a few seconds.")


async def _read(visit: Visit, tenant: UUID) -> dict[str, Any]:
    return (await visit.ask(f"{visit.base(tenant)}/policy")).read(dict[str, Any])


async def _show(visit: Visit, tenant: UUID, notice: str | None = None) -> Response[bytes]:
    policy = await _read(visit, tenant)
    return await visit.page("policy.html", title="Policy", tenant=tenant, policy=policy, groups=GROUPS, notice=notice)


POLICY_PAGES: Final[Sequence[ControllerRouterHandler]] = (policy_page, change_policy)

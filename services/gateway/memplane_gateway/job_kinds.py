"""What each kind of job is asked with, checked and completed before it is queued."""

from typing import Any

import msgspec

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.contracts.job_runs import (
    JobStart,
    MergeParams,
    MergeStart,
    ReconcileStart,
    ReindexParams,
    ReindexStart,
)
from memplane_core.contracts.maintenance_runs import MaintenanceStart, kind_of, params_of
from memplane_core.contracts.reflect_runs import ReflectStart, reflect_params
from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.errors import NoLanguageModel, NotFound, invalid
from memplane_core.domain.index import Generation
from memplane_core.domain.indexing import complete_index_params
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import GenerationLife, generation_lives
from memplane_core.storage.policies import policy_of
from memplane_core.storage.session import Database
from memplane_gateway.settings import IndexDefaults


class Prepared(msgspec.Struct, frozen=True):
    """A job that can be queued."""

    kind: str
    params: dict[str, Any]
    dry_run: bool


class JobKinds:
    """Knows the installation that a job is for.

    Args:
        database: Of the tenants.
        embedder: Tells which models are served.
        index: How collections are indexed where nobody says anything else.
        has_llm: Whether the installation has a language model.
    """

    def __init__(self, database: Database, embedder: HttpEmbedder, index: IndexDefaults, *, has_llm: bool) -> None:
        self._database = database
        self._embedder = embedder
        self._index = index
        self._has_llm = has_llm

    async def prepare(self, tenant: TenantId, start: JobStart) -> Prepared:
        """Complete what was asked for.

        Raises:
            InvalidRequest: It cannot be done; the fault names the field.
            NotFound: The tenant is gone.
            EmbeddingUnavailable: Nobody can tell which models are served.
            NoLanguageModel: It takes one.
        """
        if isinstance(start, MaintenanceStart):
            async with self._database.tenant(tenant) as connection:
                policy = await policy_of(tenant, connection)
            kind = kind_of(start)
            return Prepared(kind, params_of(kind, policy.maintenance, start), start.dry_run)
        if isinstance(start, ReflectStart):
            if not self._has_llm:
                raise NoLanguageModel
            async with self._database.tenant(tenant) as connection:
                policy = await policy_of(tenant, connection)
            return Prepared("reflect", reflect_params(policy.maintenance, start), start.dry_run)
        if isinstance(start, ReconcileStart):
            await self._lives(tenant)
            return Prepared("reconcile", {}, start.dry_run)
        if isinstance(start, MergeStart):
            await self._lives(tenant)
            rules = {name: getattr(start, name) for name in MergeParams.__struct_fields__}
            return Prepared("merge", msgspec.to_builtins(MergeParams(**rules)), start.dry_run)
        params = await self._reindex(tenant, start)
        return Prepared("reindex", msgspec.to_builtins(params), start.dry_run)

    async def _reindex(self, tenant: TenantId, start: ReindexStart) -> ReindexParams:
        lives = await self._lives(tenant)
        kept = {life.generation.number: life.generation for life in lives if life.life == "kept"}
        if start.to_generation is not None:
            return _going_back(start, kept)
        active = next(life.generation for life in lives if life.active)
        model = await self._model(start.model or active.model)
        index_type = start.index_type or self._index.index_type
        given = start.index_params
        if given is None:
            given = self._index.index_params if index_type == self._index.index_type else {}
        try:
            index_params = complete_index_params(index_type, given)
        except ValueError as error:
            raise invalid("/index_params", str(error)) from None
        return ReindexParams(
            model=model.name,
            dim=model.dim,
            index_type=index_type,
            index_params=index_params,
            reembed=start.reembed,
            to_generation=None,
            grace_s=start.grace_s,
        )

    async def _lives(self, tenant: TenantId) -> list[GenerationLife]:
        async with self._database.tenant(tenant) as connection:
            lives = await generation_lives(tenant, connection)
        if not lives:
            raise NotFound("there is no such tenant")
        return lives

    async def _model(self, name: str) -> ModelProfile:
        profiles = await self._embedder.profiles()
        for profile in profiles.models:
            if profile.name == name:
                return profile
        served = ", ".join(sorted(profile.name for profile in profiles.models))
        raise invalid("/model", f"no model is called {name!r}; there are {served}")


def _going_back(start: ReindexStart, kept: dict[int, Generation]) -> ReindexParams:
    for name in ("model", "index_type", "index_params"):
        if getattr(start, name) is not None:
            raise invalid(f"/{name}", "cannot be chosen for a generation that is there already")
    assert start.to_generation is not None
    found = kept.get(start.to_generation)
    if found is None:
        there_are = ", ".join(str(number) for number in sorted(kept))
        raise invalid("/to_generation", f"is no generation that is kept; there are {there_are}")
    return ReindexParams(
        model=found.model,
        dim=found.dim,
        index_type=found.index_type,
        index_params=found.index_params,
        reembed=False,
        to_generation=found.number,
        grace_s=start.grace_s,
    )

"""Jobs: one file a kind, all of them listed in `all_jobs`."""

from collections.abc import Awaitable, Callable

from memplane_core.clients.chat import ChatModel
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import ERASE, ERASE_TENANT
from memplane_core.storage.session import Database
from memplane_maintenance.drain import DrainReport
from memplane_maintenance.jobs.batches import Clock, database_clock
from memplane_maintenance.jobs.erase import Erase
from memplane_maintenance.jobs.erase_copies import Copies
from memplane_maintenance.jobs.erase_tenant import EraseTenant
from memplane_maintenance.jobs.job import Job
from memplane_maintenance.jobs.merge import Merge, Profile
from memplane_maintenance.jobs.priorities import Priorities
from memplane_maintenance.jobs.prune import Prune
from memplane_maintenance.jobs.purge import Expire, Purge
from memplane_maintenance.jobs.reconcile import Reconcile
from memplane_maintenance.jobs.reflect import Reflect
from memplane_maintenance.jobs.reindex import Reindex
from memplane_maintenance.jobs.runner import JobRunner, RunReport

__all__ = ["Job", "JobRunner", "RunReport", "all_jobs"]


def all_jobs(
    database: Database,
    index: VectorIndex,
    drain: Callable[[TenantId], Awaitable[DrainReport]],
    *,
    rpc_timeout_s: float = 20.0,
    copies: Copies | None = None,
    clock: Clock = database_clock,
    profile: Profile | None = None,
    chat: ChatModel | None = None,
) -> dict[str, Job]:
    """Every kind of job, by the name that requests use (`contracts.job_runs`).

    After `rpc_timeout_s` a call to the index can no longer take effect. `copies` are what caches keep. By `clock`
    it is told which memories are old enough.
    `profile` tells what is known of a model. `chat` is the installation's language model, if it has one.
    """
    return {
        "reindex": Reindex(database, index, drain),
        "reconcile": Reconcile(database, index, rpc_timeout_s=rpc_timeout_s),
        "reflect": Reflect(database, chat),
        "merge": Merge(database, index, profile=profile),
        "priorities": Priorities(database, clock=clock),
        "prune": Prune(database, clock=clock),
        "expire": Expire(database, clock=clock),
        "purge": Purge(database, clock=clock),
        ERASE: Erase(database, index, copies=copies, rpc_timeout_s=rpc_timeout_s),
        ERASE_TENANT: EraseTenant(database, index, copies=copies, rpc_timeout_s=rpc_timeout_s),
    }

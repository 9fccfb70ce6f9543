"""What is not as it should be, and what to do about it: read from what `/admin/v1/system` tells, as alerts are."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from memplane_core.contracts.system import IndexView, PartView, SystemView

# Beyond these the alerts of the same names fire; a test holds them against the rules.
LAG_S: Final = 120
OUTBOX_S: Final = 600
QUEUE: Final = 90
ACCESS_S: Final = 300
JOB_S: Final = 900

_PAGES: Final[Mapping[str, str]] = {
    "gateway": "service-unreachable",
    "retrieval": "service-unreachable",
    "embedding": "service-unreachable",
    "worker": "worker-silent",
    "beat": "worker-silent",
    "postgres": "postgres-unreachable",
    "index": "milvus-unreachable",
    "broker": "valkey-unreachable",
    "cache": "valkey-unreachable",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be.

    Attributes:
        severity: `problem`: somebody has to act; `notice`: it does no harm yet.
        what: In a sentence.
        todo: What to do next.
        page: The runbook that says more.
    """

    severity: Literal["problem", "notice"]
    what: str
    todo: str
    page: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found, and what it was found from; `system` is null where the gateway did not answer."""

    healthy: bool
    findings: list[Finding]
    system: SystemView | None


def diagnose(system: SystemView) -> Diagnosis:
    """What is wrong with an installation that answers."""
    findings = [
        *(finding for part in system.parts if (finding := _of_part(part)) is not None),
        *([] if system.index is None else _of_index(system.index)),
        *_of_work(system),
        *_of_keys(system),
    ]
    return Diagnosis(
        healthy=all(finding.severity != "problem" for finding in findings), findings=findings, system=system
    )


def no_answer(reason: str, *, parts: Mapping[str, bool]) -> Diagnosis:
    """What can be said where the gateway does not answer.

    Args:
        reason: Why it does not.
        parts: Of the parts on this machine, whether they say that they are ready; empty where none is known.
    """
    findings = [
        Finding(
            severity="problem",
            what=f"the gateway does not answer: {reason}",
            todo="Start it, or look at its log; name another with --url.",
            page=_page("service-unreachable"),
        )
    ]
    findings += [
        Finding(
            severity="problem",
            what=f"{name} on this machine is not ready",
            todo=f"Look at the end of its log: logs/{name}.log in the home.",
            page=_page(_PAGES[name]),
        )
        for name, ready in parts.items()
        if not ready
    ]
    return Diagnosis(healthy=False, findings=findings, system=None)


def _of_part(part: PartView) -> Finding | None:
    if part.status == "ok":
        return None
    away = [name for name, state in part.seen_by.items() if state == "unavailable"]
    what = f"{part.name} is away for {' and '.join(away)}" if away else f"nobody can tell how {part.name} is"
    return Finding(
        severity="problem" if part.status == "unavailable" else "notice",
        what=what,
        todo=part.advice or "",
        page=_page(_PAGES[part.name]),
    )


def _of_index(index: IndexView) -> list[Finding]:
    found: list[Finding] = []
    if index.lag_s > LAG_S:
        behind = f", most of all for the tenant {index.behind[0].tenant_id}" if index.behind else ""
        found.append(
            Finding(
                severity="problem",
                what=f"the index is {index.lag_s:,.0f} s behind{behind}",
                todo="Where Milvus, embedding and workers are well it catches up by itself: look again in a minute.",
                page=_page("index-lag"),
            )
        )
    if index.pending and index.oldest_s > OUTBOX_S:
        found.append(
            Finding(
                severity="notice",
                what=f"{index.pending:,} rows wait in the outbox, the oldest for {index.oldest_s:,.0f} s",
                todo="Usual while a tenant is reindexed. Otherwise look at the workers' logs.",
                page=_page("outbox-stuck"),
            )
        )
    if index.failed:
        found.append(
            Finding(
                severity="notice",
                what=f"{index.failed:,} rows can never be indexed; their memories are found by words alone",
                todo="`index_error` of such a memory says why; another model may take it: `memplane reindex`.",
                page=_page("outbox-stuck"),
            )
        )
    return found


def _of_work(system: SystemView) -> Sequence[Finding]:
    found = [
        Finding(
            severity="problem",
            what=f"{queue.waiting:,} messages wait in the queue {queue.name}",
            todo="Add a worker, or raise MEMPLANE_WORKER__CONCURRENCY.",
            page=_page("worker-silent"),
        )
        for queue in system.queues
        if queue.waiting > QUEUE
    ]
    access_s = max((worker.access_s for worker in system.workers), default=0.0)
    if access_s > ACCESS_S:
        found.append(
            Finding(
                severity="problem",
                what=f"recalls wait for {access_s:,.0f} s to be counted",
                todo="Look at the workers' logs for access_lost and task_postponed.",
                page=_page("worker-silent"),
            )
        )
    for job in system.jobs or ():
        if job.waits_s > JOB_S or job.held_up:
            held = f", and {job.held_up} held up" if job.held_up else ""
            found.append(
                Finding(
                    severity="problem" if job.waits_s > JOB_S else "notice",
                    what=f"{job.runs} {job.kind} job(s) {job.state}{held}, waiting for {job.waits_s:,.0f} s",
                    todo="`memplane jobs list TENANT` says what is in the way.",
                    page=_page("jobs-stuck"),
                )
            )
    return found


def _of_keys(system: SystemView) -> Sequence[Finding]:
    return [
        Finding(
            severity="notice",
            what=f"the key {key.id} of the tenant {key.tenant_id} ends at {key.expires_at:%Y-%m-%d %H:%M} UTC",
            todo="Rotate it, or let it end.",
            page=_page("certificate-or-key-expires"),
        )
        for key in system.expiring_keys or ()
    ]


def _page(slug: str) -> str:
    return f"docs/runbooks/{slug}.md"

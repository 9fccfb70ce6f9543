"""What the doctor makes of what it is told, and that it says the same as the alerts."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from memplane_core.contracts.system import (
    ExpiringKey,
    GenerationsView,
    IndexView,
    JobsView,
    PartState,
    PartView,
    QueueView,
    SystemView,
    TenantLag,
    WorkerView,
)
from memplane_gateway.system_desk import PARTS
from memplane_standalone import doctor
from memplane_standalone.doctor import Diagnosis, diagnose, no_answer

ROOT = Path(__file__).parents[3]
TENANT = UUID(int=7)
KEY = ExpiringKey(tenant_id=TENANT, id="k1", expires_at=datetime(2027, 1, 1, tzinfo=UTC))


def system(
    *,
    away: dict[str, PartState] | None = None,
    lag_s: float = 0.0,
    failed: int = 0,
    waiting: int = 0,
    jobs: list[JobsView] | None = None,
    keys: list[ExpiringKey] | None = None,
) -> SystemView:
    states: dict[str, PartState] = {**dict.fromkeys(PARTS, "ok"), **(away or {})}
    return SystemView(
        status="ok",
        version="1",
        at=datetime(2027, 1, 1, tzinfo=UTC),
        parts=[
            PartView(name=name, status=state, seen_by={"worker": state}, advice=None if state == "ok" else "mend it")
            for name, state in states.items()
        ],
        workers=[WorkerView(id="w", seen_s=1.0, access_s=0.0)],
        queues=[QueueView(name="index", waiting=waiting)],
        index=IndexView(
            lag_s=lag_s,
            pending=0,
            failed=failed,
            oldest_s=lag_s,
            behind=[TenantLag(tenant_id=TENANT, pending=1, oldest_s=lag_s)] if lag_s else [],
        ),
        generations=GenerationsView(active=1),
        jobs=jobs or [],
        expiring_keys=keys or [],
    )


def said(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(finding.severity, finding.page.rsplit("/", 1)[-1]) for finding in diagnosis.findings]


def test_a_healthy_installation_needs_nothing() -> None:
    found = diagnose(system())
    assert (found.healthy, found.findings) == (True, [])


@pytest.mark.parametrize("part", PARTS)
def test_each_part_that_is_away_is_a_problem_with_a_page_of_its_own(part: str) -> None:
    (finding,) = diagnose(system(away={part: "unavailable"})).findings
    assert (finding.severity, finding.todo) == ("problem", "mend it")
    assert part in finding.what
    assert (ROOT / finding.page).is_file()


def test_what_does_no_harm_yet_is_noticed_and_no_reason_to_fail() -> None:
    held = JobsView(kind="merge", state="running", runs=1, held_up=1, waits_s=0.0)
    found = diagnose(system(away={"beat": "unknown"}, failed=3, jobs=[held], keys=[KEY]))
    assert found.healthy
    assert said(found) == [
        ("notice", "worker-silent.md"),
        ("notice", "outbox-stuck.md"),
        ("notice", "jobs-stuck.md"),
        ("notice", "certificate-or-key-expires.md"),
    ]


def test_lag_queues_and_jobs_are_problems_beyond_what_alerts_allow() -> None:
    waits = JobsView(kind="erase", state="queued", runs=1, held_up=0, waits_s=901)
    found = diagnose(system(lag_s=121, waiting=91, jobs=[waits]))
    assert not found.healthy
    assert str(TENANT) in found.findings[0].what
    assert said(found) == [
        ("problem", "index-lag.md"),
        ("problem", "worker-silent.md"),
        ("problem", "jobs-stuck.md"),
    ]
    assert diagnose(system(lag_s=119, waiting=89)).findings == []


def test_without_the_gateway_the_parts_of_this_machine_are_told() -> None:
    found = no_answer("refused", parts={"retrieval": True, "index": False})
    assert [finding.page for finding in found.findings] == [
        "docs/runbooks/service-unreachable.md",
        "docs/runbooks/milvus-unreachable.md",
    ]
    assert not found.healthy


def test_it_draws_the_line_where_the_alerts_do() -> None:
    rules = (ROOT / "helm/memplane/files/alerts/indexing.yaml").read_text()
    for metric, limit in (
        ("memplane_maintenance_index_lag_seconds", doctor.LAG_S),
        ("memplane_maintenance_outbox_oldest_seconds", doctor.OUTBOX_S),
        ("memplane_maintenance_queue_messages", doctor.QUEUE),
        ("memplane_maintenance_access_lag_seconds", doctor.ACCESS_S),
        ("memplane_maintenance_job_wait_seconds", doctor.JOB_S),
    ):
        assert f"({metric}) > {limit}\n" in rules, metric

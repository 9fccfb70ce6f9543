"""Every alert fires on what it is about, stays silent on what is well, and has a page that says what to do."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memplane_core.testing.prometheus import prepare

ROOT = Path(__file__).parents[3]
RULES = sorted((ROOT / "helm/memplane/files/alerts").glob("*.yaml"))
DAY = 86_400
JOB = 'job="j",instance="i"'
SEARCH = 'service="gateway",method="POST",route="/v1/memories/search"'
WRITE = 'service="gateway",method="POST",route="/v1/memories"'

Series = dict[str, str]


class Case(msgspec.Struct, frozen=True):
    """Series a minute apart that an alert fires on, and some that it stays silent on.

    Attributes:
        bad: By series, in promtool's notation.
        good: Likewise.
        minutes: After which both are looked at.
        silent_until: Minutes at which the bad ones have not lasted long enough.
    """

    bad: Series
    good: Series
    minutes: int = 30
    silent_until: int | None = None


def part(service: str, name: str) -> str:
    return f'memplane_part_up{{service="{service}",part="{name}"}}'


def slow(where: str, *, quick: int, all_of_them: int) -> Series:
    """A histogram of which `quick` more a minute are within 0.5 s, and `all_of_them` within 5 s."""
    name = "memplane_http_request_seconds"
    return {
        f'{name}_bucket{{{where},le="0.5"}}': f"0+{quick}x60",
        f'{name}_bucket{{{where},le="5"}}': f"0+{all_of_them}x60",
        f'{name}_bucket{{{where},le="+Inf"}}': f"0+{all_of_them}x60",
        f"{name}_count{{{where}}}": f"0+{all_of_them}x60",
    }


def requests(status: int, a_minute: float, route: str = "/v1/memories") -> Series:
    labels = f'service="gateway",method="POST",route="{route}",status="{status}"'
    return {f"memplane_http_requests_total{{{labels}}}": f"0+{a_minute}x60"}


def stuck(*, closed: str) -> Series:
    return {
        "memplane_maintenance_outbox_pending_rows": "5x60",
        "memplane_maintenance_outbox_oldest_seconds": "600+60x60",
        'memplane_maintenance_drain_rows_total{outcome="indexed"}': closed,
    }


def lost(*, watched: str) -> Series:
    return {
        f'memplane_maintenance_index_collections{{state="lost",{JOB}}}': "1x60",
        f"memplane_maintenance_index_watch_timestamp_seconds{{{JOB}}}": watched,
    }


CERTIFICATE = 'memplane_certificate_expiry_timestamp_seconds{service="worker",setting="postgres.ca_pem_path"}'
QUOTA = 'memplane_tenant_quota_used_ratio{tenant="t",quota="stored_memories"}'
DRIFT = 'memplane_maintenance_index_drift_rows_total{direction="missing"}'
REFUSED = 'memplane_maintenance_drain_rows_total{outcome="refused"}'
FAILED = 'memplane_maintenance_jobs_ended_total{kind="merge",state="failed"}'

CASES = {
    "MemplaneMilvusUnreachable": Case(
        {part("retrieval", "index"): "1 1 0x60"}, {part("retrieval", "index"): "1 0 1x60"}, silent_until=2
    ),
    "MemplanePostgresUnreachable": Case({part("gateway", "postgres"): "0x60"}, {part("gateway", "postgres"): "1x60"}),
    "MemplaneValkeyUnreachable": Case(
        {part("worker", "broker"): "0x60"}, {part("worker", "broker"): "1x60", part("worker", "beat"): "0x60"}
    ),
    "MemplaneServiceUnreachable": Case({part("gateway", "retrieval"): "0x60"}, {part("gateway", "retrieval"): "1x60"}),
    "MemplaneNotMeasured": Case({part("worker", "index"): "1x60"}, {part("gateway", "postgres"): "0x60"}),
    "MemplaneCertificateExpires": Case(
        {CERTIFICATE: f"{13 * DAY}x60"}, {CERTIFICATE: f"{15 * DAY}x60"}, silent_until=5
    ),
    "MemplaneApiKeysExpire": Case(
        {"memplane_maintenance_keys_expiring": "2x200"},
        {"memplane_maintenance_keys_expiring": "0x200"},
        minutes=100,
        silent_until=59,
    ),
    "MemplaneErrorRate": Case(requests(500, 3) | requests(200, 97), requests(503, 1) | requests(200, 99)),
    "MemplaneSearchLatency": Case(
        slow(SEARCH, quick=90, all_of_them=100), slow(SEARCH, quick=99, all_of_them=100), silent_until=9
    ),
    "MemplaneWriteLatency": Case(
        slow(WRITE, quick=50, all_of_them=100), slow(WRITE, quick=99, all_of_them=100), silent_until=9
    ),
    "MemplaneRatesNotEnforced": Case(
        {"memplane_gateway_rates_not_enforced_total": "0+5x60"}, {"memplane_gateway_rates_not_enforced_total": "7x60"}
    ),
    "MemplaneQuotaNear": Case({QUOTA: "0.95x60"}, {QUOTA: "0.5x60"}, silent_until=9),
    "MemplaneWorkerSilent": Case(
        {"memplane_maintenance_heartbeat_timestamp_seconds": "0+60x5 300x60"},
        {"memplane_maintenance_heartbeat_timestamp_seconds": "0+60x60"},
        silent_until=5,
    ),
    "MemplaneBeatSilent": Case({part("worker", "beat"): "0x60"}, {part("worker", "beat"): "1x60"}, silent_until=1),
    "MemplaneQueueLong": Case(
        {'memplane_maintenance_queue_messages{queue="index"}': "95x60"},
        {'memplane_maintenance_queue_messages{queue="index"}': "5x60"},
    ),
    "MemplaneAccessLag": Case(
        {"memplane_maintenance_access_lag_seconds": "400x60"}, {"memplane_maintenance_access_lag_seconds": "4x60"}
    ),
    "MemplaneIndexLag": Case(
        {"memplane_maintenance_index_lag_seconds": "130x60"},
        {"memplane_maintenance_index_lag_seconds": "30x60"},
        silent_until=4,
    ),
    "MemplaneOutboxStuck": Case(stuck(closed="7x60"), stuck(closed="0+1x60"), minutes=40),
    "MemplaneRowsRefused": Case({REFUSED: "0+10x60"}, {REFUSED: "0+1x60"}),
    "MemplaneIndexDrift": Case({DRIFT: "0+10x60"}, {DRIFT: "0+1x60"}),
    "MemplaneCollectionsLost": Case(lost(watched="0+60x60"), lost(watched="0x60")),
    "MemplaneJobsWait": Case(
        {'memplane_maintenance_job_wait_seconds{kind="erase"}': "1000x60"},
        {'memplane_maintenance_job_wait_seconds{kind="erase"}': "10x60"},
    ),
    "MemplaneJobsFail": Case({FAILED: "0 0 1x60"}, {FAILED: "1x60"}),
}


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    """All rules, as promtool reads them."""
    text = "\n".join(path.read_text() for path in RULES)
    return [
        {"alert": found[1], "runbook": found[2]}
        for found in re.finditer(r"- alert: (\w+)\n.*?runbook: (\S+)\n", text, flags=re.DOTALL)
    ]


def test_the_rules_are_rules() -> None:
    promtool(["check", "rules", *map(str, RULES)])


def test_each_alert_is_tried_here_and_no_other(rules: list[dict[str, Any]]) -> None:
    assert sorted(rule["alert"] for rule in rules) == sorted(CASES)


def test_each_alert_has_a_page_that_names_it_and_says_what_to_do(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        page = (ROOT / rule["runbook"]).read_text()
        assert f"`{rule['alert']}`" in page, rule
        for heading in ("## What it means", "## What to look at", "## What to do"):
            assert heading in page, (rule, heading)


def test_each_fires_on_what_it_is_about_and_is_silent_otherwise(tmp_path: Path) -> None:
    tests: list[dict[str, Any]] = []
    for alert, case in CASES.items():
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0'
        fired = {"expr": firing, "eval_time": f"{case.minutes}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        checks = [fired]
        if case.silent_until is not None:
            checks.append({"expr": firing, "eval_time": f"{case.silent_until}m", "exp_samples": []})
        tests.append(one_test(f"{alert} fires", case.bad, checks))
        silent: dict[str, Any] = {"expr": firing, "eval_time": f"{case.minutes}m", "exp_samples": []}
        tests.append(one_test(f"{alert} is silent", case.good, [silent]))
    file = tmp_path / "tests.yaml"
    file.write_text(
        json.dumps({"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": tests})
    )
    promtool(["test", "rules", str(file)])


def one_test(name: str, series: Series, checks: list[dict[str, Any]]) -> dict[str, Any]:
    inputs = [{"series": its, "values": values} for its, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": inputs, "promql_expr_test": checks}


def promtool(arguments: list[str]) -> None:
    done = subprocess.run([str(prepare()["promtool"]), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

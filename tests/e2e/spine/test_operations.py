"""What operators see of the running platform: dashboards, alerts and traces, by a real Prometheus and a collector."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.e2e.spine.conftest import all_indexed, sentence, until

from memplane_core.testing.collector import TraceCollector
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.prometheus import Prometheus
from memplane_core.testing.stack import Stack
from memplane_standalone.doctor import Diagnosis

FILES = Path(__file__).parents[3] / "helm/memplane/files"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
RULES = sorted((FILES / "alerts").glob("*.yaml"))
PAGES = (Path(__file__).parents[3] / "docs/runbooks").glob("*.md")
OPERATIONS = Path(__file__).parents[3] / "docs/operations.md"
NO_MILVUS = "docs/runbooks/milvus-unreachable.md"
INDEX_LAGS = "docs/runbooks/index-lag.md"
NOT_HERE = {"memplane_certificate_expiry_timestamp_seconds"}  # no setting of the tests names a certificate
SUFFIXES = ("_bucket", "_count", "_sum", "_total")
METRIC = re.compile(r"\b(?:memplane|process)_\w+")


class Query(msgspec.Struct, frozen=True):
    """A query of a panel, as Grafana sends it."""

    dashboard: str
    panel: str
    expr: str

    @property
    def metrics(self) -> set[str]:
        """The metrics that it reads."""
        return set(METRIC.findall(self.expr))


def queries() -> Iterator[Query]:
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"].replace("$__rate_interval", "1m").replace("$tenant", ".*")
                assert "$" not in expr, (path.name, panel["title"])
                yield Query(path.stem, panel["title"], expr)


@pytest.fixture(scope="module")
def prometheus(stack: Stack) -> Generator[Prometheus]:
    """Scrapes every process of the stack once a second, and looks at the rules as often."""
    processes = {"embedding": stack.embedding, "worker": stack.worker, "beat": stack.beat}
    processes |= {"retrieval": stack.retrievals[0], "gateway": stack.gateways[0]}
    targets = {name: process.metrics_port for name, process in processes.items()}
    with Prometheus(targets, rules=RULES) as started:
        yield started


def family(metric: str) -> str:
    """The name under which a metric is described, whichever of its series it is."""
    return next((metric.removesuffix(suffix) for suffix in SUFFIXES if metric.endswith(suffix)), metric)


def alert(prometheus: Prometheus, name: str) -> str:
    """`inactive`, `pending` where its expression is true, or `firing`."""
    (found,) = [rule for rule in prometheus.rules() if rule["name"] == name]
    assert found["health"] in ("ok", "unknown"), found
    return found["state"]


def system_parts(stack: Stack) -> dict[str, str]:
    with stack.admin() as admin:
        return {part["name"]: part["status"] for part in admin.get("/admin/v1/system").json()["parts"]}


def console_parts(stack: Stack) -> dict[str, str]:
    """What the console's page about the system tells an admin."""
    url = stack.gateways[0].url
    with httpx2.Client(base_url=url, trust_env=False, follow_redirects=True, timeout=30) as browser:
        stamp = re.findall(r'name="stamp" value="(\w+)"', browser.get("/console/sign-in").text)[0]
        browser.post("/console/sign-in", data={"stamp": stamp, "key": stack.admin_key}).raise_for_status()
        page = browser.get("/console/system").raise_for_status().text
    return dict(re.findall(r'<th scope="row">(\w+)</th><td>\s*<span class="badge \w*">(\w+)</span>', page))


def doctor(stack: Stack) -> tuple[int, set[str]]:
    """The exit code of `memplane doctor`, and the pages that it points at."""
    command = [sys.executable, "-m", "memplane_standalone", "doctor", "--url", stack.gateways[0].url, "--json"]
    env = {**os.environ, "MEMPLANE_ADMIN_KEY": stack.admin_key}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    (found,) = msgspec.json.decode(done.stdout, type=list[Diagnosis])
    return done.returncode, {finding.page for finding in found.findings if finding.severity == "problem"}


def test_each_query_of_each_dashboard_runs_on_metrics_that_there_are(stack: Stack, prometheus: Prometheus) -> None:
    with stack.client(stack.make_tenant("dashboards")) as client:
        for n in range(5):
            client.post("/v1/memories", json={"content": sentence(n)}).raise_for_status()
        until(lambda: all_indexed(client), within_s=60, what="all are indexed")
        client.post("/v1/memories/search", json={"query": sentence(1)}).raise_for_status()
        client.post("/v1/memories/search", json={"query": ""})
        job = client.post("/v1/jobs", json={"kind": "priorities"}).raise_for_status().json()["id"]
        until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "done", within_s=60, what="a job has run")
    searched = 'memplane_http_requests_total{service="gateway",route="/v1/memories/search",status="422"}'
    for last in (searched, "memplane_maintenance_job_seconds_count"):  # a rate needs two scrapes
        prometheus.wait(f"count_over_time({last}[1m]) >= 2", within_s=20)
    described, there = prometheus.described(), prometheus.metadata()
    # The page that lists them names each, and no other.
    listed = {family(name) for name in re.findall(r"\| `(memplane_\w+)` \|", OPERATIONS.read_text())}
    assert {family(name) for name in described if name.startswith("memplane_")} | NOT_HERE == listed
    found = list(queries())
    assert {query.dashboard for query in found} == {"overview", "tenant", "retrieval", "indexing", "maintenance"}
    silent: list[Query] = []
    for query in found:
        missing = {metric for metric in query.metrics if family(metric) not in described}
        assert not missing or query.panel == "First certificate to end", (query, missing)
        if not prometheus.query(query.expr) and query.metrics <= there:
            silent.append(query)
    # What nothing has happened of yet, or has not within the minute.
    may_be = {"Milvus calls that fail", "Refused for a quota or a scope", "Collections at odds", "Index lag by tenant"}
    assert [query for query in silent if query.panel not in may_be] == []


def test_each_panel_that_a_runbook_names_is_there() -> None:
    panels = {query.panel for query in queries()}
    for page in PAGES:
        for name in re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", page.read_text()):
            assert name in panels | {"Overview", "Tenant", "Retrieval", "Indexing", "Maintenance"}, (page.name, name)


def test_without_milvus_its_alert_comes_and_goes_as_do_the_systems_parts(stack: Stack, prometheus: Prometheus) -> None:
    with stack.client(stack.make_tenant("drill")) as client:
        client.post("/v1/memories", json={"content": sentence(0)}).raise_for_status()
        until(lambda: all_indexed(client), within_s=60, what="the collection is made")
        assert alert(prometheus, "MemplaneMilvusUnreachable") == "inactive"
        before = doctor(stack)[1]  # other tests may have left something to complain of
        stack.milvus.stop()
        try:
            until(
                lambda: alert(prometheus, "MemplaneMilvusUnreachable") in ("pending", "firing"),
                within_s=30,
                what="the alert's expression is true",
            )
            services = {its["metric"]["service"] for its in prometheus.query('memplane_part_up{part="index"} == 0')}
            until(lambda: system_parts(stack)["index"] == "unavailable", within_s=10, what="the system says so")
            assert console_parts(stack)["index"] == "unavailable"
            status, pages = doctor(stack)
            assert status == 1
            assert pages - before - {INDEX_LAGS} == {NO_MILVUS}  # that the index lags besides is no wonder
            ready = httpx2.get(f"{stack.retrievals[0].url}/readyz", trust_env=False, timeout=30)
            assert (ready.status_code, ready.json()["status"], ready.json()["parts"]["index"]) == (
                200,
                "degraded",
                "unavailable",
            )
            request_ids: list[str] = []

            def searched_without() -> bool:
                answer = client.post("/v1/memories/search", json={"query": "another question"})
                request_ids.append(answer.headers["x-request-id"])
                return answer.json()["degraded"] == ["index"]

            until(searched_without, within_s=20, what="searches do without")
        finally:
            stack.milvus.start()
        until(lambda: alert(prometheus, "MemplaneMilvusUnreachable") == "inactive", within_s=60, what="it clears")
        until(lambda: system_parts(stack)["index"] == "ok", within_s=10, what="the system says so")
        assert console_parts(stack)["index"] == "ok"
        until(lambda: doctor(stack)[1] - {INDEX_LAGS} <= before, within_s=30, what="the doctor complains no more")
    assert services <= {"retrieval", "worker"}
    assert services
    # The id of the answer is that of the lines about it, whichever service wrote them.
    lines = [json.loads(line) for line in stack.retrievals[0].log().splitlines() if "searched without" in line]
    assert request_ids[-1] in {line["trace_id"] for line in lines}
    assert all({"tenant", "request_id", "service"} <= line.keys() for line in lines)


def beginnings(collector: TraceCollector, trace: str) -> list[str]:
    """The spans of a trace whose parent has not come."""
    spans = collector.of(trace)
    ids = {span.id for span in spans}
    return [span.name for span in spans if span.parent not in ids]


def test_a_trace_goes_through_all_services_to_the_worker_and_carries_no_content(
    stack: Stack, collector: TraceCollector
) -> None:
    secret, first = "a heron waits at the weir", "POST /v1/memories"
    with ServiceProcess("memplane_gateway", env=stack.env | {"MEMPLANE_TRACE__SAMPLE_RATIO": "1"}) as door:
        tenant = stack.make_tenant("traced")
        with stack.client(tenant) as client:
            client.base_url = door.url
            written = client.post("/v1/memories", json={"content": secret}).raise_for_status()
            trace = written.headers["x-request-id"]
            chosen = client.post("/v1/memories", json={"content": ""}, headers={"X-Request-Id": "chosen-by-caller"})
            refused = chosen.json()
        wanted = {"memplane-gateway", "memplane-retrieval", "memplane-embedding", "memplane-worker"}
        until(
            lambda: {it.service for it in collector.of(trace)} == wanted and beginnings(collector, trace) == [first],
            within_s=30,
            what="all spans have come, and each that is the parent of another",
        )
    spans = collector.of(trace)
    names = {span.name for span in spans}
    assert {first, "POST retrieval", "POST embedding", "memplane.index.drain"} <= names
    assert any(name.startswith("postgres ") for name in names)
    assert secret not in "".join(span.name + span.values for span in collector.spans)
    assert refused["request_id"] == chosen.headers["x-request-id"] == "chosen-by-caller"
    assert re.fullmatch(r"[0-9a-f]{32}", refused["trace_id"])


def test_what_a_caller_says_of_a_trace_is_taken_over_but_not_whether_to_sample_it(
    stack: Stack, collector: TraceCollector
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sampled: dict[str, Any] = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    with stack.client(stack.make_tenant("not sampled")) as client:
        answer = client.get("/v1/whoami", headers=sampled)
        broken = client.get("/v1/whoami", headers={"traceparent": "00-not-a-trace-01"})
    assert answer.headers["x-request-id"] == trace
    assert re.fullmatch(r"[0-9a-f]{32}", broken.headers["x-request-id"])
    assert collector.of(trace) == []

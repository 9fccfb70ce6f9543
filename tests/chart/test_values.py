"""What values do, and which are refused."""

from pathlib import Path

import pytest

from .conftest import CHART, Object, named, of_kind, refusal, render

CI = CHART / "ci"
DEV, MINIMAL, EVERYTHING = (CI / f"{name}-values.yaml" for name in ("dev", "minimal", "everything"))

WRONG = [
    "nonsense=1",
    'gateway.replica="2"',
    'gateway.replicas="two"',
    "gateway.replicas=-1",
    'gateway.autoscaling.type="keda"',
    'gateway.service.type="Cluster"',
    'gateway.pod.nodeselector={"a": "b"}',
    'image.tag="latest"',
    'image.digests={"gateway": "sha256:12"}',
    'image.digests={"gatewayy": "sha256:1111111111111111111111111111111111111111111111111111111111111111"}',
    'image.pullPolicy="Sometimes"',
    'postgres.sslMode="verify"',
    "postgres.poolMax=0",
    'postgres.url="postgresql://a:b@c/d"',
    'redis.password="x"',
    'milvus.uri="milvus:19530"',
    'milvus.uri="http://user:password@milvus:19530"',
    'milvus.indexType="DISKANN"',
    'settings={"MEMPLANE_POSTGRES__URL": "postgresql://a:b@c/d"}',
    'settings={"MEMPLANE_GATEWAY__ADMIN_KEY": "x"}',
    'settings={"memplane_log__level": "debug"}',
    'settings={"MEMPLANE_WORKER__SLICE_S": 5}',
    'workers={"index": {"queues": ["indices"]}}',
    'workers.index.autoscaling.type="both"',
    "workers.index.terminationGracePeriodSeconds=60",
    "security.runAsUser=0",
    "security.privileged=true",
    'public.paths=["/admin"]',
    'public.paths=["/"]',
    'public.paths=["v1"]',
    'ingress.hosts=["https://a.example"]',
    "metrics.port=8080",
    "metrics.port=80",
    'dev.postgres.size="5"',
    'bootstrap.tenants=[{"name": "a"}]',
    'bootstrap.tenants=[{"name": "a", "existingSecret": "b", "scopes": ["admin"]}]',
    'bootstrap.tenants=[{"name": "a", "existingSecret": "b", "apiKey": "mp_live_x"}]',
    "beat.replicas=0",
    'embedding.workers="all"',
    "httpRoute.parentRefs=[{}]",
]

GUARDS: list[tuple[Path | None, tuple[str, ...], str]] = [
    (None, (), "auth.existingSecret is missing"),
    (MINIMAL, ('postgres.existingSecret=""',), "postgres.existingSecret is missing"),
    (MINIMAL, ('redis.existingSecret=""',), "redis.existingSecret is missing"),
    (MINIMAL, ('milvus.uri=""',), "milvus.uri is missing"),
    (None, ("dev.enabled=true",), "dev.enabled needs dev.seed"),
    (None, ("dev.enabled=true", 'dev.seed="short"'), "at least 16 characters"),
    (DEV, ('postgres.existingSecret="mine"',), "postgres.existingSecret is given too"),
    (DEV, ('milvus.uri="http://m:1"',), "milvus.uri is given too"),
    (MINIMAL, ('milvus.tls.existingSecret="ca"',), "does not begin with https"),
    (MINIMAL, ("postgres.tls.client=true",), "postgres.tls.client needs postgres.tls.existingSecret"),
    (MINIMAL, ('postgres.tls.existingSecret="ca"', 'postgres.sslMode="require"'), "verify-ca or verify-full alone"),
    (MINIMAL, ('llm.url="https://llm.example/v1"',), "llm.url and llm.model belong together"),
    (MINIMAL, ("ingress.enabled=true",), "ingress.enabled needs ingress.hosts"),
    (MINIMAL, ("consoleIngress.enabled=true",), "consoleIngress.enabled needs consoleIngress.hosts"),
    (MINIMAL, ("httpRoute.enabled=true",), "httpRoute.enabled needs httpRoute.parentRefs"),
    (MINIMAL, ("workers.maintenance=null",), "no class in workers takes the queue maintenance"),
    (MINIMAL, ('workers.index.autoscaling.type="keda"',), "needs prometheusAddress, or triggers of your own"),
    (
        MINIMAL,
        ('workers.maintenance.autoscaling={"type": "keda", "keda": {"prometheusAddress": "http://p"}}',),
        "say nothing of it",
    ),
    (MINIMAL, ("gateway.autoscaling.minReplicas=9",), "minReplicas is more than maxReplicas"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_that_cannot_be_meant_is_refused_by_the_schema(wrong: str) -> None:
    said = refusal(wrong, values=DEV)

    assert "don't meet the specifications of the schema" in said


@pytest.mark.parametrize(("values", "sets", "sentence"), GUARDS, ids=[guard[2] for guard in GUARDS])
def test_what_could_not_work_together_is_refused_with_a_sentence(
    values: Path | None, sets: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(*sets, values=values)


def test_as_a_subchart_it_takes_what_a_parent_hands_down() -> None:
    objects = render(DEV, sets=("global.anything.of.the.parent=1", "enabled=true"))

    assert named(objects, "Deployment", "rel-memplane-gateway")


def test_what_is_scaled_by_something_has_no_number_of_its_own() -> None:
    objects = (*render(CI / "hpa-values.yaml"), *render(CI / "keda-values.yaml", release="keda"))
    scaled = {
        found["spec"]["scaleTargetRef"]["name"] for found in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }

    assert len(scaled) == 6
    for found in of_kind(objects, "Deployment"):
        assert ("replicas" in found["spec"]) == (found["metadata"]["name"] not in scaled), found["metadata"]["name"]


def test_no_deployment_is_scaled_by_two() -> None:
    objects = render(EVERYTHING)
    targets = [
        found["spec"]["scaleTargetRef"]["name"] for found in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    ]

    assert len(targets) == len(set(targets)) == 2


@pytest.mark.parametrize("name", ["ingress", "gateway", "everything"])
def test_admin_and_console_are_public_only_where_that_was_asked_for(name: str) -> None:
    objects = render(CI / f"{name}-values.yaml")
    paths: set[str] = set()
    for found in of_kind(objects, "Ingress"):
        if not found["metadata"]["name"].endswith("-console"):
            paths |= {path["path"] for rule in found["spec"]["rules"] for path in rule["http"]["paths"]}
    for found in of_kind(objects, "HTTPRoute"):
        paths |= {match["path"]["value"] for rule in found["spec"]["rules"] for match in rule["matches"]}

    assert "/v1" in paths
    assert ({"/admin", "/console"} <= paths) == (name == "gateway")
    assert bool({"/admin", "/console"} & paths) == (name == "gateway")


def test_a_node_can_be_drained_whatever_the_number_of_pods(objects: tuple[Object, ...]) -> None:
    budgets = of_kind(objects, "PodDisruptionBudget")

    assert len(budgets) >= 5
    for found in budgets:
        assert found["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in found["spec"]


def test_all_is_denied_first_and_each_part_reaches_what_it_needs() -> None:
    policies = {
        found["metadata"]["name"].removeprefix("rel-memplane-"): found["spec"]
        for found in of_kind(render(DEV), "NetworkPolicy")
    }

    deny = policies["default-deny"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert set(deny["podSelector"]["matchLabels"]) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    assert "ingress" not in deny
    assert [port["port"] for rule in deny["egress"] for port in rule["ports"]] == [53, 53]
    assert {
        "gateway-to-retrieval",
        "gateway-to-embedding",
        "retrieval-to-embedding",
        "to-retrieval",
        "to-embedding",
        "users-to-postgres",
        "users-to-redis",
        "users-to-milvus",
        "to-postgres",
        "to-valkey",
        "to-milvus",
    } <= set(policies)
    reaching_milvus = policies["to-milvus"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0]["values"]
    assert set(reaching_milvus) == {"retrieval", "worker-index", "worker-maintenance"}


def test_first_tenants_are_made_from_secrets_that_are_there() -> None:
    job = named(render(EVERYTHING), "Job", "mp-bootstrap")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}

    assert '"name":"acme"' in env["MEMPLANE_BOOTSTRAP__TENANTS"]
    assert '"key_file":"/run/memplane/tenants/1"' in env["MEMPLANE_BOOTSTRAP__TENANTS"]
    assert "globex-key" in repr(job["spec"]["template"]["spec"]["volumes"])
    assert "api-key" not in env["MEMPLANE_BOOTSTRAP__TENANTS"]


def test_more_of_everything_reaches_the_pods() -> None:
    pod = named(render(EVERYTHING), "Deployment", "mp-gateway")["spec"]["template"]
    (container,) = pod["spec"]["containers"]

    assert container["image"].startswith("registry.example/mirror/memplane-gateway@sha256:1111")
    assert [name["name"] for name in pod["spec"]["imagePullSecrets"]] == ["pull", "pull-too"]
    assert {"TZ", "SSL_CERT_DIR", "MEMPLANE_GATEWAY__CORS_ORIGINS"} <= {
        variable["name"] for variable in container["env"]
    }
    assert pod["metadata"]["annotations"]["example.com/a"] == "b"
    assert pod["metadata"]["annotations"]["example.com/c"] == "d"
    assert pod["spec"]["priorityClassName"] == "high"
    assert named(render(EVERYTHING), "ConfigMap", "rel-more")["data"] == {"a": "b"}


def test_dashboards_and_alerts_are_those_of_the_files() -> None:
    objects = render(EVERYTHING)
    boards = [
        found for found in of_kind(objects, "ConfigMap") if "grafana_dashboard" in found["metadata"].get("labels", {})
    ]

    assert len(boards) == len(list((CHART / "files" / "dashboards").glob("*.json")))
    assert len(of_kind(objects, "PrometheusRule")) == min(1, len(list((CHART / "files" / "alerts").glob("*.y*ml"))))

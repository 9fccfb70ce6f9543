"""What holds of every object, whatever the values."""

import base64
import re
from typing import Any

import pytest

from .conftest import CHART, MATRIX, Object, containers, named, of_kind, pods, render

DEV = CHART / "ci" / "dev-values.yaml"
MINIMAL = CHART / "ci" / "minimal-values.yaml"
EVERYTHING = CHART / "ci" / "everything-values.yaml"


class TestSecurity:
    def test_every_pod_is_restricted_hooks_and_tests_included(self, objects: tuple[Object, ...]) -> None:
        seen = list(pods(objects))
        assert len(seen) >= 7
        for name, pod in seen:
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False, name
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            assert spec["securityContext"]["runAsUser"] == 10001, name
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
            for key in ("hostNetwork", "hostPID", "hostIPC"):
                assert key not in spec, name
            assert not any("hostPath" in volume for volume in spec["volumes"]), name
            for container in containers(pod):
                context = container["securityContext"]
                assert context["allowPrivilegeEscalation"] is False, name
                assert context["readOnlyRootFilesystem"] is True, name
                assert context["runAsNonRoot"] is True, name
                assert context["capabilities"] == {"drop": ["ALL"]}, name

    def test_the_numbers_of_users_can_be_left_to_the_cluster(self) -> None:
        objects = render(DEV, sets=("security.runAsUser=null", "security.runAsGroup=null", "security.fsGroup=null"))
        for name, pod in pods(objects):
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["spec"]["securityContext"]), name
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name

    def test_secrets_are_files_of_secrets_and_nowhere_else(self) -> None:
        objects = render(DEV)
        secret = named(objects, "Secret", "rel-memplane-dev")["data"]
        values = [base64.b64decode(value).decode() for value in secret.values()]
        assert len(values) == 12
        for found in objects:
            if found["kind"] != "Secret":
                text = repr(found)
                assert not any(value in text for value in values), found["metadata"]["name"]
                assert "only-for-tests-0123456789" not in text, found["metadata"]["name"]

    def test_no_variable_is_taken_from_a_secret(self, objects: tuple[Object, ...]) -> None:
        for name, pod in pods(objects):
            for container in containers(pod):
                for variable in container.get("env", []):
                    assert "secretKeyRef" not in repr(variable), f"{name} {variable['name']}"

    def test_the_owner_of_the_schema_is_known_to_migrations_alone_and_the_peppers_to_the_gateway(
        self, objects: tuple[Object, ...]
    ) -> None:
        for name, pod in pods(objects):
            volumes = repr(pod["spec"]["volumes"])
            assert ("owner-url" in volumes) == name.endswith("-migrate"), name
            assert ("key-pepper" in volumes) == name.endswith(("-gateway", "-bootstrap", "-test")), name


class TestPods:
    def test_liveness_asks_about_the_process_alone(self, objects: tuple[Object, ...]) -> None:
        served = of_kind(objects, "Deployment", "StatefulSet")
        assert len(served) >= 5
        for found in served:
            for container in found["spec"]["template"]["spec"]["containers"]:
                name = found["metadata"]["name"]
                assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", name
                assert container["startupProbe"]["httpGet"]["path"] == "/healthz", name
                assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", name
                assert container["livenessProbe"]["periodSeconds"] >= 10, name
                assert "exec" not in container["livenessProbe"], name

    def test_every_container_says_what_it_needs_and_is_bounded_in_memory(self, objects: tuple[Object, ...]) -> None:
        for name, pod in pods(objects):
            for container in containers(pod):
                assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
                assert "memory" in container["resources"]["limits"], name

    def test_no_image_is_latest_or_without_a_tag(self, objects: tuple[Object, ...]) -> None:
        for name, pod in pods(objects):
            for container in containers(pod):
                assert re.search(r"(:[0-9A-Za-z._-]+|@sha256:[0-9a-f]{64})$", container["image"]), name
                assert not container["image"].endswith(":latest"), name

    def test_workers_have_longer_to_end_than_any_task_takes(self, objects: tuple[Object, ...]) -> None:
        workers = [found for found in of_kind(objects, "Deployment") if "-worker-" in found["metadata"]["name"]]
        assert workers
        for worker in workers:
            assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 180

    @pytest.mark.parametrize(("kube", "action"), [("1.28.0", "exec"), ("1.29.4", "exec"), ("1.30.0", "sleep")])
    def test_servers_wait_for_the_rotation_before_they_end(self, kube: str, action: str) -> None:
        for part in ("gateway", "retrieval", "embedding"):
            pod = named(render(MINIMAL, kube=kube), "Deployment", f"rel-memplane-{part}")["spec"]["template"]
            assert list(pod["spec"]["containers"][0]["lifecycle"]["preStop"]) == [action]

    def test_a_changed_setting_starts_pods_anew_and_the_same_values_do_not(self) -> None:
        def sums(*sets: str) -> dict[str, Any]:
            found = of_kind(render(MINIMAL, sets=sets), "Deployment")
            return {
                one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
                for one in found
            }

        before, same, after = sums(), sums("gateway.replicas=3"), sums("settings.MEMPLANE_LOG__LEVEL=debug")
        assert before == same
        assert all(before[name] != after[name] for name in before)


class TestUpgrades:
    def test_selectors_name_no_version_and_stay_as_they_are(self, objects: tuple[Object, ...]) -> None:
        for found in of_kind(objects, "Deployment", "StatefulSet"):
            selector = found["spec"]["selector"]["matchLabels"]
            assert set(selector) == {
                "app.kubernetes.io/name",
                "app.kubernetes.io/instance",
                "app.kubernetes.io/component",
            }
            labels = found["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items()

    def test_volumes_of_the_trial_carry_nothing_that_a_later_version_would_change(self) -> None:
        for found in of_kind(render(DEV, sets=("commonLabels.team=a",)), "StatefulSet"):
            (claim,) = found["spec"]["volumeClaimTemplates"]
            assert set(claim["metadata"]["labels"]) == set(found["spec"]["selector"]["matchLabels"])

    @pytest.mark.parametrize("values", MATRIX, ids=lambda path: path.name)
    def test_rendering_twice_gives_the_same(self, values: Any) -> None:
        assert render(values) == render.__wrapped__(values)

    def test_the_migration_needs_nothing_that_is_made_after_it(self) -> None:
        objects = render(EVERYTHING)
        hook = named(objects, "Job", "mp-migrate")
        assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        pod = repr(hook["spec"]["template"])
        made = {
            found["metadata"]["name"] for found in objects if found["kind"] in ("ServiceAccount", "Secret", "ConfigMap")
        }
        assert made
        assert not any(f"'{name}'" in pod for name in made)
        assert hook["spec"]["template"]["spec"]["serviceAccountName"] == "migrator"

    def test_a_trial_migrates_at_upgrades_alone_for_its_postgres_makes_the_first_schema(self) -> None:
        assert (
            named(render(DEV), "Job", "rel-memplane-migrate")["metadata"]["annotations"]["helm.sh/hook"]
            == "pre-upgrade"
        )

    def test_passwords_of_a_trial_hang_on_its_seed_and_release_alone(self) -> None:
        def data(*sets: str, release: str = "rel") -> Any:
            objects = render(DEV, sets=sets, release=release)
            return next(found["data"]["admin-key"] for found in objects if found["kind"] == "Secret")

        assert data() == data("gateway.replicas=5", "settings.MEMPLANE_LOG__LEVEL=debug")
        assert data() != data("dev.seed=another-seed-for-tests")
        assert data() != data(release="other")

#!/usr/bin/env bash
# Installs the chart's trial mode in a restricted namespace of any cluster and holds it to what docs/kubernetes.md promises.
# Each step prints PASS or FAIL and its seconds; the exit code is the number of failures, 1 for what ends it early.
#
# Needs kubectl, helm, python3 and curl, KUBECONFIG, a storage class, and images that the nodes can have:
#   IMAGE_REGISTRY, IMAGE_REPOSITORY (memplane), IMAGE_TAG (the chart's)     where they are
#   NAMESPACE (memplane-verify), RELEASE (mp), KEEP=yes                      what to install, and whether to leave it
#   TIMEOUT (600)                                                            seconds that an install may take
set -uo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
CHART=${CHART:-$HERE/../../../helm/memplane}
NAMESPACE=${NAMESPACE:-memplane-verify}
RELEASE=${RELEASE:-mp}
TIMEOUT=${TIMEOUT:-600}
FULL=$RELEASE-memplane
PORT=${PORT:-18080}
WORK=$(mktemp -d)
SEED=${SEED:-verify-$NAMESPACE-$RELEASE-0123456789}
failures=0
began=0
forward=""

k() { kubectl --namespace "$NAMESPACE" "$@"; }

image_flags() {
    printf -- '--set image.repository=%s ' "${IMAGE_REPOSITORY:-memplane}"
    [ -z "${IMAGE_REGISTRY:-}" ] || printf -- '--set image.registry=%s ' "$IMAGE_REGISTRY"
    [ -z "${IMAGE_TAG:-}" ] || printf -- '--set image.tag=%s ' "$IMAGE_TAG"
}

# shellcheck disable=SC2046 # the flags are words
release() { # release install|upgrade FLAGS...
    local verb=$1
    shift
    helm "$verb" "$RELEASE" "$CHART" --namespace "$NAMESPACE" --set dev.enabled=true --set dev.seed="$SEED" \
        $(image_flags) --set gateway.service.port=8080 "$@"
}

step() {
    name=$1
    began=$(date +%s)
    echo "---- $name"
}
pass() { echo "PASS $name ($(($(date +%s) - began)) s)${1:+: $1}"; }
fail() {
    echo "FAIL $name ($(($(date +%s) - began)) s)${1:+: $1}"
    failures=$((failures + 1))
}
verdict() { if [ "$1" -eq 0 ]; then pass "${2:-}"; else fail "${2:-}"; fi; }

stop_forward() {
    [ -z "$forward" ] || kill "$forward" 2> /dev/null
    forward=""
}

# shellcheck disable=SC2317,SC2329 # a trap calls it
cleanup() {
    stop_forward
    if [ "${KEEP:-no}" != yes ]; then
        helm uninstall "$RELEASE" --namespace "$NAMESPACE" > /dev/null 2>&1
        kubectl delete namespace "$NAMESPACE" --wait=false > /dev/null 2>&1
    fi
    rm -rf "$WORK"
}
trap cleanup EXIT

wait_ready() {
    local what
    for what in $(k get deployment,statefulset -l "app.kubernetes.io/instance=$RELEASE" -o name); do
        k rollout status "$what" --timeout="${TIMEOUT}s" > /dev/null || return 1
    done
}

# A pod of the gateway's image runs the load from inside, so that what is measured is the Service and not a port-forward.
load_pod() { # load_pod NAME SECONDS: prints nothing; its log ends with "requests=N failed=M"
    k delete pod "$1" --ignore-not-found > /dev/null
    k create configmap "$1" --from-file=load.py="$HERE/load.py" --dry-run=client -o yaml | k apply -f - > /dev/null
    sed -e "s|@NAME@|$1|g" -e "s|@SECONDS@|$2|g" -e "s|@FULL@|$FULL|g" -e "s|@RELEASE@|$RELEASE|g" \
        -e "s|@IMAGE@|$(k get deployment "$FULL-gateway" -o jsonpath='{.spec.template.spec.containers[0].image}')|g" \
        "$HERE/load-pod.yaml" | k apply -f - > /dev/null
    k wait --for=condition=Ready "pod/$1" --timeout=60s > /dev/null
}
load_result() { # waits for its end and prints the last line
    k wait --for=jsonpath='{.status.phase}'=Succeeded "pod/$1" --timeout="${TIMEOUT}s" > /dev/null 2>&1
    k logs "$1" | tail -n 1
}
no_failures() { # no_failures NAME
    local line
    line=$(load_result "$1")
    case $line in
        *"failed=0 lost=0") pass "$line" ;;
        *) fail "$line" ;;
    esac
}

step "a restricted namespace"
kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - > /dev/null &&
    kubectl label --overwrite namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted \
        pod-security.kubernetes.io/enforce-version=latest > /dev/null
verdict $? || exit 1

step "install"
if release install --wait --timeout "${TIMEOUT}s" > "$WORK/install.log" 2>&1; then pass; else
    fail "$(tail -n 5 "$WORK/install.log")"
    k get pods
    exit 1
fi

step "all pods get ready"
wait_ready
verdict $?

step "helm test: two tenants write and recall, neither sees the other's"
helm test "$RELEASE" --namespace "$NAMESPACE" --logs --timeout "${TIMEOUT}s" > "$WORK/test.log" 2>&1
verdict $? "$(grep -c PASS "$WORK/test.log") checks"

step "through the Service from outside"
k port-forward "service/$FULL-gateway" "$PORT:8080" > /dev/null 2>&1 &
forward=$!
for _ in $(seq 50); do
    if curl -sf "http://127.0.0.1:$PORT/healthz" > /dev/null; then break; fi
    sleep 0.2
done
k get secret "$FULL-dev" -o jsonpath='{.data.admin-key}' | base64 -d > "$WORK/MEMPLANE_GATEWAY__ADMIN_KEY"
MEMPLANE_SECRETS_DIR=$WORK MEMPLANE_TEST_URL=http://127.0.0.1:$PORT python3 "$CHART/files/recall.py" > "$WORK/recall.log" 2>&1
verdict $? "$(tail -n 1 "$WORK/recall.log")"
stop_forward

step "load while it is upgraded to another number of pods and another setting"
load_pod load-upgrade 120
release upgrade --wait --timeout "${TIMEOUT}s" --set gateway.replicas=3 --set retrieval.replicas=3 \
    --set settings.MEMPLANE_LOG__LEVEL=warning > "$WORK/upgrade.log" 2>&1 || fail "$(tail -n 3 "$WORK/upgrade.log")"
no_failures load-upgrade

step "load while each pod of the services is deleted in turn"
load_pod load-delete 180
for part in gateway retrieval embedding worker-index worker-maintenance beat; do
    for pod in $(k get pods -l "app.kubernetes.io/instance=$RELEASE,app.kubernetes.io/component=$part" -o name); do
        k delete "$pod" --wait=true > /dev/null
        k rollout status "deployment/$FULL-$part" --timeout="${TIMEOUT}s" > /dev/null || fail "$pod did not come back"
    done
done
no_failures load-delete

step "stores are killed and come back with all that was acknowledged"
for store in postgres valkey milvus; do
    k delete pod "$FULL-$store-0" --wait=true > /dev/null
    k rollout status "statefulset/$FULL-$store" --timeout="${TIMEOUT}s" > /dev/null || fail "$store did not come back"
done
helm test "$RELEASE" --namespace "$NAMESPACE" --timeout "${TIMEOUT}s" > "$WORK/test2.log" 2>&1
verdict $?

step "a migration that fails changes nothing"
before=$(k get deployment "$FULL-gateway" -o jsonpath='{.metadata.generation}')
if release upgrade --set migrations.backoffLimit=0 --set migrations.deadlineSeconds=60 --set postgres.appRole=nobody_of_that_name \
    --timeout 120s > "$WORK/migration.log" 2>&1; then
    fail "the upgrade was carried out"
elif [ "$before" != "$(k get deployment "$FULL-gateway" -o jsonpath='{.metadata.generation}')" ]; then
    fail "the deployment was changed"
else
    helm rollback "$RELEASE" --namespace "$NAMESPACE" --wait --timeout "${TIMEOUT}s" > /dev/null 2>&1
    verdict $? "rolled back"
fi

step "an image that is not there takes nothing down, and is rolled back"
load_pod load-image 90
release upgrade --set gateway.pod.annotations.verify=image --set "image.digests.retrieval=sha256:$(printf '0%.0s' {1..64})" \
    --set migrations.enabled=false --wait --timeout 45s > "$WORK/image.log" 2>&1 && fail "the upgrade was carried out"
helm rollback "$RELEASE" --namespace "$NAMESPACE" --wait --timeout "${TIMEOUT}s" > "$WORK/rollback.log" 2>&1 ||
    fail "$(tail -n 2 "$WORK/rollback.log")"
no_failures load-image

step "workers that are shut down with tasks in flight lose none"
load_pod load-workers 60
for _ in 1 2 3; do
    k rollout restart "deployment/$FULL-worker-index" "deployment/$FULL-worker-maintenance" > /dev/null
    sleep 10
done
no_failures load-workers

step "what is not allowed is denied"
denied=0
for target in "$FULL-retrieval:8080" "$FULL-embedding:8080" "$FULL-postgres:5432" "$FULL-valkey:6379" "$FULL-milvus:19530"; do
    k delete pod stranger --ignore-not-found > /dev/null
    sed -e "s|@HOST@|${target%:*}|g" -e "s|@PORT@|${target#*:}|g" \
        -e "s|@IMAGE@|$(k get deployment "$FULL-gateway" -o jsonpath='{.spec.template.spec.containers[0].image}')|g" \
        "$HERE/stranger-pod.yaml" | k apply -f - > /dev/null
    if k wait --for=jsonpath='{.status.phase}'=Succeeded pod/stranger --timeout=60s > /dev/null 2>&1; then
        denied=$((denied + 1))
    else
        echo "  $target could be reached"
    fi
done
about="$denied of 5; this needs a network plugin that enforces policies"
if [ "$denied" -eq 5 ]; then pass "$about"; else fail "$about"; fi
k delete pod stranger --ignore-not-found > /dev/null

step "uninstall leaves nothing but the volumes"
for load in upgrade delete image workers; do k delete pod,configmap "load-$load" --ignore-not-found > /dev/null; done
helm uninstall "$RELEASE" --namespace "$NAMESPACE" --wait --timeout "${TIMEOUT}s" > /dev/null 2>&1
left=$(k get all,configmap,secret,networkpolicy,poddisruptionbudget,serviceaccount,job,ingress \
    -l "app.kubernetes.io/instance=$RELEASE" -o name 2> /dev/null)
if [ -z "$left" ]; then pass; else fail "$left"; fi
k delete pvc -l "app.kubernetes.io/instance=$RELEASE" > /dev/null 2>&1

echo
echo "$failures failed"
exit "$failures"

{{/* Every combination that could not work, each with the sentence that says what to do. */}}
{{- define "memplane.guards" -}}
{{- $v := .Values -}}
{{- if $v.dev.enabled -}}
  {{- if lt (len $v.dev.seed) 16 -}}
    {{- fail "dev.enabled needs dev.seed, at least 16 characters: --set dev.seed=$(openssl rand -hex 16). Keep it for upgrades: the trial's data is locked by it." -}}
  {{- end -}}
  {{- range $name, $given := dict "auth.existingSecret" $v.auth.existingSecret "postgres.existingSecret" $v.postgres.existingSecret "redis.existingSecret" $v.redis.existingSecret "milvus.uri" $v.milvus.uri "milvus.existingSecret" $v.milvus.existingSecret -}}
    {{- if $given -}}
      {{- fail (printf "dev.enabled brings its own stores and secrets, and %s is given too: take one of them out." $name) -}}
    {{- end -}}
  {{- end -}}
  {{- $old := lookup "v1" "Secret" .Release.Namespace (printf "%s-dev" (include "memplane.fullname" .)) -}}
  {{- if $old -}}
    {{- $mark := dig "metadata" "annotations" "memplane.io/seed" "" $old -}}
    {{- if and $mark (ne $mark (include "memplane.seedMark" .)) -}}
      {{- fail "dev.seed is another than this release was installed with, and the trial's data is locked by the old one: give the old one, or uninstall and delete the volumes." -}}
    {{- end -}}
  {{- end -}}
  {{- range $store := list "postgres" "valkey" "milvus" -}}
    {{- $name := printf "%s-%s" (include "memplane.fullname" $) $store -}}
    {{- range dig "spec" "volumeClaimTemplates" list (lookup "apps/v1" "StatefulSet" $.Release.Namespace $name | default dict) -}}
      {{- $had := dig "spec" "resources" "requests" "storage" "" . -}}
      {{- $wanted := (get $v.dev $store).size -}}
      {{- if and $had (ne $had $wanted) -}}
        {{- fail (printf "dev.%s.size is %s and the volume was made with %s, which cannot be changed: set it back." $store $wanted $had) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- else -}}
  {{- if not $v.auth.existingSecret -}}
    {{- fail "auth.existingSecret is missing: make a Secret with admin-key, key-pepper and internal-secret (docs/kubernetes.md), or try dev.enabled." -}}
  {{- end -}}
  {{- if not $v.postgres.existingSecret -}}
    {{- fail "postgres.existingSecret is missing: make a Secret with url and owner-url (docs/kubernetes.md), or try dev.enabled." -}}
  {{- end -}}
  {{- if not $v.redis.existingSecret -}}
    {{- fail "redis.existingSecret is missing: make a Secret with broker-url and cache-url (docs/kubernetes.md), or try dev.enabled." -}}
  {{- end -}}
  {{- if not $v.milvus.uri -}}
    {{- fail "milvus.uri is missing, like http://milvus:19530; or try dev.enabled." -}}
  {{- end -}}
  {{- if and $v.milvus.tls.existingSecret (not (hasPrefix "https://" $v.milvus.uri)) -}}
    {{- fail "milvus.tls.existingSecret is given, and milvus.uri does not begin with https." -}}
  {{- end -}}
{{- end -}}
{{- if and (not $v.postgres.tls.existingSecret) $v.postgres.tls.client -}}
  {{- fail "postgres.tls.client needs postgres.tls.existingSecret." -}}
{{- end -}}
{{- if and $v.postgres.tls.existingSecret $v.postgres.sslMode (not (hasPrefix "verify-" $v.postgres.sslMode)) -}}
  {{- fail "postgres.tls.existingSecret is used by the sslMode verify-ca or verify-full alone." -}}
{{- end -}}
{{- if and (not $v.redis.tls.existingSecret) $v.redis.tls.client -}}
  {{- fail "redis.tls.client needs redis.tls.existingSecret." -}}
{{- end -}}
{{- if and (not $v.milvus.tls.existingSecret) $v.milvus.tls.client -}}
  {{- fail "milvus.tls.client needs milvus.tls.existingSecret." -}}
{{- end -}}
{{- if ne (empty $v.llm.url) (empty $v.llm.model) -}}
  {{- fail "llm.url and llm.model belong together: give both or none." -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
  {{- fail "ingress.enabled needs ingress.hosts." -}}
{{- end -}}
{{- if and $v.consoleIngress.enabled (not $v.consoleIngress.hosts) -}}
  {{- fail "consoleIngress.enabled needs consoleIngress.hosts." -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
  {{- fail "httpRoute.enabled needs httpRoute.parentRefs: the Gateways that it hangs on." -}}
{{- end -}}
{{- $taken := list -}}
{{- range $name, $class := $v.workers -}}
  {{- if $class -}}
  {{- $taken = concat $taken $class.queues -}}
  {{- $keda := $class.autoscaling.keda -}}
  {{- if and (eq $class.autoscaling.type "keda") (not $keda.triggers) (not $keda.prometheusAddress) -}}
    {{- fail (printf "workers.%s.autoscaling.keda needs prometheusAddress, or triggers of your own." $name) -}}
  {{- end -}}
  {{- if and (eq $class.autoscaling.type "keda") (not $keda.triggers) (not (has "index" $class.queues)) -}}
    {{- fail (printf "workers.%s takes no task of the queue index, so the rows that the index was not told of say nothing of it: give autoscaling.keda.triggers." $name) -}}
  {{- end -}}
  {{- end -}}
{{- end -}}
{{- range list "index" "maintenance" -}}
  {{- if not (has . $taken) -}}
    {{- fail (printf "no class in workers takes the queue %s: its tasks would wait for ever." .) -}}
  {{- end -}}
{{- end -}}
{{- range $name, $scaling := dict "gateway" $v.gateway.autoscaling "retrieval" $v.retrieval.autoscaling "embedding" $v.embedding.autoscaling -}}
  {{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
    {{- fail (printf "%s.autoscaling.minReplicas is more than maxReplicas." $name) -}}
  {{- end -}}
{{- end -}}
{{- range $name, $class := $v.workers -}}
  {{- if $class -}}
  {{- if gt (int $class.autoscaling.minReplicas) (int $class.autoscaling.maxReplicas) -}}
    {{- fail (printf "workers.%s.autoscaling.minReplicas is more than maxReplicas." $name) -}}
  {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

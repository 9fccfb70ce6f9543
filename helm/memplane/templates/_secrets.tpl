{{/* A password of the trial: always the same for the same seed and release. (dict "root" $ "name" n) */}}
{{- define "memplane.derived" -}}
{{- printf "%s/%s/%s/%s" .root.Values.dev.seed .root.Release.Namespace .root.Release.Name .name | sha256sum -}}
{{- end -}}

{{- define "memplane.seedMark" -}}
{{- include "memplane.derived" (dict "root" . "name" "mark") | trunc 16 -}}
{{- end -}}

{{- define "memplane.devSecret" -}}
{{ include "memplane.fullname" . }}-dev
{{- end -}}

{{- define "memplane.authSecret" -}}
{{- ternary (include "memplane.devSecret" .) .Values.auth.existingSecret .Values.dev.enabled -}}
{{- end -}}

{{- define "memplane.postgresSecret" -}}
{{- ternary (include "memplane.devSecret" .) .Values.postgres.existingSecret .Values.dev.enabled -}}
{{- end -}}

{{- define "memplane.redisSecret" -}}
{{- ternary (include "memplane.devSecret" .) .Values.redis.existingSecret .Values.dev.enabled -}}
{{- end -}}

{{- define "memplane.source" -}}
- secret:
    name: {{ .secret }}
    {{- if .optional }}
    optional: true
    {{- end }}
    items:
      {{- range $key, $path := .items }}
      - {key: {{ $key }}, path: {{ $path }}}
      {{- end }}
{{- end -}}

{{/* The files that a pod's MEMPLANE_SECRETS_DIR holds: (dict "root" $ "needs" (list "auth" "trust" "postgres" ...)). */}}
{{- define "memplane.secretSources" -}}
{{- $root := .root -}}
{{- range .needs }}
{{- if eq . "door" }}
{{ include "memplane.source" (dict "secret" (include "memplane.authSecret" $root) "items" (dict "admin-key" "MEMPLANE_GATEWAY__ADMIN_KEY")) }}
{{ include "memplane.source" (dict "secret" (include "memplane.authSecret" $root) "optional" true "items" (dict "ops-key" "MEMPLANE_GATEWAY__OPS_KEY" "key-pepper" "MEMPLANE_GATEWAY__KEY_PEPPER" "key-peppers" "MEMPLANE_GATEWAY__KEY_PEPPERS")) }}
{{- else if eq . "trust" }}
{{ include "memplane.source" (dict "secret" (include "memplane.authSecret" $root) "optional" true "items" (dict "internal-secret" "MEMPLANE_TRUST__INTERNAL_SECRET" "internal-secrets" "MEMPLANE_TRUST__INTERNAL_SECRETS")) }}
{{- else if eq . "postgres" }}
{{ include "memplane.source" (dict "secret" (include "memplane.postgresSecret" $root) "items" (dict "url" "MEMPLANE_POSTGRES__URL")) }}
{{- else if eq . "owner" }}
{{ include "memplane.source" (dict "secret" (include "memplane.postgresSecret" $root) "items" (dict "owner-url" "MEMPLANE_POSTGRES__OWNER_URL")) }}
{{- else if eq . "redis" }}
{{ include "memplane.source" (dict "secret" (include "memplane.redisSecret" $root) "items" (dict "broker-url" "MEMPLANE_REDIS__BROKER_URL" "cache-url" "MEMPLANE_REDIS__CACHE_URL")) }}
{{- else if eq . "cache" }}
{{ include "memplane.source" (dict "secret" (include "memplane.redisSecret" $root) "items" (dict "cache-url" "MEMPLANE_REDIS__CACHE_URL")) }}
{{- else if eq . "milvus" }}
{{- with $root.Values.milvus.existingSecret }}
{{ include "memplane.source" (dict "secret" . "items" (dict "token" "MEMPLANE_MILVUS__TOKEN")) }}
{{- end }}
{{- else if eq . "llm" }}
{{- with $root.Values.llm.existingSecret }}
{{ include "memplane.source" (dict "secret" . "items" (dict "api-key" "MEMPLANE_LLM__API_KEY")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Which TLS files a pod needs, by section: a list as JSON. */}}
{{- define "memplane.tlsSections" -}}
{{- $found := list -}}
{{- range $section := list "postgres" "redis" "milvus" -}}
{{- $asked := or (has $section $.needs) (and (eq $section "redis") (has "cache" $.needs)) (and (eq $section "postgres") (has "owner" $.needs)) -}}
{{- if and $asked (get $.root.Values $section).tls.existingSecret -}}
{{- $found = append $found $section -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{- define "memplane.tlsEnv" -}}
{{- range $section := include "memplane.tlsSections" . | fromJsonArray }}
{{- $tls := (get $.root.Values $section).tls }}
{{- $prefix := printf "MEMPLANE_%s__" (upper $section) }}
{{- if and (eq $section "milvus") (not $tls.client) }}
- {name: {{ $prefix }}SERVER_PEM_PATH, value: /run/memplane/tls/milvus/ca.crt}
{{- else }}
- {name: {{ $prefix }}CA_PEM_PATH, value: /run/memplane/tls/{{ $section }}/ca.crt}
{{- end }}
{{- if $tls.client }}
- {name: {{ $prefix }}CLIENT_PEM_PATH, value: /run/memplane/tls/{{ $section }}/tls.crt}
- {name: {{ $prefix }}CLIENT_KEY_PATH, value: /run/memplane/tls/{{ $section }}/tls.key}
{{- end }}
{{- end }}
{{- end -}}

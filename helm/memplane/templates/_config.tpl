{{/* Settings of all services that are no secrets, as a map in JSON. */}}
{{- define "memplane.settings" -}}
{{- $v := .Values -}}
{{- $full := include "memplane.fullname" . -}}
{{- $all := dict
  "MEMPLANE_SERVER__HOST" "0.0.0.0"
  "MEMPLANE_SERVER__PORT" "8080"
  "MEMPLANE_SERVER__DRAIN_S" "5"
  "MEMPLANE_SECRETS_DIR" "/run/memplane/secrets"
  "MEMPLANE_POSTGRES__POOL_MAX" (toString $v.postgres.poolMax)
  "MEMPLANE_POSTGRES__PREPARED_STATEMENTS" (toString $v.postgres.preparedStatements)
  "MEMPLANE_MILVUS__INDEX_TYPE" $v.milvus.indexType
  "MEMPLANE_ENDPOINTS__EMBEDDING_URL" (printf "http://%s-embedding:8080" $full)
  "MEMPLANE_ENDPOINTS__RETRIEVAL_URL" (printf "http://%s-retrieval:8080" $full)
-}}
{{- if $v.dev.enabled -}}
{{- $_ := set $all "MEMPLANE_MILVUS__URI" (printf "http://%s-milvus:19530" $full) -}}
{{- else -}}
{{- $_ := set $all "MEMPLANE_MILVUS__URI" $v.milvus.uri -}}
{{- end -}}
{{- with $v.milvus.database }}{{ $_ := set $all "MEMPLANE_MILVUS__DATABASE" . }}{{ end -}}
{{- with $v.postgres.sslMode }}{{ $_ := set $all "MEMPLANE_POSTGRES__SSL_MODE" . }}{{ end -}}
{{- with $v.llm.url -}}
{{- $_ := set $all "MEMPLANE_LLM__URL" . -}}
{{- $_ := set $all "MEMPLANE_LLM__MODEL" $v.llm.model -}}
{{- end -}}
{{- mergeOverwrite $all $v.settings | toJson -}}
{{- end -}}

{{- define "memplane.config" -}}
{{- include "memplane.settings" . | fromJson | toYaml -}}
{{- end -}}

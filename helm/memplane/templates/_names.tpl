{{- define "memplane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for what is put behind it. */}}
{{- define "memplane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "memplane.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects: never anything that changes between versions. Takes (dict "root" $ "component" "gateway"). */}}
{{- define "memplane.selector" -}}
app.kubernetes.io/name: {{ include "memplane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "memplane.labels" -}}
{{ include "memplane.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels and annotations of an object: (dict "root" $ "component" c "suffix" s "annotations" map). */}}
{{- define "memplane.metadata" -}}
{{- $suffix := .suffix | default .component -}}
name: {{ include "memplane.fullname" .root }}-{{ $suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "memplane.labels" . | nindent 2 }}
{{- with mergeOverwrite (deepCopy .root.Values.commonAnnotations) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "memplane.image" -}}
{{- $image := .root.Values.image -}}
{{- $registry := .root.Values.global.imageRegistry | default $image.registry -}}
{{- $name := printf "%s-%s" $image.repository .target -}}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end -}}
{{- $digest := get $image.digests .target -}}
{{- if $digest -}}
{{- printf "%s@%s" $name $digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "memplane.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "memplane.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "memplane.configName" -}}
{{ include "memplane.fullname" . }}-config
{{- end -}}

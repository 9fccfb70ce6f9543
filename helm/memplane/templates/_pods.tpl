{{- define "memplane.podSecurity" -}}
{{- $security := .Values.security -}}
runAsNonRoot: true
{{- if not (kindIs "invalid" $security.runAsUser) }}
runAsUser: {{ int64 $security.runAsUser }}
{{- end }}
{{- if not (kindIs "invalid" $security.runAsGroup) }}
runAsGroup: {{ int64 $security.runAsGroup }}
{{- end }}
{{- if not (kindIs "invalid" $security.fsGroup) }}
fsGroup: {{ int64 $security.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "memplane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* `pod` of all together with that of one component: maps are merged, lists joined, single values replaced. */}}
{{- define "memplane.podValues" -}}
{{- $all := deepCopy .root.Values.pod -}}
{{- $own := deepCopy (.own | default dict) -}}
{{- $merged := mergeOverwrite (deepCopy $all) $own -}}
{{- range list "tolerations" "extraEnv" "extraVolumes" "extraVolumeMounts" "extraInitContainers" "hostAliases" -}}
{{- $_ := set $merged . (concat (get $all . | default list) (get $own . | default list)) -}}
{{- end -}}
{{- $merged | toJson -}}
{{- end -}}

{{- define "memplane.pullSecrets" -}}
{{- $names := concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq -}}
{{- with $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Requests go elsewhere before the process is told to end, which then drains by itself. No image needs a shell for it. */}}
{{- define "memplane.preStop" -}}
preStop:
  {{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
  sleep:
    seconds: 5
  {{- else }}
  exec:
    command: [python, -c, "import time; time.sleep(5)"]
  {{- end }}
{{- end -}}

{{- define "memplane.secretVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- include "memplane.secretSources" . | trim | nindent 6 }}
      {{- with .more }}
      {{- . | trim | nindent 6 }}
      {{- end }}
{{- range $section := include "memplane.tlsSections" . | fromJsonArray }}
- name: tls-{{ $section }}
  secret:
    secretName: {{ (get $.root.Values $section).tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "memplane.secretMounts" -}}
- {name: secrets, mountPath: /run/memplane/secrets, readOnly: true}
{{- range $section := include "memplane.tlsSections" . | fromJsonArray }}
- {name: tls-{{ $section }}, mountPath: /run/memplane/tls/{{ $section }}, readOnly: true}
{{- end }}
{{- end -}}

{{/*
The pod template of a long-running part:
(dict "root" $ "component" "gateway" "target" "gateway" "command" (list ...) "needs" (list ...) "values" .Values.gateway
      "env" map "liveness" seconds "drains" bool "dns" ...)
*/}}
{{- define "memplane.podTemplate" -}}
{{- $root := .root -}}
{{- $pod := include "memplane.podValues" (dict "root" $root "own" .values.pod) | fromJson -}}
{{- $env := mergeOverwrite (dict "MEMPLANE_SERVER__METRICS_PORT" (toString $root.Values.metrics.port)) .env (.values.settings | default dict) -}}
metadata:
  labels:
    {{- include "memplane.labels" . | nindent 4 }}
    {{- with $pod.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "memplane.config" $root | sha256sum }}
    {{- if $root.Values.dev.enabled }}
    checksum/dev: {{ include "memplane.seedMark" $root }}
    {{- end }}
    {{- with $pod.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "memplane.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
  {{- include "memplane.pullSecrets" $root | nindent 2 }}
  securityContext:
    {{- include "memplane.podSecurity" $root | nindent 4 }}
  {{- include "memplane.placement" (dict "root" $root "pod" $pod "component" .component) | nindent 2 }}
  {{- with $pod.extraInitContainers }}
  initContainers:
    {{- range . }}
    - {{- toYaml (mergeOverwrite (dict "securityContext" (include "memplane.containerSecurity" $root | fromYaml)) (deepCopy .)) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .container | default .component }}
      image: {{ include "memplane.image" (dict "root" $root "target" .target) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      securityContext:
        {{- include "memplane.containerSecurity" $root | nindent 8 }}
      envFrom:
        - configMapRef:
            name: {{ include "memplane.configName" $root }}
      env:
        {{- range $name, $value := $env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- include "memplane.tlsEnv" . | trim | nindent 8 }}
        {{- with $pod.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: metrics, containerPort: {{ $root.Values.metrics.port }}}
      # A start may take as long as models take to load; after that a process that answers nothing is started anew. Only
      # readiness asks others.
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 90
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 4
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if .drains }}
      lifecycle:
        {{- include "memplane.preStop" $root | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- include "memplane.secretMounts" . | nindent 8 }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 256Mi
    {{- include "memplane.secretVolume" . | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Where pods run: (dict "root" $ "pod" values "component" c). */}}
{{- define "memplane.placement" -}}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .pod.topologySpreadConstraints }}
  {{- toYaml .pod.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "memplane.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* A Job's pod: (dict "root" $ "component" c "target" t "command" l "needs" l "env" map "values" v "serviceAccount" s). */}}
{{- define "memplane.jobPod" -}}
{{- $root := .root -}}
{{- $pod := include "memplane.podValues" (dict "root" $root "own" dict) | fromJson -}}
metadata:
  labels:
    {{- include "memplane.labels" . | nindent 4 }}
    {{- with $pod.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pod.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ .serviceAccount }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- include "memplane.pullSecrets" $root | nindent 2 }}
  securityContext:
    {{- include "memplane.podSecurity" $root | nindent 4 }}
  {{- include "memplane.placement" (dict "root" $root "pod" $pod "component" .component) | nindent 2 }}
  containers:
    - name: {{ .component }}
      image: {{ include "memplane.image" (dict "root" $root "target" .target) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      securityContext:
        {{- include "memplane.containerSecurity" $root | nindent 8 }}
      env:
        {{- range $name, $value := .env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- include "memplane.tlsEnv" . | trim | nindent 8 }}
        {{- with $pod.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- include "memplane.secretMounts" . | nindent 8 }}
        {{- with .mounts }}
        {{- . | trim | nindent 8 }}
        {{- end }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 64Mi
    {{- include "memplane.secretVolume" . | nindent 4 }}
    {{- with .volumes }}
    {{- . | trim | nindent 4 }}
    {{- end }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

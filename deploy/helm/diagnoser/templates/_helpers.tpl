{{- define "diagnoser.name" -}}
{{- if contains "diagnoser" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-diagnoser" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end -}}
{{- end -}}

{{- define "diagnoser.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Labels that pods are found by, and that stay the same over versions: (list $ component) */}}
{{- define "diagnoser.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "diagnoser.name" $root }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "diagnoser.labels" -}}
{{ include "diagnoser.selector" . }}
{{- $root := index . 0 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end -}}

{{- define "diagnoser.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "diagnoser.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "diagnoser.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Keys of the Secret that the service reads, as a JSON list. */}}
{{- define "diagnoser.secretKeys" -}}
{{- $keys := list "tokens" -}}
{{- if eq .Values.service.database "postgresql" -}}
{{- $keys = append $keys "database-url" -}}
{{- if .Values.service.redis }}{{ $keys = append $keys "redis-url" }}{{ end -}}
{{- end -}}
{{- toJson (concat $keys .Values.secretSettings) -}}
{{- end -}}

{{/* Settings of the service: those given, and where its secrets are. */}}
{{- define "diagnoser.settings" -}}
{{- $found := dict "DIAGNOSER_HOST" "0.0.0.0" -}}
{{- range $key := include "diagnoser.secretKeys" . | fromJsonArray -}}
{{- $_ := set $found (printf "DIAGNOSER_%s_FILE" ($key | upper | replace "-" "_")) (printf "/etc/diagnoser/%s" $key) -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $found $name (toString $value) -}}
{{- end -}}
{{- if and .Values.ingress.enabled (hasPrefix "http://127.0.0.1:" $found.DIAGNOSER_BASE_URL) -}}
{{- $_ := set $found "DIAGNOSER_BASE_URL" (printf "https://%s" .Values.ingress.host) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* What the pods of the API and of the worker have in common: (dict "root" $ "component" "api" "args" (list "serve")) */}}
{{- define "diagnoser.pod" -}}
{{- $root := .root -}}
{{- $sqlite := eq $root.Values.service.database "sqlite" -}}
metadata:
  labels:
    {{- include "diagnoser.labels" (list $root .component) | nindent 4 }}
  annotations:
    checksum/settings: {{ include "diagnoser.settings" $root | sha256sum }}
spec:
  serviceAccountName: {{ include "diagnoser.name" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- include "diagnoser.pullSecrets" $root | nindent 2 }}
  securityContext:
    {{- include "diagnoser.podSecurity" $root | nindent 4 }}
  {{- if not $sqlite }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "diagnoser.selector" (list $root .component) | nindent 10 }}
  {{- end }}
  containers:
    - name: diagnoser
      image: {{ include "diagnoser.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      envFrom:
        - configMapRef: {name: {{ include "diagnoser.name" $root }}}
      ports:
        - {name: http, containerPort: 8321}
      startupProbe:
        httpGet: {path: /livez, port: http}
        failureThreshold: 30
        periodSeconds: 2
      livenessProbe:
        httpGet: {path: /livez, port: http}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 4
      {{- if and (not $sqlite) (eq .component "api") }}
      lifecycle:
        preStop: {exec: {command: [sleep, "3"]}}
      {{- end }}
      resources:
        {{- toYaml $root.Values.service.resources | nindent 8 }}
      securityContext:
        {{- include "diagnoser.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        {{- if $sqlite }}
        - {name: data, mountPath: /var/lib/diagnoser}
        {{- end }}
        - {name: secrets, mountPath: /etc/diagnoser, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    {{- if $sqlite }}
    - name: data
      persistentVolumeClaim: {claimName: {{ include "diagnoser.name" $root }}}
    {{- end }}
    - name: secrets
      secret:
        secretName: {{ $root.Values.existingSecret }}
        defaultMode: 0440
        items:
          {{- range include "diagnoser.secretKeys" $root | fromJsonArray }}
          - {key: {{ . }}, path: {{ . }}}
          {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
{{- end -}}

{{/* Variables from Secrets: (list $ <name of the Secret> <what the pod needs> <component>). */}}
{{- define "rung.secretEnv" -}}
{{- $root := index . 0 -}}
{{- $secret := index . 1 -}}
{{- $needs := index . 2 -}}
{{- $variables := dict -}}
{{- if and (has "kafka" $needs) (hasPrefix "SASL" $root.Values.kafka.securityProtocol) }}
{{- $login := include "rung.kafkaSecret" (list $root (index . 3) $secret) }}
{{- range $name, $key := dict "RUNG_KAFKA_SASL_USERNAME" "kafka-username" "RUNG_KAFKA_SASL_PASSWORD" "kafka-password" }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $login }}, key: {{ $key }}}
{{- end }}
{{- end }}
{{- if has "objects" $needs }}
{{- if eq $root.Values.objects.credentials "keys" }}
{{- $_ := set $variables "AWS_ACCESS_KEY_ID" "s3-access-key-id" -}}
{{- $_ := set $variables "AWS_SECRET_ACCESS_KEY" "s3-secret-access-key" -}}
{{- end }}
{{- if eq $root.Values.objects.sse "customer" }}
{{- $_ := set $variables "RUNG_S3_SSE_KEY" "s3-sse-key" -}}
{{- end }}
{{- end }}
{{- if has "series" $needs }}
{{- $_ := set $variables "RUNG_CLICKHOUSE_PASSWORD" "clickhouse-password" -}}
{{- end }}
{{- if has "token" $needs }}
{{- $_ := set $variables "RUNG_TOKEN" "token" -}}
{{- end }}
{{- range $name, $key := $variables }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ $key }}}
{{- end }}
{{- /* A Secret of before there were seals lacks it; checkpoint-gc then says so in its log. */}}
{{- if has "secrets" $needs }}
- name: RUNG_SECRETS_KEY
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: secrets-key, optional: true}
{{- end }}
{{- if has "seals" $needs }}
- name: RUNG_SEAL_KEY
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: seal-key, optional: true}
{{- end }}
{{- end -}}

{{- define "rung.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "rung.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The agent is root with few of root's rights, so that each trial is a user of its own. */}}
{{- define "rung.agentPodSecurity" -}}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "rung.agentContainerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL], add: [CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID]}
{{- end -}}

{{- define "rung.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: probe}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: probe}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: probe}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{/* Secrets with certificates, by the store that they are for: (list $ <component>). */}}
{{- define "rung.certificates" -}}
{{- $values := (index . 0).Values -}}
{{- $kafka := default $values.kafka.tlsSecret (dig (index . 1) "tlsSecret" "" $values.kafka.components) -}}
{{- range $store, $secret := dict "kafka" $kafka "objects" $values.objects.caSecret "series" $values.series.caSecret }}
{{- with $secret }}
{{ $store }}: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "rung.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- range $store, $secret := include "rung.certificates" . | fromYaml }}
- {name: {{ $store }}-certificates, mountPath: /etc/rung/{{ $store }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "rung.volumes" -}}
- name: tmp
  emptyDir: {}
{{- range $store, $secret := include "rung.certificates" . | fromYaml }}
- name: {{ $store }}-certificates
  secret: {secretName: {{ $secret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* A change of configuration or secret starts the pods anew: (list $ <component>). */}}
{{- define "rung.podAnnotations" -}}
{{- $root := index . 0 -}}
checksum/config: {{ include "rung.configData" $root | sha256sum }}
{{- if not $root.Values.secrets.existing }}
checksum/secret: {{ include "rung.secretData" $root | sha256sum }}
{{- end }}
{{- with include "rung.kafkaSecretData" . }}
checksum/kafka: {{ . | sha256sum }}
{{- end }}
{{- with $root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "rung.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

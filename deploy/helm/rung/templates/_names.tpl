{{- define "rung.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rung.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rung.labels" -}}
{{ include "rung.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The image of a part: (list $ "searcher"), or (list $ "") for the plain command. */}}
{{- define "rung.image" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
rung{{ with $part }}-{{ . }}{{ end }}:{{ default $root.Chart.AppVersion $root.Values.image.tag }}
{{- end -}}

{{/* The service account of a component: (list $ "searcher"). */}}
{{- define "rung.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $name := $root.Values.serviceAccount.name -}}
{{- if $root.Values.serviceAccount.create -}}
{{- printf "%s-%s" (default (include "rung.fullname" $root) $name) (index . 1) -}}
{{- else -}}
{{- default "default" $name -}}
{{- end -}}
{{- end -}}

{{- define "rung.serviceAccountAnnotations" -}}
{{- $given := (index . 0).Values.serviceAccount -}}
{{- $own := dig (index . 1) "annotations" dict $given.components -}}
{{- with mergeOverwrite (deepCopy $given.annotations) $own }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "rung.secret" -}}
{{- default (include "rung.fullname" .) .Values.secrets.existing -}}
{{- end -}}

{{/* The Secret with a component's user of Kafka: (list $ "searcher" <the Secret of all>). */}}
{{- define "rung.kafkaSecret" -}}
{{- $root := index . 0 -}}
{{- $own := dig (index . 1) dict $root.Values.kafka.components -}}
{{- if $own.existing -}}
{{- $own.existing -}}
{{- else if $own.username -}}
{{- printf "%s-kafka-%s" (include "rung.fullname" $root) (index . 1) -}}
{{- else -}}
{{- index . 2 -}}
{{- end -}}
{{- end -}}

{{/* The keys of that Secret, where the chart makes it: (list $ "searcher"). */}}
{{- define "rung.kafkaSecretData" -}}
{{- $own := dig (index . 1) dict (index . 0).Values.kafka.components -}}
{{- if and $own.username (not $own.existing) -}}
kafka-username: {{ $own.username | b64enc | quote }}
kafka-password: {{ required (printf "kafka.components.%s.password: give %s a password" (index . 1) $own.username) $own.password | b64enc | quote }}
{{- end -}}
{{- end -}}

{{- define "rung.ledger" -}}
kafka://{{ required "kafka.brokers: name the brokers, such as kafka:9092" .Values.kafka.brokers }}/{{ .Values.kafka.prefix }}
{{- end -}}

{{- define "rung.objects" -}}
{{ required "objects.url: name the bucket, such as s3://rung/production" .Values.objects.url }}
{{- end -}}

{{- define "rung.series" -}}
{{ required "series.url: name the database, such as clickhouse://rung@clickhouse:9000/rung" .Values.series.url }}
{{- end -}}

{{/* A token that is left out would only show when the gateway refuses to start. */}}
{{- define "rung.secretData" -}}
{{- with .Values.secrets }}
token: {{ required "secrets.token: give the API a token, or name a Secret in secrets.existing" .token | b64enc | quote }}
{{- if eq $.Values.objects.credentials "keys" }}
{{- $_ := required "secrets.s3AccessKeyId: give keys to the bucket, name a Secret in secrets.existing, or set objects.credentials: identity" .s3AccessKeyId }}
{{- end }}
{{- range $key, $value := dict "clickhouse-password" .clickhousePassword "s3-access-key-id" .s3AccessKeyId "s3-secret-access-key" .s3SecretAccessKey "s3-sse-key" .s3SseKey "seal-key" .sealKey "secrets-key" .secretsKey "kafka-username" .kafkaUsername "kafka-password" .kafkaPassword }}
{{- with $value }}
{{ $key }}: {{ . | b64enc | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "rung.configData" -}}
RUNG_KAFKA_SECURITY_PROTOCOL: {{ .Values.kafka.securityProtocol | quote }}
{{- if hasPrefix "SASL" .Values.kafka.securityProtocol }}
RUNG_KAFKA_SASL_MECHANISM: {{ required "kafka.saslMechanism: name it, such as SCRAM-SHA-512" .Values.kafka.saslMechanism | quote }}
{{- end }}
{{- if or .Values.kafka.tlsSecret .Values.kafka.mutualTls }}
RUNG_KAFKA_SSL_CAFILE: /etc/rung/kafka/ca.crt
{{- if .Values.kafka.mutualTls }}
RUNG_KAFKA_SSL_CERTFILE: /etc/rung/kafka/tls.crt
RUNG_KAFKA_SSL_KEYFILE: /etc/rung/kafka/tls.key
{{- end }}
{{- end }}
{{- with .Values.objects }}
RUNG_S3_SSE: {{ .sse | quote }}
{{- range $name, $value := dict "ENDPOINT" .endpoint "PUBLIC_ENDPOINT" .publicEndpoint "REGION" .region }}
{{- with $value }}
RUNG_S3_{{ $name }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .stsEndpoint }}
AWS_ENDPOINT_URL_STS: {{ . | quote }}
{{- end }}
{{- if eq .sse "kms" }}
RUNG_S3_SSE_KEY: {{ required "objects.sseKmsKey: name the key that objects.sse: kms uses" .sseKmsKey | quote }}
{{- end }}
{{- if .caSecret }}
RUNG_S3_CA_FILE: /etc/rung/objects/ca.crt
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end -}}

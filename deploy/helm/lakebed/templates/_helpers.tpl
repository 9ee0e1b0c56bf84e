{{- /* Names, labels and the pod that pipelines and maintainers share. */}}
{{- define "lakebed.name" -}}
{{- printf "%s-%s" .root.Release.Name .name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "lakebed.labels" -}}
app.kubernetes.io/name: lakebed
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
lakebed/name: {{ .name }}
{{- end }}

{{- define "lakebed.serviceAccount" -}}
{{- .Values.serviceAccount.name | default .Release.Name -}}
{{- end }}

{{- /* The pod of one process: .root, .component, .name, .process (its values), .arguments. */}}
{{- define "lakebed.pod" -}}
metadata:
  labels:
    {{- include "lakebed.labels" . | nindent 4 }}
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if .process.file }}
    lakebed/pipeline: {{ .process.file | sha256sum }}
    {{- end }}
    {{- if .root.Values.metrics.annotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9464"
    {{- end }}
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "lakebed.serviceAccount" .root }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: lakebed
      image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ toJson .arguments }}
      env:
        - {name: LAKEBED_CACHE_DIR, value: /scratch/cache}
        - {name: TMPDIR, value: /scratch}
        {{- with .process.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .process.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: metrics, containerPort: 9464}
        - {name: page, containerPort: 9466}
      startupProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 30
        failureThreshold: 6
      resources:
        {{- toYaml (.process.resources | default .root.Values.resources) | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        {{- if .process.file }}
        - {name: pipeline, mountPath: /etc/lakebed, readOnly: true}
        {{- end }}
  volumes:
    - name: scratch
      emptyDir: {sizeLimit: {{ .root.Values.scratch.sizeLimit }}}
    {{- if .process.file }}
    - name: pipeline
      configMap: {name: {{ include "lakebed.name" . }}}
    {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

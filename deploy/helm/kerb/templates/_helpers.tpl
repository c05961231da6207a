{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "kerb.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* kerb.yaml of all agents; empty if each node has its own. */ -}}
{{- define "kerb.config" -}}
{{- $config := deepCopy .Values.node.config -}}
{{- with .Values.metrics -}}
{{- if .secret -}}
{{- $files := dict "certificate" "/etc/kerb-metrics/tls.crt" "key" "/etc/kerb-metrics/tls.key" -}}
{{- $own := dict "address" (printf ":%d" (int .port)) "metricsTokenFile" "/etc/kerb-metrics/token" -}}
{{- $_ := set $config "tcp" (merge dict ($config.tcp | default dict) $own $files) -}}
{{- end -}}
{{- end -}}
{{- /* Keys, denied packages and credentials stay those of the node. */ -}}
{{- if $config -}}
{{- $_ := set $config "paths" (merge dict ($config.paths | default dict) (dict "trust" "/etc/kerb")) -}}
{{ toYaml $config }}
{{- end -}}
{{- end -}}

{{- /* Everything but the agent needs no capability at all. */ -}}
{{- define "kerb.confined" -}}
securityContext:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What the agent may do, and sees of the node. */ -}}
{{- define "kerb.agent" -}}
# deploy/systemd/kerb.service says what each capability is for.
securityContext:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsUser: 0
  appArmorProfile: {type: Unconfined} # the default one of container runtimes denies the BPF file system
  capabilities:
    drop: [ALL]
    add: [SETUID, SETGID, SETPCAP, KILL, FOWNER, BPF, NET_ADMIN, NET_RAW, NET_BROADCAST, PERFMON, SYS_ADMIN, SYS_PTRACE,
      CHOWN, DAC_OVERRIDE{{ range .Values.node.capabilities }}, {{ . }}{{ end }}]
volumeMounts:
  {{- if .Values.uninstall }}
  # The directories above those of Kerb, which it removes.
  - {name: run, mountPath: /host/run}
  - {name: lib, mountPath: /host/lib}
  {{- else }}
  - {name: run, mountPath: /run/kerb}
  - {name: state, mountPath: /var/lib/kerb}
  {{- end }}
  - {name: config, mountPath: /etc/kerb, readOnly: true}
  - {name: certificates, mountPath: /etc/ssl/certs, readOnly: true}
  - {name: bpf, mountPath: /sys/fs/bpf}
  # Not at /sys/fs/cgroup, where the runtime mounts the container's own.
  - {name: cgroups, mountPath: /run/cgroup, readOnly: true, mountPropagation: HostToContainer}
  - {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
  - {name: tmp, mountPath: /tmp}
  {{- if include "kerb.config" . }}
  - {name: agent, mountPath: /etc/kerb-agent, readOnly: true}
  {{- end }}
  {{- if .Values.metrics.secret }}
  - {name: metrics, mountPath: /etc/kerb-metrics, readOnly: true}
  {{- end }}
{{- end -}}

{{- /* Flags with which a program serves metrics on a port as the agent does. */ -}}
{{- define "kerb.serve" -}}
args: [--metrics, ":{{ int . }}", --metrics-certificate, /etc/kerb-metrics/tls.crt, --metrics-key, /etc/kerb-metrics/tls.key,
  --metrics-token, /etc/kerb-metrics/token]
{{- end -}}

{{- /* An endpoint of a ServiceMonitor, with the values of metrics. */ -}}
{{- define "kerb.endpoint" -}}
scheme: https
interval: {{ .serviceMonitor.interval }}
authorization: {credentials: {name: {{ .secret }}, key: token}}
tlsConfig:
  ca: {secret: {name: {{ .secret }}, key: ca.crt}}
  serverName: {{ .serviceMonitor.serverName }}
{{- end -}}

{{- /* What the installer of the plugin sees of the node. */ -}}
{{- define "kerb.cni" -}}
volumeMounts:
  - {name: cni-conf, mountPath: /host/net.d}
  - {name: cni-bin, mountPath: /host/bin}
{{- end -}}

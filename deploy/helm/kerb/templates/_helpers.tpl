{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "kerb.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
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
  - {name: run, mountPath: /run/kerb}
  - {name: state, mountPath: /var/lib/kerb}
  - {name: config, mountPath: /etc/kerb, readOnly: true}
  - {name: bpf, mountPath: /sys/fs/bpf}
  - {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /* What the installer of the plugin sees of the node. */ -}}
{{- define "kerb.cni" -}}
volumeMounts:
  - {name: cni-conf, mountPath: /host/net.d}
  - {name: cni-bin, mountPath: /host/bin}
{{- end -}}

// SPDX-License-Identifier: Apache-2.0

// Package helm tests the chart, and that deploy/kubernetes/install.yaml is what it renders.
package helm

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const (
	installed = "../kubernetes/install.yaml"
	unit      = "../systemd/kerb.service"
)

type object = map[string]any

// parse returns the objects of a file by kind and name.
func parse(t *testing.T, text []byte) map[string]object {
	t.Helper()
	out := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		id := o["kind"].(string) + " " + o["metadata"].(object)["name"].(string)
		if out[id] != nil {
			t.Errorf("%s is there twice", id)
		}
		out[id] = o
	}
}

func read(t *testing.T, file string) map[string]object {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text)
}

// install.yaml has all definitions and rights as they are in their own files.
func TestInstallIsComplete(t *testing.T) {
	got := read(t, installed)
	files, err := filepath.Glob("../kubernetes/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	files = append(files, "../kubernetes/kerb-kube-node.yaml", "../kubernetes/kerb-kube-controller.yaml",
		"../kubernetes/kerb-modules.yaml")
	want := map[string]object{}
	for _, file := range files {
		maps.Copy(want, read(t, file))
	}
	for id, o := range want {
		if diff := cmp.Diff(o, got[id]); diff != "" {
			t.Errorf("%s (make helm renders it):\n%s", id, diff)
		}
		delete(got, id)
	}
	more := slices.Sorted(maps.Keys(got))
	if strings.Join(more, ", ") != "DaemonSet kerb, Deployment kerb-kube-controller" {
		t.Errorf("also there: %v", more)
	}
}

// containers returns those of a workload.
func containers(o object) (out []object) {
	spec := o["spec"].(object)["template"].(object)["spec"].(object)
	for _, list := range []string{"initContainers", "containers"} {
		all, _ := spec[list].([]any)
		for _, c := range all {
			out = append(out, c.(object))
		}
	}
	return out
}

// No container is privileged. The agent has the capabilities of its unit but for one that only Linux before 5.11 needs;
// others have none. All are of one image.
func TestPrivileges(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(text)
	want := slices.DeleteFunc(strings.Fields(strings.ReplaceAll(string(set[1]), "CAP_", "")), func(c string) bool {
		return c == "SYS_RESOURCE"
	})
	slices.Sort(want)
	images := map[any]bool{}
	all, agents := read(t, installed), 0
	for _, id := range []string{"DaemonSet kerb", "Deployment kerb-kube-controller"} {
		for _, c := range containers(all[id]) {
			images[c["image"]] = true
			s := c["securityContext"].(object)
			if s["privileged"] != false || s["allowPrivilegeEscalation"] != false || s["readOnlyRootFilesystem"] != true {
				t.Errorf("%s %s: %v", id, c["name"], s)
			}
			capabilities := s["capabilities"].(object)
			var added []string
			for _, c := range asList(capabilities["add"]) {
				added = append(added, c.(string))
			}
			slices.Sort(added)
			if !slices.Contains(asList(capabilities["drop"]), any("ALL")) {
				t.Errorf("%s %s keeps the capabilities of the runtime", id, c["name"])
			}
			switch {
			case c["name"] == "agent":
				agents++
				if diff := cmp.Diff(want, added); diff != "" {
					t.Errorf("the capabilities of the agent are not those of its unit:\n%s", diff)
				}
			case len(added) > 0:
				t.Errorf("%s %s has capabilities %v", id, c["name"], added)
			}
		}
	}
	if len(images) != 1 || agents != 1 {
		t.Errorf("images %v, %d agents", images, agents)
	}
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

// helm runs the program, which make helm builds.
func helm(t *testing.T, args ...string) []byte {
	t.Helper()
	program := os.Getenv("KERB_HELM")
	if program == "" {
		t.Skip("needs helm: make helm")
	}
	cmd := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("helm %q: %v: %s%s", args, err, &stdout, &stderr)
	}
	return stdout.Bytes()
}

func render(t *testing.T, args ...string) []byte {
	t.Helper()
	return helm(t, append([]string{"template", "kerb", "kerb", "--include-crds", "--kube-version", "1.35.4"}, args...)...)
}

// The chart has no fault that helm finds, and install.yaml is what it renders without values.
func TestRendered(t *testing.T) {
	helm(t, "lint", "--strict", "kerb")
	committed, err := os.ReadFile(installed)
	if err != nil {
		t.Fatal(err)
	}
	_, committed, _ = bytes.Cut(committed, []byte("---\n"))
	_, rendered, _ := bytes.Cut(render(t), []byte("---\n"))
	if diff := cmp.Diff(string(rendered), string(committed)); diff != "" {
		t.Errorf("install.yaml is not what the chart renders (make helm writes it):\n%s", diff)
	}
}

// Values reach what they are for.
func TestValues(t *testing.T) {
	text := string(render(t, "--set", "image.digest=sha256:00,image.tag=no,controller.replicas=2,cni.binDir=/usr/lib/cni,"+
		"node.capabilities={SYS_RESOURCE},node.certificates=/etc/pki/tls/certs,imagePullSecrets[0].name=registry"))
	for _, want := range []string{"image: registry.example.org/kerb/kerb@sha256:00\n", "replicas: 2\n",
		"path: /usr/lib/cni,", "path: /etc/pki/tls/certs,",
		"DAC_OVERRIDE, SYS_RESOURCE]", `imagePullSecrets: [{"name":"registry"}]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	const command, path = "command: [/usr/bin/kerb-kube-node, --nri, /run/nri/nri.sock]", "hostPath: {path: /var/run/nri,"
	nri := string(render(t, "--set", "nri.enabled=true,nri.directory=/var/run/nri"))
	if !strings.Contains(nri, command) || !strings.Contains(nri, path) || strings.Contains(text, "nri") {
		t.Error("NRI is not mounted where it is enabled, or is without")
	}
	if strings.Contains(text, "kerb-metrics") || strings.Contains(text, "kind: ConfigMap") {
		t.Error("there are metrics, or a configuration, without being asked for")
	}
	removes := parse(t, render(t, "--set", "uninstall=true"))
	var commands []string
	for _, c := range containers(removes["DaemonSet kerb"]) {
		for _, word := range asList(c["command"])[:2] {
			commands = append(commands, word.(string))
		}
	}
	if got := strings.Join(commands, " "); got != "/usr/bin/kerb-cni uninstall /usr/bin/kerb purge "+
		"/usr/bin/kerb-kube-node --purge /usr/bin/kerb version" {
		t.Errorf("uninstall runs %s", got)
	}
}

// To uninstall, no directory of Kerb on the node is mounted, nor created: one that is mounted cannot be removed. What
// is removed is where the other pods have it.
func TestUninstallMountsNoDirectoryOfKerb(t *testing.T) {
	of := func(uninstall string) (object, map[string]string) {
		set := parse(t, render(t, "--set", "uninstall="+uninstall))["DaemonSet kerb"]
		paths := map[string]string{}
		for mount, path := range mounts(set) {
			if path != nil {
				paths[mount] = path.(string)
			}
		}
		return set, paths
	}
	_, runs := of("false")
	set, removes := of("true")
	for mount, path := range removes {
		if strings.Contains(path, "kerb") && path != "/etc/kerb" {
			t.Errorf("%s is %s", mount, path)
		}
	}
	named := map[string]bool{}
	for _, c := range containers(set) {
		for _, word := range asList(c["command"]) {
			for mount, path := range removes {
				container, at, _ := strings.Cut(mount, " ")
				if rest, below := strings.CutPrefix(word.(string), at+"/"); below && c["name"] == container {
					named[path+"/"+rest] = true
				}
			}
		}
	}
	for mount, path := range runs {
		if strings.Contains(path, "kerb") && path != "/etc/kerb" && !named[path] {
			t.Errorf("%s of %s is not removed", path, mount)
		}
	}
	for _, v := range asList(set["spec"].(object)["template"].(object)["spec"].(object)["volumes"]) {
		host, _ := v.(object)["hostPath"].(object)
		if path, _ := host["path"].(string); strings.Contains(path, "kerb") && path != "/etc/kerb" {
			t.Errorf("volume %s is %s", v.(object)["name"], path)
		}
	}
}

// Metrics are served by TLS, to clients with the token of the secret, which allows nothing else; a configuration of the
// user stays.
func TestMetrics(t *testing.T) {
	all := parse(t, render(t, "--set", "metrics.secret=tls,metrics.port=4601,metrics.kubeNodePort=4602,"+
		"metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus,"+
		"node.config.history.of=all,node.config.tcp.clientCA=/etc/kerb/ca"))
	var config object
	if err := yaml.Unmarshal([]byte(all["ConfigMap kerb"]["data"].(object)["kerb.yaml"].(string)), &config); err != nil {
		t.Fatal(err)
	}
	const dir = "/etc/kerb-metrics/"
	if diff := cmp.Diff(object{"history": object{"of": "all"}, "paths": object{"trust": "/etc/kerb"},
		"tcp": object{"address": ":4601",
			"clientCA":    "/etc/kerb/ca",
			"certificate": dir + "tls.crt", "key": dir + "tls.key", "metricsTokenFile": dir + "token"}}, config); diff != "" {
		t.Error(diff)
	}
	for _, c := range containers(all["DaemonSet kerb"]) {
		var mounts []string
		for _, m := range asList(c["volumeMounts"]) {
			mounts = append(mounts, m.(object)["mountPath"].(string))
		}
		if has := slices.Contains(mounts, "/etc/kerb-metrics"); has != (c["name"] != "cni") {
			t.Errorf("container %s has the secret: %v", c["name"], has)
		}
	}
	served := map[string][]any{"kerb": {4601, 4602}, "kerb-kube-controller": {4601}} // ports
	for name, service := range map[string]string{"kerb": "kerb-metrics",
		"kerb-kube-controller": "kerb-kube-controller-metrics"} {
		of, spec := all["Service "+service], all["ServiceMonitor "+name]["spec"].(object)
		for i, want := range served[name] {
			port := of["spec"].(object)["ports"].([]any)[i].(object)
			endpoint := spec["endpoints"].([]any)[i].(object)
			if port["port"] != want || endpoint["port"] != port["name"] || endpoint["scheme"] != "https" {
				t.Errorf("port %v, endpoint %v", port, endpoint)
			}
		}
		if diff := cmp.Diff(of["metadata"].(object)["labels"], spec["selector"].(object)["matchLabels"]); diff != "" {
			t.Errorf("the ServiceMonitor selects no Service:\n%s", diff)
		}
	}
	without := parse(t, render(t, "--set", "metrics.secret=tls"))
	if without["ServiceMonitor kerb"] != nil || without["Service kerb-metrics"] == nil {
		t.Error("a ServiceMonitor is made that was not asked for, or no Service")
	}
	for id, port := range map[string]string{"DaemonSet kerb": ":4601", "Deployment kerb-kube-controller": ":4600"} {
		if got := flagsOf(containers(without[id])); !slices.Contains(got, any(port)) {
			t.Errorf("%s has flags %v", id, got)
		}
	}
	for id, o := range parse(t, render(t, "--set", "metrics.serviceMonitor.enabled=true")) {
		if strings.Contains(id, "metrics") || o["kind"] == "ServiceMonitor" {
			t.Errorf("without a secret there is %s", id)
		}
	}
	for _, id := range []string{"DaemonSet kerb", "Deployment kerb-kube-controller"} {
		if got := flagsOf(containers(read(t, installed)[id])); len(got) > 0 {
			t.Errorf("without a secret, %s has flags %v", id, got)
		}
	}
}

// flagsOf returns the arguments of all containers.
func flagsOf(containers []object) (out []any) {
	for _, c := range containers {
		out = append(out, asList(c["args"])...)
	}
	return out
}

// The chart mounts the directories of a distribution as docs/kubernetes.md sets them, and the node's cgroups, where the
// container's own are not.
func TestDistributions(t *testing.T) {
	docs, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]struct{ values, conf, bin string }{
		"kubeadm": {"", "/etc/cni/net.d", "/opt/cni/bin"},
		"k3s": {"cni.confDir=/var/lib/rancher/k3s/agent/etc/cni/net.d,cni.binDir=/var/lib/rancher/k3s/data/cni",
			"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/k3s/data/cni"},
		"microk8s": {"cni.confDir=/var/snap/microk8s/current/args/cni-network," +
			"cni.binDir=/var/snap/microk8s/current/opt/cni/bin",
			"/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin"},
	} {
		values := d.values
		if values == "" {
			values = "none: `" + d.conf + "` and `" + d.bin + "`"
		}
		if !hasDistribution(string(docs), name, values) {
			t.Errorf("docs/kubernetes.md has no row of %s with %s", name, values)
		}
		for _, uninstall := range []string{"false", "true"} {
			set := parse(t, render(t, "--set", "uninstall="+uninstall, "--set", d.values))["DaemonSet kerb"]
			want := object{"cni /host/net.d": d.conf, "cni /host/bin": d.bin}
			agent := "agent"
			if uninstall == "true" {
				agent = "purge"
			}
			want[agent+" /run/cgroup"] = "/sys/fs/cgroup"
			got := object{}
			for mount, path := range mounts(set) {
				if want[mount] != nil {
					got[mount] = path
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, uninstall=%s:\n%s", name, uninstall, diff)
			}
		}
	}
}

// hasDistribution reports whether docs have a row that begins with the name of a distribution, with its values.
func hasDistribution(docs, name, values string) bool {
	for line := range strings.Lines(docs) {
		if strings.HasPrefix(line, "| "+name) && strings.Contains(line, values) {
			return true
		}
	}
	return false
}

// mounts returns which directories of the node containers have, by their names and paths in them.
func mounts(o object) map[string]any {
	paths, out := map[any]any{}, map[string]any{}
	for _, v := range asList(o["spec"].(object)["template"].(object)["spec"].(object)["volumes"]) {
		if host, ok := v.(object)["hostPath"].(object); ok {
			paths[v.(object)["name"]] = host["path"]
		}
	}
	for _, c := range containers(o) {
		for _, m := range asList(c["volumeMounts"]) {
			out[c["name"].(string)+" "+m.(object)["mountPath"].(string)] = paths[m.(object)["name"]]
		}
	}
	return out
}

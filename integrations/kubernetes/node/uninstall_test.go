// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// The commands of docs/kubernetes.md leave nothing of Kerb in the API server, definitions included: neither those for
// the unit of the node, nor what Helm does with the objects of the chart.
func TestUninstall(t *testing.T) {
	text, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Uninstall\n")
	command := regexp.MustCompile("(?s)`kubectl delete ([^`]*)`").FindStringSubmatch(section)
	if command == nil {
		t.Fatal("docs/kubernetes.md does not say how to uninstall")
	}
	files := regexp.MustCompile(`deploy/kubernetes/[a-z-]+(\.yaml)?`).FindAllString(command[1], -1)
	for name, c := range map[string]struct{ apply, remove []string }{
		"on the node": {[]string{"kerb-kube-node.yaml", "kerb-kube-controller.yaml", "kerb-modules.yaml"}, files},
		"chart":       {[]string{"install.yaml"}, []string{"deploy/kubernetes/install.yaml"}}, // includes the definitions
	} {
		t.Run(name, func(t *testing.T) { uninstall(t, c.apply, c.remove) })
	}
}

func uninstall(t *testing.T, apply, remove []string) {
	b := newBed(t)
	for _, file := range apply {
		b.applyManifests(file)
	}
	controller := b.controller(b.controllerConfig())
	b.module("web", counter("app: web"))
	for path, object := range map[string]string{
		"/apis/kerb.dev/v1alpha1/packagetrusts/acme": "{apiVersion: kerb.dev/v1alpha1, kind: PackageTrust, metadata: " +
			"{name: acme}, spec: {repositories: [r.example/acme/]}}",
		"/apis/kerb.dev/v1alpha1/namespaces/default/modules/own": "{apiVersion: kerb.dev/v1alpha1, kind: Module, metadata: " +
			"{name: own}, spec: {package: {name: counter}, attach: {pods: {podSelector: {}}}}}",
	} {
		if err := b.api.Apply(path, object); err != nil {
			t.Fatal(err)
		}
	}
	web := b.pod("web", map[string]string{"app": "web"})
	b.Eventually("the module runs", func() bool { return strings.Contains(web.modules(), "web") })
	for _, what := range []string{"clustermodules/web", "modules/own", "packagetrusts/acme", "kerbnodes/n1",
		"modulerevisions/web-", "leases/kerb-kube-controller", "clusterroles/kerb-kube-node",
		"customresourcedefinitions/modules.kerb.dev"} {
		b.Eventually("the search finds "+what, func() bool { return strings.Contains(strings.Join(b.remains(), " "), what) })
	}

	b.stop(syscall.SIGTERM)
	_ = controller.Process.Kill()
	_ = controller.Wait()
	for _, file := range remove {
		b.deleteManifests(file)
	}
	wait.Until(t, "nothing is left", func() bool { return len(b.remains()) == 0 }, func() any { return b.remains() })
}

// deleteManifests does what kubectl delete -f does with a file or a directory of the repository. It deletes the objects
// of a namespace itself, since the controller that would do so does not run here.
func (b *bed) deleteManifests(path string) {
	b.T.Helper()
	all := []string{filepath.Join("../../..", path)}
	if more, _ := filepath.Glob(filepath.Join(all[0], "*.yaml")); len(more) > 0 {
		all = more
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			b.T.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				b.T.Fatal(err)
			}
			if object.Kind != "" {
				b.api.Must(http.MethodDelete, collections[object.Kind]+object.Metadata.Name, nil, nil)
			}
		}
	}
}

// remains returns all objects of the API server whose metadata names Kerb, except Events, which expire after an hour,
// and objects in Kerb's namespace while it is being deleted.
func (b *bed) remains() (out []string) {
	b.T.Helper()
	var namespace api.Object
	_ = b.api.Call(http.MethodGet, "/api/v1/namespaces/kerb-system", nil, &namespace)
	ends := namespace.Metadata.Deleted != ""
	for _, path := range b.collections() {
		var list struct {
			Items []struct {
				Metadata map[string]json.RawMessage `json:"metadata"`
			} `json:"items"`
		}
		if b.api.Call(http.MethodGet, path, nil, &list) != nil {
			continue // its definition is being deleted
		}
		for _, o := range list.Items {
			delete(o.Metadata, "managedFields")
			text, err := json.Marshal(o.Metadata)
			if err != nil {
				b.T.Fatal(err)
			}
			name, in := string(o.Metadata["name"]), string(o.Metadata["namespace"])
			if !strings.Contains(path+string(text), "kerb") ||
				ends && (in == `"kerb-system"` || name == `"kerb-system"`) {
				continue
			}
			out = append(out, path[strings.LastIndexByte(path, '/')+1:]+"/"+strings.Trim(name, `"`))
		}
	}
	slices.Sort(out)
	return out
}

// collections returns the paths of all resources that can be listed.
func (b *bed) collections() (out []string) {
	b.T.Helper()
	var groups struct {
		Groups []struct{ PreferredVersion struct{ GroupVersion string } }
	}
	b.api.Must(http.MethodGet, "/apis", nil, &groups)
	versions := []string{"/api/v1"}
	for _, g := range groups.Groups {
		versions = append(versions, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	for _, version := range versions {
		var list struct {
			Resources []struct {
				Name  string
				Verbs []string
			}
		}
		if b.api.Call(http.MethodGet, version, nil, &list) != nil {
			continue
		}
		for _, r := range list.Resources {
			if slices.Contains(r.Verbs, "list") && r.Name != "events" {
				out = append(out, fmt.Sprint(version, "/", r.Name))
			}
		}
	}
	return out
}

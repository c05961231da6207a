// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	lab "github.com/kerb-edge/kerb/internal/lab/node"
)

func modulesOf(namespace string) string {
	return "/apis/kerb.dev/v1alpha1/namespaces/" + namespace + "/modules/"
}

// object returns a Module or ClusterModule with the spec of counter.
func object(kind, name string, labels map[string]string) map[string]any {
	return map[string]any{"apiVersion": v1.APIVersion, "kind": kind, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"package": map[string]any{"name": "counter"}, "attach": map[string]any{
			"pods": map[string]any{"podSelector": map[string]any{"matchLabels": labels}}}}}
}

// editor returns the token of an account that may edit the Modules of a new namespace.
func (b *bed) editor(namespace string) string {
	b.T.Helper()
	b.api.Must(http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": namespace}}, nil)
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	b.api.Must(http.MethodPost, accounts, map[string]any{"metadata": map[string]any{"name": "editor"}}, nil)
	b.api.Must(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/rolebindings", map[string]any{
		"metadata": map[string]any{"name": "editor"},
		"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
			"name": "kerb-modules-edit"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "editor", "namespace": namespace}}}, nil)
	var answer struct{ Status struct{ Token string } }
	b.api.Must(http.MethodPost, accounts+"/editor/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}, &answer)
	return answer.Status.Token
}

// An editor of a namespace deploys Modules only on its pods. ClusterModules and Modules of other namespaces with the
// same name are separate modules. ClusterModules are farther from the pod.
func TestModulesOfNamespaces(t *testing.T) {
	b := newBed(t)
	b.applyManifests("kerb-modules.yaml")
	token := b.editor("shop")
	web := map[string]string{"app": "web"}
	ours, theirs := b.podIn("shop", "ours", web), b.podIn("default", "theirs", web)
	create := func(namespace, name string) error {
		return b.api.CallAs(token, http.MethodPost, modulesOf(namespace), object("Module", name, web), nil)
	}
	b.Eventually("the role is in force", func() bool { return create("shop", count) == nil })
	b.module(count, counter("app: web"))
	b.api.Must(http.MethodPost, modulesOf("default"), object("Module", count, web), nil)
	inShop, inDefault := names.Module("shop", count), names.Module("default", count)
	ours.await(count + " " + inShop)
	theirs.await(count + " " + inDefault)
	var s v1.Service
	b.Must(http.MethodGet, "/v1/services/"+ours.Service(), nil, &s)
	for _, h := range s.Status.Links[0].Hooks {
		want := map[string][]string{"tc-ingress": {inShop, count}, "tc-egress": {count, inShop}}[h.Hook]
		if !slices.Equal(h.Modules, want) {
			t.Errorf("%s has %v, want %v: packets from the pod pass its namespace's module first", h.Hook, h.Modules, want)
		}
	}
	var m v1.Module
	if b.Must(http.MethodGet, "/v1/modules/"+inShop, nil, &m); m.Metadata.Owner != names.Owner {
		t.Errorf("the owner of the module is %q", m.Metadata.Owner)
	}

	image := object("Module", "image", web)
	image["spec"].(map[string]any)["package"] = map[string]any{
		"image": "example.org/a/b@sha256:" + strings.Repeat("a", 64)}
	b.Eventually("the policy is in force", func() bool {
		err := b.api.CallAs(token, http.MethodPost, modulesOf("shop")+"?dryRun=All", image, nil)
		return err != nil && strings.Contains(err.Error(), "Ask an administrator of the cluster")
	})
	for what, err := range map[string]error{
		"a Module in another namespace": create("default", "foreign"),
		"a ClusterModule": b.api.CallAs(token, http.MethodPost, strings.TrimSuffix(modulesPath, "/"),
			object("ClusterModule", "wide", nil), nil),
	} {
		var no *kubeapi.Refusal
		if !errors.As(err, &no) || no.Code != http.StatusForbidden {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}

	for i := range api.MaxModules {
		if err := create("shop", fmt.Sprint("n", i)); err != nil {
			t.Fatal(err)
		}
	}
	b.Eventually("the ninth Module is reported by its name", func() bool {
		s := b.status().Status
		return len(s.Modules) == 1 && s.Modules[0].Name == "shop/n7" && s.Modules[0].Reason == "TooMany"
	})
	b.api.Must(http.MethodDelete, modulesOf("shop"), nil, nil)
	ours.await(count)
	theirs.await(count + " " + inDefault)
	b.Eventually("Modules are pruned", func() bool { return b.agentModules() == count+" "+pending+" "+inDefault })
}

// Users who may create Modules in one namespace cannot exhaust the memory of kerb-kube-node. Other namespaces are not
// affected, and the node names the namespace. Its running pods do not evade ClusterModules that select them.
func TestManyModules(t *testing.T) {
	const (
		many      = 330
		maxMemory = 48 << 10 // KiB; without a limit it was over 256 MiB, which the chart allows
	)
	b := newBed(t)
	web := map[string]string{"app": "web"}
	b.api.Must(http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "evil"}}, nil)
	early := b.podIn("evil", "early", nil)
	early.await("")
	var lists []any // as JSON half of the memory that they take when decoded
	for range 19000 {
		lists = append(lists, []any{})
	}
	var running sync.WaitGroup
	for worker := range 8 {
		running.Go(func() {
			for i := worker; i < many; i += 8 {
				m := object("Module", fmt.Sprintf("m%03d", i), web)
				m["spec"].(map[string]any)["config"] = map[string]any{"x": lists}
				b.api.Must(http.MethodPost, modulesOf("evil"), m, nil)
			}
		})
	}
	running.Wait()
	b.Eventually("the node names the namespace", func() bool {
		return slices.ContainsFunc(b.status().Status.Conditions, func(c api.Condition) bool {
			return c.Type == "ModulesKept" && strings.Contains(c.Message, "evil")
		})
	})
	b.api.Must(http.MethodPost, modulesOf("default"), object("Module", count, web), nil)
	ours := b.podIn("default", "ours", web)
	ours.await(names.Module("default", count))
	theirs := b.podIn("evil", "theirs", nil)
	b.Eventually("an Event names the limit", func() bool {
		var all struct{ Items []struct{ Message string } }
		b.api.Must(http.MethodGet, "/api/v1/namespaces/evil/events", nil, &all)
		return len(all.Items) == 1 && strings.Contains(all.Items[0].Message, "its namespace has over 16 Modules")
	})
	if is := theirs.modules(); is != pending {
		t.Errorf("the pod of the namespace has %s", is)
	}
	b.stop(syscall.SIGKILL)
	b.start() // from its snapshot, with all Modules in the first list
	b.module("all", counter("app: web"))
	ours.await("all " + names.Module("default", count))
	early.label("app: web")
	early.await("all")
	sizes, err := lab.Kibibytes(fmt.Sprintf("/proc/%d/status", b.kube.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d KiB were resident at most", sizes["VmHWM"]); sizes["VmHWM"] > maxMemory {
		t.Errorf("%d KiB were resident, want at most %d", sizes["VmHWM"], maxMemory)
	}
}

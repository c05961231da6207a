// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

// collections has the API paths of the kinds in deploy/kubernetes.
var collections = map[string]string{
	"Namespace":                        "/api/v1/namespaces/",
	"ServiceAccount":                   "/api/v1/namespaces/kerb-system/serviceaccounts/",
	"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles/",
	"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/",
	"Role":                             "/apis/rbac.authorization.k8s.io/v1/namespaces/kerb-system/roles/",
	"RoleBinding":                      "/apis/rbac.authorization.k8s.io/v1/namespaces/kerb-system/rolebindings/",
	"DaemonSet":                        "/apis/apps/v1/namespaces/kerb-system/daemonsets/",
	"Deployment":                       "/apis/apps/v1/namespaces/kerb-system/deployments/",
	"CustomResourceDefinition":         "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/",
	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/",
}

// applyManifests does what kubectl apply -f does with the file.
func (b *bed) applyManifests(file string) {
	b.T.Helper()
	text, err := os.ReadFile("../../../deploy/kubernetes/" + file)
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
		if err := b.api.Apply(collections[object.Kind]+object.Metadata.Name, document); err != nil {
			b.T.Fatalf("%s: %v", object.Kind, err)
		}
	}
}

// token returns the token that kubelet mounts into the pod of kerb-kube-node on node n1.
func (b *bed) token() string {
	b.T.Helper()
	b.api.Must(http.MethodPost, "/api/v1/nodes", map[string]any{"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": "n1"}}, nil)
	var pod api.Object
	b.api.Must(http.MethodPost, "/api/v1/namespaces/kerb-system/pods", map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "kerb"}, "spec": map[string]any{"nodeName": "n1",
			"serviceAccountName": "kerb-kube-node", "containers": []any{map[string]any{"name": "c", "image": "example.org/c"}}},
	}, &pod)
	var answer struct{ Status struct{ Token string } }
	b.api.Must(http.MethodPost, "/api/v1/namespaces/kerb-system/serviceaccounts/kerb-kube-node/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{
			"boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "kerb", "uid": pod.Metadata.UID}},
	}, &answer)
	return answer.Status.Token
}

// With only the rights of deploy/kubernetes, kerb-kube-node works, and other requests are forbidden.
func TestRights(t *testing.T) {
	b := newBed(t)
	b.stop(syscall.SIGKILL)
	b.applyManifests("kerb-kube-node.yaml")
	token := b.token()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubeconfig = b.api.Kubeconfig(file)
	b.start()
	b.module(count, counter("app: web"))
	b.Eventually("the API server refuses a wrong token", func() bool {
		text, _ := os.ReadFile(b.log.Name())
		return strings.Contains(string(text), "401")
	})
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil { // kubelet replaces it without a restart
		t.Fatal(err)
	}
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(count)
	b.Eventually("the node reports", func() bool { return b.status().Status.Conditions[0].Status == "True" })
	var node struct {
		Metadata struct{ OwnerReferences []struct{ Kind, Name string } }
	}
	b.api.Must(http.MethodGet, nodesPath+"n1", nil, &node)
	if owners := node.Metadata.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != "n1" {
		t.Errorf("owners of the KerbNode are %v", owners)
	}

	b.module("px", "{package: {name: proxy}, attach: {pods: {podSelector: {matchLabels: {app: client}}}}}")
	b.Eventually("it may follow Services and EndpointSlices", func() bool {
		for _, c := range b.status().Status.Conditions {
			if c.Type == "ServicesProxied" {
				return c.Status == "True"
			}
		}
		return false
	})

	other := map[string]any{"apiVersion": "kerb.dev/v1alpha1", "kind": "KerbNode",
		"metadata": map[string]any{"name": "n2"}}
	b.Eventually("the policy is in force", func() bool {
		err := b.api.CallAs(token, http.MethodPost, nodesPath+"?dryRun=All", other, nil)
		return err != nil && strings.Contains(err.Error(), "a node writes its own KerbNode only")
	})
	for _, no := range []struct{ method, path string }{
		{http.MethodGet, "/api/v1/secrets"}, {http.MethodGet, "/api/v1/configmaps"}, {http.MethodGet, "/api/v1/nodes"},
		{http.MethodDelete, modulesPath + count}, {http.MethodPost, modulesPath}, {http.MethodDelete, nodesPath + "n1"},
		{http.MethodPost, podsPath}, {http.MethodDelete, podsPath + "/web"},
	} {
		err := b.api.CallAs(token, no.method, no.path, nil, nil)
		var refusal *kubeapi.Refusal
		if !errors.As(err, &refusal) || refusal.Code != http.StatusForbidden {
			t.Errorf("%s %s: %v, want 403", no.method, no.path, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi/kubeapitest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// Binaries built from the tree: kerb-kube-node, kerb-cni, kubectl-kerb and kerb-kube-controller.
var program, plugin, kubectlKerb, controllerProgram string

func TestMain(m *testing.M) {
	if os.Getenv(kubeapi.Program) == "" {
		os.Exit(m.Run()) // no test needs the binaries
	}
	os.Exit(nodetest.Main(m, func(dir string) error {
		program = filepath.Join(dir, "kerb-kube-node")
		plugin = filepath.Join(dir, "kerb-cni")
		kubectlKerb = filepath.Join(dir, "kubectl-kerb")
		controllerProgram = filepath.Join(dir, "kerb-kube-controller")
		return errors.Join(gobuild.Build(program, "github.com/kerb-edge/kerb/cmd/kerb-kube-node"),
			gobuild.Build(filepath.Join(dir, "kerb-nri"), "github.com/kerb-edge/kerb/cmd/kerb-nri"),
			gobuild.Build(plugin, "github.com/kerb-edge/kerb/cmd/kerb-cni"),
			gobuild.Build(kubectlKerb, "github.com/kerb-edge/kerb/cmd/kubectl-kerb"),
			gobuild.Build(controllerProgram, "github.com/kerb-edge/kerb/cmd/kerb-kube-controller"))
	}))
}

const (
	modulesPath = "/apis/kerb.dev/v1alpha1/clustermodules/"
	nodesPath   = "/apis/kerb.dev/v1alpha1/kerbnodes/"
	podsPath    = "/api/v1/namespaces/default/pods"
)

// bed is a Kubernetes node: an agent, kerb-kube-node, and an API server, in one namespace.
type bed struct {
	*nodetest.Node
	api        *kubeapitest.Server
	kubeconfig string
	flags      []string // of kerb-kube-node, in addition to the usual ones
	kube       *exec.Cmd
	log        *os.File
}

func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Getenv(kubeapi.Program) == "" {
		t.Skip("needs a Kubernetes API server: make test-kube-api")
	}
	b := &bed{Node: nodetest.New(t)}
	b.api = kubeapitest.Start(t, b.Lab.Node(), kubeapi.Loopback)
	for _, name := range []string{api.ClusterModules, api.Modules, api.KerbNodes, api.PackageTrusts,
		api.ModuleRevisions} {
		b.api.Install("../../../deploy/kubernetes/crds/" + name + ".yaml")
	}
	b.kubeconfig = b.api.Kubeconfig("")
	var err error
	if b.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b.stop(syscall.SIGQUIT) // with the stacks of its goroutines
		}
		b.stop(syscall.SIGKILL)
		b.log.Close()
		if text, _ := os.ReadFile(b.log.Name()); t.Failed() {
			t.Logf("kerb-kube-node said:\n%s", text)
		}
	})
	b.Start()
	b.start()
	return b
}

// start runs kerb-kube-node.
func (b *bed) start() {
	b.T.Helper()
	b.kube = b.Lab.Node().Command(context.Background(), program, append([]string{"--node", "n1", "--kubeconfig",
		b.kubeconfig, "--agent", b.Socket(), "--state", filepath.Join(b.Dir, "kube")}, b.flags...)...)
	b.kube.Stderr = b.log
	if err := sandbox.Start(b.kube); err != nil {
		b.T.Fatal(err)
	}
}

func (b *bed) stop(how syscall.Signal) {
	if b.kube != nil {
		_ = b.kube.Process.Signal(how)
		_ = b.kube.Wait()
		b.kube = nil
	}
}

// module applies a ClusterModule as kubectl apply does.
func (b *bed) module(name, spec string) {
	b.T.Helper()
	text := fmt.Sprintf("apiVersion: kerb.dev/v1alpha1\nkind: ClusterModule\nmetadata: {name: %q}\nspec: %s\n", name, spec)
	if err := b.api.Apply(modulesPath+name, text); err != nil {
		b.T.Fatal(err)
	}
}

// counter returns the spec of a ClusterModule that counts packets of pods with these labels.
func counter(labels string) string {
	return "{package: {name: counter}, attach: {pods: {podSelector: {matchLabels: {" + labels + "}}}}}"
}

// pod is a pod of this node, whose network namespace is a host of the lab.
type pod struct {
	names.Pod
	host      *netlab.Host
	bed       *bed
	container string // of its sandbox, if not the name
}

// pod creates a pod in the API server, and its sandbox.
func (b *bed) pod(name string, labels map[string]string) *pod {
	b.T.Helper()
	return b.podIn("default", name, labels)
}

func (b *bed) podIn(namespace, name string, labels map[string]string) *pod {
	b.T.Helper()
	p := &pod{names.Pod{Namespace: namespace, Name: name, UID: b.createPod(namespace, name, labels)}, b.Host(name), b, ""}
	p.add()
	return p
}

// createPod creates a pod in the API server, and returns its UID.
func (b *bed) createPod(namespace, name string, labels map[string]string) string {
	b.T.Helper()
	var created api.Object
	b.api.Must(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{"nodeName": "n1", "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "c", "image": "example.org/c"}}}}, &created)
	return created.Metadata.UID
}

// add does what kerb-cni does at ADD: it creates a service without the labels of the pod.
func (p *pod) add() {
	p.bed.T.Helper()
	attachment := names.Attachment{Network: "test", ContainerID: p.Name, Interface: "eth0"}
	service := v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: p.Service(), Labels: names.PodLabels(p.Pod, attachment)},
		Spec:     v1.ServiceSpec{Netns: p.host.Path()}}
	p.bed.Must(http.MethodPut, "/v1/services/"+p.Service()+"?owner="+names.OwnerPods, service, nil)
}

// label changes the labels of the pod in the API server.
func (p *pod) label(labels string) {
	p.bed.T.Helper()
	if err := p.bed.api.Apply("/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name,
		"apiVersion: v1\nkind: Pod\nmetadata: {labels: {"+labels+"}}\n"); err != nil {
		p.bed.T.Fatal(err)
	}
}

func (p *pod) delete() {
	p.bed.T.Helper()
	p.bed.api.Must(http.MethodDelete, podsPath+"/"+p.Name+"?gracePeriodSeconds=0", nil, nil)
}

// modules returns the modules in the chains of the pod, or a description if there are none.
func (p *pod) modules() string {
	var s v1.Service
	if err := p.bed.Get("/v1/services/"+p.Service(), &s); err != nil {
		return err.Error()
	}
	var all []string
	for _, l := range s.Status.Links {
		for _, h := range l.Hooks {
			all = append(all, h.Modules...)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// await waits until the chains of the pod have these modules.
func (p *pod) await(want string) {
	p.bed.T.Helper()
	p.bed.Eventually(p.Name+" has modules "+want, func() bool { return p.modules() == want })
}

func (b *bed) agentModules() string {
	b.T.Helper()
	var all []v1.Module
	if err := b.Get("/v1/modules", &all); err != nil {
		b.T.Fatal(err)
	}
	var out []string
	for _, m := range all {
		out = append(out, m.Metadata.Name)
	}
	return strings.Join(out, " ")
}

func (b *bed) status() (out api.KerbNode) {
	b.T.Helper()
	if err := b.api.Call(http.MethodGet, nodesPath+"n1", nil, &out); err != nil || out.Status == nil {
		out.Status = &api.KerbNodeStatus{Conditions: []api.Condition{{}}}
	}
	return out
}

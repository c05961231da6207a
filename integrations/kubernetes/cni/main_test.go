// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// bin has kerb-cni, cnitool, and plugins of the CNI project.
var bin string

func TestMain(m *testing.M) {
	if targets := os.Getenv(floodTargets); targets != "" {
		os.Exit(flood(targets))
	}
	os.Exit(nodetest.Main(m, buildPlugins))
}

func buildPlugins(dir string) error {
	bin = filepath.Join(dir, "bin")
	err := gobuild.Build(filepath.Join(bin, "kerb-cni"), "github.com/kerb-edge/kerb/cmd/kerb-cni")
	for _, pkg := range []string{"main/bridge", "main/ptp", "ipam/host-local", "meta/portmap"} {
		err = errors.Join(err, gobuild.Build(filepath.Join(bin, filepath.Base(pkg)),
			"github.com/containernetworking/plugins/plugins/"+pkg))
	}
	return errors.Join(err, gobuild.Build(filepath.Join(bin, "cnitool"), "github.com/containernetworking/cni/cnitool"))
}

// cluster is a node whose pods have addresses of 10.77.0.0/16 and fd77::/64.
type cluster struct {
	*nodetest.Node
	runtime *libcni.CNIConfig
}

// newCluster starts an agent.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Node: nodetest.New(t)}
	c.runtime = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(c.Dir, "cache"), nil)
	c.Start()
	return c
}

// in returns the cluster for a subtest, which fails alone.
func (c *cluster) in(t *testing.T) *cluster {
	n := *c.Node
	n.T = t
	return &cluster{&n, c.runtime}
}

// applyAs applies resources of an owner.
func (c *cluster) applyAs(owner string, resources ...any) {
	c.T.Helper()
	c.Must(http.MethodPost, "/v1/apply?owner="+owner, resources, nil)
}

// admit does what kerb-kube-node does when it knows the labels of a pod.
func (c *cluster) admit(p *pod, labels map[string]string) {
	c.T.Helper()
	s := c.service(p)
	if s == nil {
		c.T.Fatalf("pod %s has no service", p.Name)
	}
	s.Metadata.Labels, s.Status = names.Admit(s.Metadata.Labels, labels), nil
	s.Metadata.Owner, s.Metadata.Generation, s.Metadata.ResourceVersion = "", 0, ""
	c.applyAs(names.OwnerPods, s)
}

// service returns the service of a pod, or nil.
func (c *cluster) service(p *pod) *v1.Service {
	c.T.Helper()
	var s v1.Service
	err := c.Get("/v1/services/"+p.Service(), &s)
	var no *client.StatusError
	if errors.As(err, &no) && no.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		c.T.Fatal(err)
	}
	return &s
}

// pod is a sandbox as a container runtime makes it.
type pod struct {
	names.Pod
	container, netns string
	addrs            []netip.Addr
}

func (p *pod) args() string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + p.Namespace + ";K8S_POD_NAME=" + p.Name +
		";K8S_POD_INFRA_CONTAINER_ID=" + p.container + ";K8S_POD_UID=" + p.UID
}

// sandbox makes the network namespace of a pod. Addresses are usable the moment they are set.
func (c *cluster) sandbox(name string) *pod {
	c.T.Helper()
	netns := c.Lab.Prefix() + "-" + name
	run(c.T, "ip", "netns", "add", netns)
	c.T.Cleanup(func() { run(c.T, "ip", "netns", "del", netns) })
	run(c.T, "ip", "netns", "exec", netns, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
	return &pod{Pod: names.Pod{Namespace: "shop", Name: name, UID: "uid-" + netns},
		container: strings.Repeat("c0ffee00", 7) + name, netns: "/run/netns/" + netns}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// network is a chain of plugins; with kerb, kerb-cni is the last one.
func (c *cluster) network(primary string, kerb bool) *libcni.NetworkConfigList {
	c.T.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(c.conflist(primary, kerb)))
	if err != nil {
		c.T.Fatal(err)
	}
	return list
}

func (c *cluster) conflist(primary string, kerb bool) string {
	main := `{"type": "ptp", "ipam": %s}`
	if primary == "bridge" {
		main = `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": %s}`
	}
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q,
		"ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`, filepath.Join(c.Dir, "ipam"))
	plugins := fmt.Sprintf(main, ipam) + `, {"type": "portmap", "capabilities": {"portMappings": true}}`
	if kerb {
		plugins += fmt.Sprintf(`, {"type": "kerb-cni", "socket": %q}`, c.Socket())
	}
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`, primary, plugins)
}

// inNode calls a method of libcni, which executes the plugins in the node's namespace, as a container runtime does.
func (c *cluster) inNode(p *pod, method func(context.Context, *libcni.RuntimeConf) error) error {
	rt := &libcni.RuntimeConf{ContainerID: p.container, NetNS: p.netns, IfName: "eth0"}
	for pair := range strings.SplitSeq(p.args(), ";") {
		key, value, _ := strings.Cut(pair, "=")
		rt.Args = append(rt.Args, [2]string{key, value})
	}
	return c.Lab.Node().Do(func() error { return method(c.T.Context(), rt) })
}

func (c *cluster) add(p *pod, list *libcni.NetworkConfigList) (result types.Result, err error) {
	return result, c.inNode(p, func(ctx context.Context, rt *libcni.RuntimeConf) error {
		result, err = c.runtime.AddNetworkList(ctx, list, rt)
		return err
	})
}

func (c *cluster) mustAdd(p *pod, list *libcni.NetworkConfigList) {
	c.T.Helper()
	result, err := c.add(p, list)
	if err != nil {
		c.T.Fatalf("ADD of %s: %v", p.Name, err)
	}
	all, err := types100.GetResult(result)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, ip := range all.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addrs = append(p.addrs, addr.Unmap())
	}
	c.T.Cleanup(func() { // before the namespace goes
		_ = c.del(p, list) // the primary's part may fail where a test has removed it
	})
}

func (c *cluster) del(p *pod, list *libcni.NetworkConfigList) error {
	return c.inNode(p, func(_ context.Context, rt *libcni.RuntimeConf) error {
		return c.runtime.DelNetworkList(context.Background(), list, rt)
	})
}

// answer is what kerb-cni prints, and how it ends.
type answer struct {
	stdout, stderr string
	status         int
	types.Error    // if it fails
}

// execution is one execution of kerb-cni without the plugins before it.
type execution struct {
	command, conf string
	env           map[string]string // instead of that of the pod
}

// call executes kerb-cni for a pod.
func (c *cluster) call(p *pod, e execution) answer {
	c.T.Helper()
	cmd := c.process(p, e)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.T.Fatal(err)
	}
	a := answer{stdout: stdout.String(), stderr: stderr.String(), status: cmd.ProcessState.ExitCode()}
	if a.status != 0 {
		if err := json.Unmarshal(stdout.Bytes(), &a.Error); err != nil {
			c.T.Errorf("%s failed with %q, which is no error of CNI: %v", e.command, stdout.String(), err)
		}
	}
	return a
}

func (c *cluster) process(p *pod, e execution) *exec.Cmd {
	cmd := c.Lab.Node().Command(context.Background(), filepath.Join(bin, "kerb-cni"))
	env := map[string]string{"CNI_COMMAND": e.command, "CNI_CONTAINERID": p.container, "CNI_NETNS": p.netns,
		"CNI_IFNAME": "eth0", "CNI_ARGS": p.args(), "CNI_PATH": bin}
	for key, value := range e.env {
		env[key] = value
	}
	for key, value := range env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Stdin = strings.NewReader(e.conf)
	return cmd
}

// conf is the configuration of kerb-cni as a runtime passes it, with a result of the plugins before.
func (c *cluster) conf(socket string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "kerb-cni", "socket": %q, "prevResult": %s}`,
		socket, prevResult)
}

// prevResult has a field, an order and spaces that only a copy byte by byte keeps.
const prevResult = `{ "cniVersion": "1.1.0", "x-vendor": [1, 2.50],  "interfaces": [{"sandbox": "/x", "name": "eth0"}], "dns": {} }`

// veth gives a pod an interface without any plugin.
func (c *cluster) veth(p *pod) {
	c.T.Helper()
	out, err := c.Lab.Node().Command(context.Background(), "ip", "link", "add", "h-"+p.Name, "up", "type", "veth",
		"peer", "name", "eth0", "netns", filepath.Base(p.netns)).CombinedOutput()
	if err != nil {
		c.T.Fatalf("%v: %s", err, out)
	}
}

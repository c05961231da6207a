// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// tool is cnitool of the CNI project for one pod of one network. The cache of libcni is one of the test's, as is
// everything else.
type tool struct {
	*cluster
	pod     *pod
	network string
	dir     string // configurations, and results of ADD
}

func (c *cluster) tool(p *pod, network, conflist string) tool {
	c.T.Helper()
	t := tool{c, p, network, c.T.TempDir()}
	if err := os.WriteFile(filepath.Join(t.dir, "00-kerb.conflist"), []byte(conflist), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return t
}

func (t tool) run(verb string) (stdout, stderr string, err error) {
	script := fmt.Sprintf("mkdir -p /var/lib/cni && mount --bind %s /var/lib/cni && exec %s/cnitool %s %s %s",
		t.dir, bin, verb, t.network, t.pod.netns)
	cmd := t.Lab.Node().Command(context.Background(), "unshare", "-m", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "NETCONFPATH="+t.dir, "CNI_PATH="+bin, "CNI_ARGS="+t.pod.args())
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	return string(out), said.String(), err
}

// must fails the test unless all verbs succeed.
func (t tool) must(verbs ...string) {
	t.T.Helper()
	for _, verb := range verbs {
		if out, said, err := t.run(verb); err != nil {
			t.T.Fatalf("cnitool %s: %v %s%s", verb, err, out, said)
		}
	}
}

// fails wants a verb to fail with a text.
func (t tool) fails(verb, text string) {
	t.T.Helper()
	if out, said, err := t.run(verb); err == nil || !strings.Contains(said, text) {
		t.T.Errorf("cnitool %s: %v, want %q, got %s%s", verb, err, text, out, said)
	}
}

// gone fails the test if the pod is a service.
func (t tool) gone(after string) {
	t.T.Helper()
	if s := t.service(t.pod); s != nil {
		t.T.Errorf("%s has left %+v", after, s)
	}
}

// cnitool runs all verbs of CNI on the chains of bridge and ptp with portmap and kerb-cni: each does what the
// specification says, and those that check fail when they have to.
func (c *cluster) testVerbs(t *testing.T, primary string) {
	c = c.in(t)
	p := c.sandbox("verbs-" + primary)
	cnitool := c.tool(p, primary, c.conflist(primary, true))
	cnitool.must("status")
	result, said, err := cnitool.run("add")
	if err != nil {
		t.Fatal(err, said)
	}
	var got types100.Result
	if err := json.Unmarshal([]byte(result), &got); err != nil || len(got.IPs) != 2 ||
		!slices.ContainsFunc(got.Interfaces, func(i *types100.Interface) bool { return i.Sandbox == p.netns }) {
		t.Errorf("ADD prints %s, not what the plugin before kerb-cni did: %v", result, err)
	}
	if s := c.service(p); s == nil || !names.IsPending(s.Metadata.Labels) {
		t.Errorf("ADD has made the pod %+v", s)
	}
	cnitool.must("check")
	c.admit(p, map[string]string{"app": "web"})
	cnitool.must("check", "status")
	c.Must(http.MethodDelete, "/v1/services/"+p.Service()+"?owner="+names.OwnerPods, nil, nil)
	cnitool.fails("check", p.Service()+" does not exist")
	cnitool.must("del", "del")

	cnitool.must("add")
	run(t, "ip", "netns", "del", filepath.Base(p.netns)) // DEL has to succeed without the namespace
	cnitool.must("del")
	cnitool.gone("DEL without a network namespace")
	run(t, "ip", "netns", "add", filepath.Base(p.netns))

	// What is left of a sandbox that the runtime has forgotten: neither its cache nor a DEL names it.
	cnitool.must("add")
	if err := os.RemoveAll(filepath.Join(cnitool.dir, "results")); err != nil {
		t.Fatal(err)
	}
	cnitool.must("gc")
	cnitool.gone("GC")

	away := c.tool(p, primary, strings.Replace(c.conflist(primary, true), c.Socket(), c.Socket()+"-none", 1))
	away.fails("status", "systemctl start kerb")
}

// VERSION needs nothing but the command, and names the versions that ADD is tested with.
func (c *cluster) testVersion(t *testing.T) {
	c = c.in(t)
	cmd := c.Lab.Node().Command(context.Background(), filepath.Join(bin, "kerb-cni"))
	cmd.Env, cmd.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion": "1.1.0"}`)
	out, err := cmd.Output()
	var got struct {
		Version   string   `json:"cniVersion"`
		Supported []string `json:"supportedVersions"`
	}
	if err != nil || json.Unmarshal(out, &got) != nil || got.Version != "1.1.0" ||
		!slices.Equal(got.Supported, versions) {
		t.Errorf("VERSION: %v %s", err, out)
	}
}

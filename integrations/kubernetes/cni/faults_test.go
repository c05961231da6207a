// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// What is wrong is refused with an error of CNI that says what to do, and leaves nothing.
func (c *cluster) testRefusals(t *testing.T) {
	c = c.in(t)
	p := c.sandbox("refused")
	c.veth(p)
	good := c.conf(c.Socket())
	before := c.services()
	args := func(name string) map[string]string {
		return map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_UID=u;K8S_POD_NAME=" + name}
	}
	netns := func(path string) map[string]string { return map[string]string{"CNI_NETNS": path} }
	for name, e := range map[string]struct {
		execution
		code uint
		text string
	}{
		"no JSON":         {execution{conf: "{"}, 6, "unexpected end"},
		"no result":       {execution{conf: strings.Replace(good, "prevResult", "x", 1)}, 7, "after the plugin that does"},
		"null":            {execution{conf: strings.Replace(good, prevResult, "null", 1)}, 7, "after the plugin that does"},
		"type of socket":  {execution{conf: `{"cniVersion": "1.1.0", "name": "pods", "socket": 5}`}, 6, "socket"},
		"name of network": {execution{conf: strings.Replace(good, `"pods"`, `"../pods"`, 1)}, 7, "network name"},
		"future version":  {execution{conf: strings.Replace(good, "1.1.0", "9.9.9", 1)}, 1, "incompatible"},
		"container":       {execution{conf: good, env: map[string]string{"CNI_CONTAINERID": "../c"}}, 4, "containerID"},
		"interface":       {execution{conf: good, env: map[string]string{"CNI_IFNAME": "eth0/.."}}, 4, "interface name"},
		"no namespace":    {execution{conf: good, env: netns("")}, 4, "CNI_NETNS"},
		"no such netns":   {execution{conf: good, env: netns("/run/netns/none")}, 101, "no such network namespace"},
		"file":            {execution{conf: good, env: netns("/etc/passwd")}, 101, "/etc/passwd"},
		"node's netns":    {execution{conf: good, env: netns("/proc/self/ns/net")}, 8, "hostNetwork"},
		"no pod":          {execution{conf: good, env: map[string]string{"CNI_ARGS": ""}}, 4, "K8S_POD_NAMESPACE"},
		"path":            {execution{conf: good, env: args("../../modules/policy")}, 4, "no name of Kubernetes"},
		"upper case":      {execution{conf: good, env: args("Web")}, 4, "no name of Kubernetes"},
		"header":          {execution{conf: good, env: args("a\r\nX: y")}, 4, "no name of Kubernetes"},
		"too long":        {execution{conf: good, env: args(strings.Repeat("a", 254))}, 4, "no name of Kubernetes"},
		"dash":            {execution{conf: good, env: args("-web")}, 4, "no name of Kubernetes"},
	} {
		e.command = "ADD"
		if got := c.call(p, e.execution); got.Code != e.code || !strings.Contains(got.Msg+got.Details, e.text) {
			t.Errorf("%s: %+v", name, got)
		}
		if after := c.services(); !slices.Equal(after, before) {
			t.Fatalf("%s: services were %v and are %v", name, before, after)
		}
	}
	// The UID may be any text, and a name may have 253 characters.
	long := args(strings.Repeat("a", 253) + ";K8S_POD_UID=../..")
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		if got := c.call(p, execution{command, good, long}); got.status != 0 || got.stderr != "" {
			t.Errorf("%s of a pod with a long name: %+v", command, got)
		}
	}
	if after := c.services(); !slices.Equal(after, before) {
		t.Errorf("services were %v and are %v", before, after)
	}
	for _, command := range []string{"DEL", "CHECK"} {
		if got := c.call(p, execution{command: command, conf: good}); (got.status == 0) != (command == "DEL") {
			t.Errorf("%s of a pod that is not known: %+v", command, got)
		}
	}
}

// services returns the names of all services.
func (c *cluster) services() (all []string) {
	c.T.Helper()
	var services []v1.Service
	c.Must("GET", "/v1/services", nil, &services)
	for _, s := range services {
		all = append(all, s.Metadata.Name)
	}
	return all
}

// gate stands between kerb-cni and the agent, and holds up one message: of each connection the request is one and the
// answer the next.
type gate struct {
	path, agent string
	hold, seen  int
	held        chan struct{} // closed when the message is there
	over        <-chan struct{}
}

func (c *cluster) newGate(hold int) *gate {
	c.T.Helper()
	g := &gate{path: filepath.Join(c.T.TempDir(), "gate.sock"), agent: c.Socket(), hold: hold, held: make(chan struct{}),
		over: c.T.Context().Done()}
	l, err := net.Listen("unix", g.path)
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.serve(conn) // kerb-cni sends one request at a time
		}
	}()
	return g
}

// serve passes a request on, and the answer back. After a message that is held up nothing follows.
func (g *gate) serve(conn net.Conn) {
	defer conn.Close()
	request := readRequest(conn)
	if g.isHeld() {
		return
	}
	agent, err := net.Dial("unix", g.agent)
	if err != nil {
		return
	}
	defer agent.Close()
	if _, err := agent.Write(request); err != nil {
		return
	}
	answer, err := io.ReadAll(agent)
	if err != nil || g.isHeld() {
		return
	}
	_, _ = conn.Write(answer)
}

// isHeld waits for the end of the test at the message that is held up: then the connection stays as it is.
func (g *gate) isHeld() bool {
	g.seen++
	if g.seen-1 != g.hold {
		return false
	}
	close(g.held)
	<-g.over
	return true
}

func readRequest(conn net.Conn) (request []byte) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		request = append(request, buffer[:n]...)
		head, body, complete := strings.Cut(string(request), "\r\n\r\n")
		if err != nil || complete && strings.Contains(head+"\r\n", fmt.Sprintf("Content-Length: %d\r\n", len(body))) {
			return request
		}
	}
}

// kerb-cni is killed at every message that it exchanges with the agent. The service is not there, or it denies; DEL,
// which runtimes call after a failed ADD, removes it, and the next ADD succeeds.
func (c *cluster) testKilled(t *testing.T) {
	c = c.in(t)
	p := c.sandbox("killed")
	c.veth(p)
	present := 0
	for step := 0; ; step++ {
		g := c.newGate(step)
		cmd := c.process(p, execution{command: "ADD", conf: c.conf(g.path)})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil || step != 2 || present != 1 { // one request: many pods start at once
				t.Errorf("ADD ends with %v after %d messages; after %d of them the service was there", err, step, present)
			}
			if got := c.call(p, execution{command: "DEL", conf: c.conf(c.Socket())}); got.status != 0 || c.service(p) != nil {
				t.Errorf("DEL: %+v, service %v", got, c.service(p))
			}
			return
		case <-g.held:
		}
		_ = cmd.Process.Kill()
		<-ended
		if s := c.service(p); s != nil {
			present++
			for _, h := range s.Status.Links[0].Hooks {
				if !slices.Equal(h.Modules, []string{names.Pending}) {
					t.Errorf("step %d: %s runs %v", step, h.Hook, h.Modules)
				}
			}
		}
		for _, command := range []string{"DEL", "ADD", "DEL"} {
			if got := c.call(p, execution{command: command, conf: c.conf(c.Socket())}); got.status != 0 {
				t.Fatalf("step %d, %s: %+v", step, command, got)
			}
		}
	}
}

// While the agent is away ADD and STATUS wait for it, DEL succeeds and leaves the service to GC, CHECK fails. So does
// STATUS in the end.
func (c *cluster) testAgentAway(t *testing.T) {
	c = c.in(t)
	p, waiting := c.sandbox("away"), c.sandbox("waiting")
	c.veth(p)
	c.veth(waiting)
	conf := c.conf(c.Socket())
	if got := c.call(p, execution{command: "ADD", conf: conf}); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	c.Kill()
	for command, code := range map[string]uint{"STATUS": 50, "CHECK": 11, "GC": 11} {
		got := c.call(p, execution{command: command, conf: conf})
		if got.Code != code || !strings.Contains(got.Msg, "systemctl start kerb") {
			t.Errorf("%s: %+v", command, got)
		}
	}
	got := c.call(p, execution{command: "DEL", conf: conf})
	if got.status != 0 || !strings.Contains(got.stderr, "remains until GC") {
		t.Errorf("DEL: %+v", got)
	}
	answers := map[string]chan answer{"ADD": make(chan answer, 1), "STATUS": make(chan answer, 1)}
	for command, answered := range answers {
		go func() { answered <- c.call(waiting, execution{command: command, conf: conf}) }()
	}
	time.Sleep(200 * time.Millisecond) // more than one attempt
	for command, answered := range answers {
		if len(answered) > 0 {
			t.Errorf("%s has not waited: %+v", command, <-answered)
			answered <- answer{}
		}
	}
	c.Start()
	for command, answered := range answers {
		if got := <-answered; got.status != 0 {
			t.Errorf("%s: %+v", command, got)
		}
	}
	if c.service(waiting) == nil {
		t.Error("ADD has made no service")
	}
	if c.service(p) == nil {
		t.Error("the service is gone although the agent was away at DEL")
	}
	if got := c.call(p, execution{command: "GC", conf: strings.Replace(conf, "prevResult", "x", 1)}); got.status != 0 {
		t.Errorf("GC: %+v", got)
	}
	if c.service(p) != nil || c.service(waiting) != nil {
		t.Error("GC has left services of attachments that the runtime does not know")
	}
}

// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

// lossy is a proxy in front of the agent that drops the response to the next POST /v1/apply. The agent executes the
// request immediately, or late: after the next POST /v1/delete.
type lossy struct {
	n       *node
	agent   *http.Transport
	forward httputil.ReverseProxy
	lose    atomic.Bool
	late    bool
	pending atomic.Pointer[delayed]
}

// delayed is a request that is executed late.
type delayed struct {
	*http.Request
	once sync.Once
}

// loseAnswers puts a proxy at the agent's socket.
func (n *node) loseAnswers(late bool) *lossy {
	n.T.Helper()
	path := n.Paths.Socket()
	if err := os.Rename(path, path+".agent"); err != nil {
		n.T.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		n.T.Fatal(err)
	}
	p := &lossy{n: n, agent: client.Unix(path + ".agent"), late: late}
	p.forward = httputil.ReverseProxy{Transport: p.agent, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "agent"
	}}
	s := &http.Server{Handler: p}
	go func() { _ = s.Serve(l) }()
	n.T.Cleanup(func() { s.Close() })
	return p
}

func (p *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/apply" && p.lose.CompareAndSwap(true, false):
		out := p.copyOf(r)
		if p.late {
			p.pending.Store(&delayed{Request: out})
		} else {
			p.perform(out)
		}
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/v1/delete":
		defer func() {
			if out := p.pending.Load(); out != nil {
				out.once.Do(func() { p.perform(out.Request) })
				p.pending.CompareAndSwap(out, nil)
			}
		}()
	}
	p.forward.ServeHTTP(w, r)
}

func (p *lossy) copyOf(r *http.Request) *http.Request {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.n.T.Error(err)
	}
	out, err := http.NewRequest(r.Method, "http://agent"+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		p.n.T.Error(err)
	}
	out.Header.Set("Content-Type", isJSON)
	return out
}

func (p *lossy) perform(r *http.Request) {
	answer, err := p.agent.RoundTrip(r)
	if err != nil {
		p.n.T.Error(err)
		return
	}
	defer answer.Body.Close()
	gone := p.late && answer.StatusCode == http.StatusBadRequest // the veth of the service is removed already
	if answer.StatusCode != http.StatusOK && !gone {
		p.n.T.Errorf("the agent refuses %s: %d", r.URL.Path, answer.StatusCode)
	}
}

// fails sends a request for which the agent's response is lost.
func (p *lossy) fails(path, body string) {
	p.n.T.Helper()
	p.lose.Store(true)
	var got response
	p.n.Eventually("the agent gets it in time", func() bool {
		got = p.n.do("POST", path, body)
		return !p.lose.Load() || !got.tooSlow()
	})
	if got.status != http.StatusInternalServerError {
		p.n.T.Errorf("POST %s: %+v", path, got)
	}
	if p.lose.Load() {
		p.n.T.Errorf("POST %s reached no agent", path)
	}
}

func (p *lossy) settled(what string, ok func() bool) {
	p.n.T.Helper()
	p.n.Eventually(what, func() bool { return p.pending.Load() == nil && ok() })
}

func (n *node) deployment(c *container, instance int, more string) string {
	return fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":%d%s}`, c.pid(), appName, instance, more)
}

// The agent has executed a request, or does so later, and its response is lost: the client has received an error, so
// nothing stays.
func TestLostAnswer(t *testing.T) {
	for name, late := range map[string]bool{"carried out": false, "carried out late": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			register(n)
			p, c := n.loseAnswers(late), n.container()
			p.fails("/ebpf", `{"name":"packetCounter"}`)
			if got := n.must("GET", "/ebpf", ""); got != "[]" {
				t.Errorf("a module that failed is listed: %s", got)
			}
			p.settled("the module is removed", func() bool { return len(list[v1.Module](n, "module")) == 0 })

			const sla = `,"portMappings":"8000:80","ebpfModules":[{"name":"firewall"},{"name":"packetCounter"}]`
			p.fails("/container/deploy", n.deployment(c, 0, sla))
			p.settled("the service is removed", func() bool {
				services, modules := list[v1.Service](n, "service"), list[v1.Module](n, "module")
				return len(services)+len(modules)+len(n.tables()) == 0 && cmp.Equal(n.links(), []string{"oakbr"})
			})
			c.deploy(appName, 0, sla)
			var got []string
			p.settled("the modules of the deployment alone are left", func() bool {
				got = moduleNames(list[v1.Module](n, "module"))
				return len(got) == 2
			})
			for _, former := range []string{"oakestra-0", "oakestra-1", "oakestra-2"} {
				if slices.Contains(got, former) {
					t.Errorf("ids are reused: %v", got)
				}
			}
		})
	}
}

// A failed deployment of an instance does not change the modules of another one.
func TestLostAnswerOfAnUpdate(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a.deploy(appName, 0, `,"ebpfModules":[{"name":"firewall","config":{"defaultPolicy":{"ingress":"allow"}}}]`)
	before := list[v1.Module](n, "module")[0].Spec
	p := n.loseAnswers(false)
	p.fails("/container/deploy", n.deployment(b, 1, `,"ebpfModules":[{"name":"firewall"},{"name":"packetCounter"}]`))
	p.settled("modules are as before", func() bool {
		all := list[v1.Module](n, "module")
		return len(all) == 1 && cmp.Equal(all[0].Spec, before) && len(list[v1.Service](n, "service")) == 1
	})
}

// A process that is killed before it has a response leaves no module behind.
func TestKilledBeforeTheAnswer(t *testing.T) {
	n := newNode(t)
	register(n)
	n.must("POST", "/ebpf", `{"name":"packetCounter"}`)
	n.Kill()
	path := n.Oakestra()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := strings.Replace(string(data), `"priority":1,`, `"priority":1,"pending":"create",`, 1)
	if cut == string(data) {
		t.Fatalf("no module in %s", data)
	}
	if err := os.WriteFile(path, []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if all := list[v1.Module](n, "module"); len(all) != 0 || n.must("GET", "/ebpf", "") != "[]" {
		t.Errorf("modules after a restart: %v", moduleNames(all))
	}
}

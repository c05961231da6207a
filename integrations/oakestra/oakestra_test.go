// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

func addrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

const (
	isJSON = "application/json"
	isText = "text/plain; charset=utf-8"
)

// TestDocumentedRequests replays requests with the responses that clients of Oakestra's eBPF manager expect.
func TestDocumentedRequests(t *testing.T) {
	n := newNode(t)
	for i, step := range []struct {
		request, body string
		status        int
		kind, answer  string
	}{
		{"GET /ebpf", "", 200, isJSON, `[]`},
		{"DELETE /ebpf", "", 200, "", ""},
		{"DELETE /ebpf/0", "", 200, "", ""},
		{"GET /ebpf/0", "", 404, isText, "no ebpf module with id 0 exists\n"},
		{"GET /ebpf/zero", "", 400, isText, "\"zero\" is not the id of a module\n"},
		{"DELETE /ebpf/zero", "", 400, isText, "\"zero\" is not the id of a module\n"},
		{"POST /ebpf", `{"name":"packetCounter","config":{"b":[1,"x"],"a":{}}}`, 200, isJSON,
			`{"id":0,"name":"packetCounter","priority":1,"config":{"a":{},"b":[1,"x"]}}`},
		{"POST /ebpf", `{"name":"firewall"}`, 200, isJSON, `{"id":1,"name":"firewall","priority":2,"config":null}`},
		{"POST /ebpf", `{"name":"packetCounter","config":{}}`, 200, isJSON,
			`{"id":2,"name":"packetCounter","priority":3,"config":{}}`},
		{"GET /ebpf", "", 200, isJSON, `[{"id":0,"name":"packetCounter","priority":1,"config":{"a":{},"b":[1,"x"]}},` +
			`{"id":1,"name":"firewall","priority":2,"config":null},{"id":2,"name":"packetCounter","priority":3,"config":{}}]`},
		{"GET /ebpf/1", "", 200, isJSON, `{"id":1,"name":"firewall","priority":2,"config":null}`},
		{"GET /ebpf/1/alive", "", 200, "", ""},
		{"GET /ebpf/7/alive", "", 404, isText, "no ebpf module with id 7 exists\n"},
		{"GET /ebpf/0/counts", "", 200, isJSON, `{}`},
		{"POST /ebpf/1/rule", `{"srcIp":"10.18.0.2","dstIp":"10.18.0.3","proto":"UDP","scrPort":1000,"dstPort":2000}`,
			200, "", ""},
		{"POST /ebpf/1/rule", `{"srcIp":"10.18.0.2","dstIp":"10.18.0.3","proto":"TCP","srcPort":1000,"dstPort":2000}`,
			200, "", ""},
		{"POST /ebpf/1/rule", `{"srcIp":"10.18.0.2","dstIp":"10.18.0.3","proto":"ICMP","scrPort":0,"dstPort":0}`,
			200, "", ""},
		{"POST /ebpf/1/rule", `{"srcIp":`, 400, isText, "not the JSON of this request: unexpected EOF\n"},
		{"POST /ebpf/0/rule", `{}`, 404, isText, ""},
		{"DELETE /ebpf/1", "", 200, "", ""},
		{"GET /ebpf/1", "", 404, isText, "no ebpf module with id 1 exists\n"},
		{"POST /ebpf", `{"name":`, 400, isText, "not the JSON of this request: unexpected EOF\n"},
		{"POST /ebpf", `{"name":"router","config":{}}`, 500, isText,
			""},
		{"POST /ebpf", `{"name":"/etc/kerb/packages/x"}`, 500, isText, ""},
		{"POST /ebpf", `{"name":"counter"}`, 200, isJSON, `{"id":4,"name":"counter","priority":5,"config":null}`},
		{"POST /ebpf", `{"name":"firewall","config":{"colour":"red"}}`, 500, isText, ""},
		{"POST /ebpf", `{"name":"firewall","config":7}`, 500, isText, "Error creating Ebpf: config is not an object\n"},
		{"POST /ebpf", `{"name":"firewall","config":{}}`, 200, isJSON, `{"id":6,"name":"firewall","priority":7,"config":{}}`},
		{"DELETE /ebpf", "", 200, "", ""},
		{"GET /ebpf", "", 200, isJSON, `[]`},
		{"POST /ebpf", `{"name":"packetCounter","config":null}`, 200, isJSON,
			`{"id":7,"name":"packetCounter","priority":8,"config":null}`},
	} {
		method, path, _ := strings.Cut(step.request, " ")
		got := n.do(method, path, step.body)
		if step.answer == "" && step.status > 400 {
			got.body = "" // the agent's text
		}
		if want := (response{step.status, step.kind, step.answer}); got != want {
			t.Errorf("%d: %s %s\ngot  %+v\nwant %+v", i, step.request, step.body, got, want)
		}
	}
}

func TestProxyNeedsItsPackage(t *testing.T) {
	n := newNode(t)
	got := n.do("POST", "/ebpf", `{"name":"proxy","config":{}}`)
	there := slices.ContainsFunc(list[v1.Package](n, "package"), func(p v1.Package) bool { return p.Name == "proxy" })
	if there && got.status != 200 || !there && (got.status != 500 || !strings.Contains(got.body, "proxy")) {
		t.Errorf("with a package %v: %+v", there, got)
	}
}

const appName = "shop.test.web.test"

func register(n *node) {
	n.T.Helper()
	n.must("POST", "/register", `{"client_id":"w1","cluster_address":"192.0.2.1"}`)
}

// TestNodeEngine simulates NodeEngine with 50 services, and kills the agent in between.
func TestNodeEngine(t *testing.T) {
	const services = 50
	n := newNode(t)
	register(n)
	n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`)
	containers := make([]*container, services)
	addresses := map[string]bool{}
	deploy := func(i int) {
		containers[i] = n.container()
		four, six := containers[i].deploy(appName, i, "")
		if addresses[four] || addresses[six] || !netip.MustParsePrefix("10.18.0.0/26").Contains(netip.MustParseAddr(four)) {
			t.Fatalf("service %d got %s and %s", i, four, six)
		}
		addresses[four], addresses[six] = true, true
	}
	for i := range services / 2 {
		deploy(i)
	}
	n.Kill()
	n.start()
	if got := n.must("GET", "/ebpf", ""); got != `[{"id":0,"name":"packetCounter","priority":1,"config":{}}]` {
		t.Errorf("after a restart: %s", got)
	}
	for i := services / 2; i < services; i++ {
		deploy(i)
	}
	if all := list[v1.Service](n, "service"); len(all) != services {
		t.Fatalf("the agent has %d services, want %d", len(all), services)
	}
	n.checkTraffic(containers[0], containers[services-1])
	if got := n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`); !strings.HasPrefix(got, `{"id":1,`) {
		t.Errorf("an id was reused: %s", got)
	}
	for i := range services {
		n.undeploy(appName, i)
		n.undeploy(appName, i) // a repeated undeploy is no error
	}
	if all, links := list[v1.Service](n, "service"), n.links(); len(all) != 0 || !cmp.Equal(links, []string{"oakbr"}) {
		t.Errorf("left after all undeploys: %v, %v", all, links)
	}
	if got := n.must("GET", "/ebpf/0/counts", ""); got != "{}" {
		t.Errorf("counts without services: %s", got)
	}
}

// checkTraffic sends between the two services, and checks the module's counts.
func (n *node) checkTraffic(a, b *container) {
	n.T.Helper()
	from, to := a.listen("10.18.0.2:1000"), b.listen("10.18.0.51:2000")
	if !arrives(from, to, manyTries) {
		n.T.Fatal("the first service does not reach the last")
	}
	from6, to6 := a.listen("[fc00::2]:1000"), b.listen("[fc00::33]:2000")
	if !arrives(from6, to6, manyTries) {
		n.T.Error("not over IPv6")
	}
	var counts map[string]map[string]int
	if err := json.Unmarshal([]byte(n.must("GET", "/ebpf/0/counts", "")), &counts); err != nil {
		n.T.Fatal(err)
	}
	first, last := n.counted(counts, "-2"), n.counted(counts, "-51")
	if len(counts) != 50 || first["egress"] == 0 || last["ingress"] == 0 {
		n.T.Errorf("counts of %d interfaces, first %v, last %v", len(counts), first, last)
	}
}

func (n *node) counted(counts map[string]map[string]int, suffix string) map[string]int {
	for name, c := range counts {
		if strings.HasSuffix(name, suffix) {
			return c
		}
	}
	return nil
}

func TestFirewallIsAnAllowList(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a4, _ := a.deploy(appName, 0, "")
	b4, _ := b.deploy(appName, 1, "")
	from, to := a.listen(a4+":1000"), b.listen(b4+":2000")
	if !arrives(from, to, manyTries) {
		t.Fatal("nothing arrives without a firewall")
	}
	n.must("POST", "/ebpf", `{"name":"firewall","config":{}}`)
	if arrives(from, to, fewTries) {
		t.Error("a packet passes a firewall without rules")
	}
	rule := func(proto, src string, srcPort int, dst string, dstPort int) {
		n.must("POST", "/ebpf/0/rule", fmt.Sprintf(`{"srcIp":%q,"dstIp":%q,"proto":%q,"scrPort":%d,"dstPort":%d}`, src, dst,
			proto, srcPort, dstPort))
	}
	rule("TCP", a4, 1000, b4, 2000)
	if arrives(from, to, fewTries) {
		t.Error("a rule for TCP passes UDP: proto is ignored")
	}
	rule("UDP", a4, 1000, b4, 2000)
	if !arrives(from, to, manyTries) {
		t.Error("the rule does not pass the packet")
	}
	if arrives(to, from, fewTries) {
		t.Error("a reply passes without a rule")
	}
	rule("UDP", b4, 2000, a4, 1000)
	if !arrives(to, from, manyTries) {
		t.Error("the rule for replies does not pass them")
	}
	rule("UDP", b4, 2000, a4, 1000) // a duplicate
	m := list[v1.Module](n, "module")
	if rules, _ := m[0].Spec.Config["rules"].([]any); len(rules) != 3 {
		t.Errorf("rules: %v", rules)
	}
}

func TestModulesOfTheSLA(t *testing.T) {
	n := newNode(t)
	register(n)
	n.must("POST", "/ebpf", `{"name":"packetCounter","config":{}}`)
	const sla = `,"ebpfModules":[{"name":"firewall","config":{"rules":[]}},{"name":"packetCounter"}]`
	a, b, other := n.container(), n.container(), n.container()
	a.deploy(appName, 0, sla)
	b.deploy(appName, 1, sla)
	other.deploy("other.test.db.test", 0, "")
	if got := moduleNames(list[v1.Module](n, "module")); len(got) != 3 { // a slow deployment uses up ids
		t.Fatalf("modules: %v", got)
	}
	for _, m := range list[v1.Module](n, "module")[1:] {
		for _, i := range m.Status.Attachments {
			if !strings.HasPrefix(i.Service, "oak-shop-") {
				t.Errorf("%s runs for %s", m.Metadata.Name, i.Service)
			}
		}
		if len(m.Status.Attachments) == 0 {
			t.Errorf("%s runs nowhere", m.Metadata.Name)
		}
	}
	n.undeploy(appName, 0)
	if got := moduleNames(list[v1.Module](n, "module")); len(got) != 3 {
		t.Errorf("with one instance left: %v", got)
	}
	n.undeploy(appName, 1)
	if got := moduleNames(list[v1.Module](n, "module")); !cmp.Equal(got, []string{"oakestra-0"}) {
		t.Errorf("with none left: %v", got)
	}
	c := n.container()
	bad := fmt.Sprintf(
		`{"pid":%d,"serviceName":%q,"instanceNumber":2,"ebpfModules":[{"name":"packetCounter"},{"name":"router"}]}`,
		c.pid(), appName)
	if got := n.do("POST", "/container/deploy", bad); got.status != 400 {
		t.Errorf("an unknown module: %+v", got)
	}
	if all, links := list[v1.Service](n, "service"), n.links(); len(all) != 1 || len(links) != 2 {
		t.Errorf("left of a failed deployment: %d services, %v", len(all), links)
	}
	if got := n.must("GET", "/ebpf", ""); got != `[{"id":0,"name":"packetCounter","priority":1,"config":{}}]` {
		t.Errorf("left of a failed deployment: %s", got)
	}
}

func TestRemovedNamespaces(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a.deploy(appName, 0, `,"ebpfModules":[{"name":"packetCounter"}]`)
	b.deploy(appName+"2", 0, `,"ebpfModules":[{"name":"packetCounter"}]`)
	a.end()
	n.Eventually("a service that has ended is cleared away", func() bool {
		return len(list[v1.Service](n, "service")) == 1 && len(list[v1.Module](n, "module")) == 1
	})
	n.Kill()
	b.end()
	n.Eventually("the kernel has removed the veth", func() bool { return len(n.links()) == 1 })
	n.start()
	if s, m := list[v1.Service](n, "service"), list[v1.Module](n, "module"); len(s)+len(m) != 0 {
		t.Errorf("after a restart: %v %v", s, m)
	}
}

func TestRedeploy(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	four, _ := a.deploy(appName, 0, "")
	if again, _ := a.deploy(appName, 0, ""); again != four {
		t.Errorf("the same request got %s, then %s", four, again)
	}
	if next, _ := b.deploy(appName, 0, ""); next == four {
		t.Errorf("a new container reuses the address %s, which neighbours associate with the old one", next)
	}
	if s, links := list[v1.Service](n, "service"), n.links(); len(s) != 1 || len(links) != 2 {
		t.Errorf("after a redeployment: %d services, %v", len(s), links)
	}
}

func TestBadInput(t *testing.T) {
	n := newNode(t)
	pid := n.container().pid()
	early := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":0}`, pid, appName)
	if got := n.do("POST", "/container/deploy", early); got.status != 400 ||
		!strings.Contains(got.body, "not registered") {
		t.Errorf("before the registration: %+v", got)
	}
	register(n)
	n.must("POST", "/ebpf", `{"name":"firewall"}`)
	for _, c := range []struct{ path, body, says string }{
		{"/register", `{`, "JSON"},
		{"/register", `{"client_id":""}`, "client_id"},
		{"/register", `{"client_id":"w1","mode":"p2p"}`, "mode"},
		{"/container/deploy", `null x`, "JSON"},
		{"/container/deploy", `{"pid":"1"}`, "JSON"},
		{"/container/deploy", strings.Replace(early, appName, "web", 1), "serviceName"},
		{"/container/deploy", strings.Replace(early, appName, "../../a.b.c.d", 1), "serviceName"},
		{"/container/deploy", strings.Replace(early, `r":0`, `r":-1`, 1), "instanceNumber"},
		{"/container/deploy", `{"pid":0,"serviceName":"a.b.c.d"}`, "pid"},
		{"/container/deploy", `{"pid":-1,"serviceName":"a.b.c.d"}`, "pid"},
		{"/container/deploy", `{"pid":2147483647,"serviceName":"a.b.c.d"}`, "pid"},
		{"/container/deploy", fmt.Sprintf(`{"pid":%d,"serviceName":"a.b.c.d"}`, n.PID()), "node's own"},
		{"/container/deploy", strings.Replace(early, `0}`, `0,"portMappings":"80:x/tcp"}`, 1), "portMappings"},
		{"/container/deploy", strings.Replace(early, `0}`, `0,"portMappings":"80:0"}`, 1), "portMappings"},
		{"/container/deploy", strings.Replace(early, `0}`, `0,"portMappings":"80:80/sctp"}`, 1), "tcp nor udp"},
		{"/container/deploy", strings.Replace(early, `0}`, `0,"portMappings":"80:81;80:82/tcp"}`, 1), "two destinations"},
		{"/container/undeploy", `[]`, "JSON"},
		{"/ebpf/0/rule", `{}`, "srcIp"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.300"}`, "dstIp"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"fc00::1","scrPort":1,"dstPort":1}`, "versions"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.2","proto":"SCTP","scrPort":1,"dstPort":1}`, "proto"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.2","proto":"UDP","dstPort":1}`, "srcPort"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.2","scrPort":1,"srcPort":2,"dstPort":1}`, "srcPort"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.2","scrPort":65536,"dstPort":1}`, "JSON"},
		{"/ebpf/0/rule", `{"srcIp":"10.0.0.1","dstIp":"10.0.0.2","proto":"ICMP","scrPort":1}`, "ports"},
	} {
		if got := n.do("POST", c.path, c.body); got.status != 400 || !strings.Contains(got.body, c.says) {
			t.Errorf("%s %s: %+v, want 400 and %q", c.path, c.body, got, c.says)
		}
	}
	if s, links := list[v1.Service](n, "service"), n.links(); len(s) != 0 || len(links) != 0 {
		t.Errorf("invalid requests have created %v, %v", s, links)
	}
}

// The agent runs without an integration that cannot start, and reports the reason.
func TestDamagedFileIsNotOverwritten(t *testing.T) {
	n := newNode(t)
	n.Kill()
	path := n.Oakestra()
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Start()
	n.Eventually("the condition says why", func() bool {
		c := n.condition()
		return c.Status == "False" && strings.Contains(c.Message, path+" is damaged")
	})
	if data, _ := os.ReadFile(path); string(data) != "{" {
		t.Errorf("the file has become %q", data)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.Eventually("it starts without the file", func() bool { return n.answersAgain() && n.condition().Status == "True" })
}

func TestLostFile(t *testing.T) {
	n := newNode(t)
	register(n)
	n.container().deploy(appName, 0, `,"ebpfModules":[{"name":"packetCounter"}]`)
	n.must("POST", "/ebpf", `{"name":"packetCounter"}`)
	n.Kill()
	if err := os.Remove(n.Oakestra()); err != nil {
		t.Fatal(err)
	}
	n.start()
	if got := n.must("GET", "/ebpf", ""); got != `[{"id":1,"name":"packetCounter","priority":2,"config":null}]` {
		t.Errorf("modules: %s", got)
	}
	if s := list[v1.Service](n, "service"); len(s) != 0 || !cmp.Equal(n.links(), []string{"oakbr"}) {
		t.Errorf("services: %v, links %v", s, n.links())
	}
}

// TestCutShort kills (SIGKILL) in the middle of a deployment: NodeEngine got no response, so nothing of it may stay.
func TestCutShort(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a.deploy(appName, 0, "")
	b.deploy(appName, 1, "")
	n.Kill()
	path := n.Oakestra()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := string(data)
	cut := strings.Replace(whole, `"ready":true`, `"ready":false`, 1)
	if cut == whole {
		t.Fatalf("no deployment is ready in %s", whole)
	}
	if err := os.WriteFile(path, []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if s, links := list[v1.Service](n, "service"), n.links(); len(s) != 1 || len(links) != 2 {
		t.Errorf("after a restart: %d services, %v", len(s), links)
	}
	a.deploy(appName, 0, "") // and it can be repeated
}

func TestForeignBridge(t *testing.T) {
	n := newNode(t)
	register(n)
	err := n.Lab.Node().Do(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "oakbr"}})
	})
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":0}`, n.container().pid(), appName)
	if got := n.do("POST", "/container/deploy", body); got.status != 500 ||
		!strings.Contains(got.body, "oakestra.bridge") {
		t.Errorf("got %+v", got)
	}
	n.Kill()
	if n.Purge(); !cmp.Equal(n.links(), []string{"oakbr"}) {
		t.Errorf("after a purge these links remain: %v", n.links())
	}
	err = n.Lab.Node().Do(func() error {
		return netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "oakbr"}})
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWebPagesAreRefused(t *testing.T) {
	n := newNode(t)
	r, err := http.NewRequest("POST", "http://node/ebpf", strings.NewReader(`{"name":"firewall"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Origin", "https://example.org")
	got, err := n.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	if all := n.must("GET", "/ebpf", ""); got.StatusCode != 403 || all != "[]" {
		t.Errorf("a page of another site got %d and created %s", got.StatusCode, all)
	}
}

func TestTCP(t *testing.T) {
	n := newNode(t)
	n.Kill()
	n.Configure(fmt.Sprintf("oakestra: {socket: %q, tcp: '127.0.0.1:6000', bridge: oakbr, "+
		"netManager: /none, subnet: 10.18.0.0/26}\n", n.OakestraSocket()))
	n.start()
	var c net.Conn
	err := n.Lab.Node().Do(func() (err error) { c, err = net.Dial("tcp", "127.0.0.1:6000"); return })
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, "GET /ebpf HTTP/1.0\r\n\r\n")
	answer, readErr := io.ReadAll(c)
	if c.Close(); err != nil || readErr != nil || !strings.HasSuffix(string(answer), "\r\n\r\n[]") {
		t.Errorf("%v %v %q", err, readErr, answer)
	}
}

// NodeEngine finds the integration on NetManager's default socket, and NetManager's configuration is used. A running
// NetManager keeps its socket.
func TestDefaultSocket(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	socket := dir + "/netmanager.sock"
	if err := os.WriteFile(dir+"/tuncfg.json", []byte(`{"MTUsize":1400}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	n.Configure(strings.Replace(oakestraConfig, "/none", dir, 1))
	n.start()
	n.client.Transport = client.Unix(socket)
	register(n)
	c := n.container()
	c.deploy(appName, 0, "")
	if err := c.do(func() error {
		i, err := net.InterfaceByName("oakestra0")
		if err == nil && i.MTU != 1400 {
			t.Errorf("the MTU is %d", i.MTU)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	n.undeploy(appName, 0)
	n.Stop()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n.client.Transport = client.Unix(n.OakestraSocket())
	n.start()
	if text := n.Log(); !strings.Contains(text, "NodeEngine's default socket is not served") {
		t.Errorf("no warning about the other owner of the socket:\n%s", text)
	}
}

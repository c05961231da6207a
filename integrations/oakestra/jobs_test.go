// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// abstractor simulates the cluster's resource abstractor, with jobs as it stores them.
type abstractor struct {
	port int
	mu   sync.Mutex
	jobs map[string]string
}

func newAbstractor(n *node) *abstractor {
	a := &abstractor{jobs: map[string]string{}}
	var l net.Listener
	if err := n.Lab.Node().Do(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		n.T.Fatal(err)
	}
	a.port = l.Addr().(*net.TCPAddr).Port
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/jobs/{$}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8") // as the real one's
		fmt.Fprintf(w, "[%s]", a.jobs[r.URL.Query().Get("job_name")])
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	n.T.Cleanup(func() { server.Close() })
	return a
}

func (a *abstractor) set(app, modules string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.jobs[app] = fmt.Sprintf(`{"_id": "66", "job_name": %q, "instance_list": [], "image": "x", "ebpfModules": %s}`, app,
		modules)
}

// jobText returns a job as the cluster manager publishes it.
func jobText(app string, instance int, modules string) string {
	return fmt.Sprintf(`{"_id": "6650000000000000000000e1", "job_name": %q, "applicationID": "1", "image": "x", `+
		`"instance_list": [{"instance_number": 0, "worker_id": "w1"}], "port": "80:80", "ebpfModules": %s, `+
		`"instance_number": %d}`, app, modules, instance)
}

// modulesFor returns the names of the modules of one service in the order of their ids.
func (n *node) modulesFor(app string) (names []string) {
	for _, m := range list[v1.Module](n, "module") {
		if m.Spec.Attach.Services == "oakestra.io/service="+app {
			names = append(names, m.Metadata.Labels["oakestra.io/module"])
		}
	}
	return names
}

// TestModulesOfJobs deploys services whose modules come with the cluster manager's message, or from the abstractor.
func TestModulesOfJobs(t *testing.T) {
	n, c := newClusterNode(t, "")
	a := newAbstractor(n)
	n.Kill()
	n.Configure(strings.Replace(n.config(), "oakbr", fmt.Sprintf("oakbr, abstractorPort: %d", a.port), 1))
	n.start()
	n.must("POST", "/register", `{"client_id":"w1","cluster_address":"127.0.0.1"}`)
	deployed := func(app, reason string, want ...string) {
		t.Helper()
		n.container().deploy(app, 0, "")
		if got := n.modulesFor(app); !cmp.Equal(got, want) {
			t.Errorf("%s: %v, want %v", reason, got, want)
		}
	}
	send := func(app, modules string) {
		t.Helper()
		c.Forge("nodes/w1/control/deploy", jobText(app, 0, modules))
		n.Eventually("the job is stored", func() bool {
			state, _ := os.ReadFile(n.Oakestra())
			_, jobs, _ := strings.Cut(string(state), `"jobs":`)
			return strings.Contains(jobs, app)
		})
	}
	send("a.t.message.t", `[{"name": "packetCounter", "config": {}}, {"name": "counter"}]`)
	deployed("a.t.message.t", "the message", "packetCounter", "counter")
	send("a.t.killed.t", `[{"name": "counter"}]`)
	n.killProcess()
	n.Eventually("the listener answers", n.answersAgain)
	deployed("a.t.killed.t", "killed between message and deployment", "counter")
	send("a.t.again.t", `[{"name": "counter"}]`)
	again := n.container()
	again.deploy("a.t.again.t", 0, "")
	send("a.t.again.t", `[{"name": "counter"}]`)
	again.deploy("a.t.again.t", 0, "")
	if state, _ := os.ReadFile(n.Oakestra()); strings.Contains(string(state), `"jobs":`) {
		t.Errorf("a job of what is deployed is kept: %s", state)
	}
	a.set("a.t.missed.t", `[{"name": "packetCounter"}]`)
	deployed("a.t.missed.t", "a message that was missed", "packetCounter")
	deployed("a.t.plain.t", "a service that the cluster does not know")

	send("a.t.wrong.t", `"firewall"`)
	box := n.container()
	refused := func(app string, want ...string) {
		t.Helper()
		got := n.do("POST", "/container/deploy", fmt.Sprintf(`{"pid":%d,"serviceName":%q}`, box.pid(), app))
		for _, text := range want {
			if got.status == 200 || !strings.Contains(got.body, text) {
				t.Errorf("%s: %+v, want %q", app, got, text)
			}
		}
	}
	refused("a.t.wrong.t", "the SLA of the service: ebpfModules: ")
	send("a.t.unknown.t", `[{"name": "no-such-package"}]`)
	refused("a.t.unknown.t", "no-such-package")

	n.Kill()
	n.Configure(strings.Replace(n.config(), "oakbr", "oakbr, requireModules: true", 1))
	n.start()
	refused("a.t.other.t", "oakestra.requireModules", "has no such service")
	a.set("a.t.other.t", `[]`)
	deployed("a.t.other.t", "a service without modules")
}

// TestModulesAreKept deploys an instance again, without its modules: the service keeps them, whether or not it has to
// be connected again, also if the cluster cannot be queried.
func TestModulesAreKept(t *testing.T) {
	n := newNode(t)
	register(n)
	box := n.container()
	box.deploy(appName, 0, `,"ebpfModules":[{"name":"firewall","config":{"rules":[]}},{"name":"counter"}]`)
	for reason, again := range map[string]func(){
		"the same request":             func() { box.deploy(appName, 0, "") },
		"the same process, more ports": func() { box.deploy(appName, 0, `,"portMappings":"8080:80"`) },
		"another process":              func() { n.container().deploy(appName, 0, "") },
		"another instance":             func() { n.container().deploy(appName, 1, "") },
	} {
		again()
		if got := n.modulesFor(appName); !cmp.Equal(got, []string{"firewall", "counter"}) {
			t.Errorf("%s: modules %v", reason, got)
		}
		n.undeploy(appName, 1)
		box.deploy(appName, 0, `,"ebpfModules":[{"name":"firewall","config":{"rules":[]}},{"name":"counter"}]`)
	}
}

func (n *node) config() string {
	text, err := os.ReadFile(n.Config)
	if err != nil {
		n.T.Fatal(err)
	}
	return string(text)
}

// TestFirstPacket sends from a container as soon as its interface exists: its firewall must filter the first packet.
func TestFirstPacket(t *testing.T) {
	n := newNode(t)
	register(n)
	n.container().deploy("other.test.db.test", 0, "") // creates the bridge
	passed := n.sniff("oakbr")
	for i := range 5 {
		box := n.container()
		stop, sent := make(chan struct{}), make(chan int)
		go func() { sent <- box.flood(stop) }()
		box.deploy(appName, i, `,"ebpfModules":[{"name":"firewall","config":{}}]`)
		close(stop)
		if <-sent == 0 {
			t.Fatal("nothing was sent")
		}
	}
	if passed() {
		t.Fatal("a packet passed before the firewall was attached")
	}
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

const flooded = "kerb first packet"

// flood sends UDP packets as soon as the interface of the service exists; it returns how many.
func (c *container) flood(stop chan struct{}) (sent int) {
	err := c.do(func() error {
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		payload := len(flooded)
		frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0,
			0x45, 0, 0, byte(28 + payload), 0, 0, 0, 0, 64, 17, 0, 0, 10, 18, 0, 9, 10, 18, 0, 2,
			0x10, 0, 0x20, 0, 0, byte(8 + payload), 0, 0}, flooded...)
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			i, err := net.InterfaceByName("oakestra0")
			if err != nil {
				time.Sleep(100 * time.Microsecond) // sets the packet rate; waits for nothing
				continue
			}
			for range 100 {
				if unix.Sendto(s, frame, 0, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IP), Ifindex: i.Index}) == nil {
					sent++
				}
			}
		}
	})
	if err != nil {
		c.n.T.Error(err)
	}
	return sent
}

// TestOwner checks that the integration owns what it creates, and that what a user takes over by force remains the
// user's, also after a start, and the node continues to deploy.
func TestOwner(t *testing.T) {
	n := newNode(t)
	register(n)
	n.container().deploy(appName, 0, `,"ebpfModules":[{"name":"firewall"},{"name":"packetCounter"}]`)
	if out, err := n.Command(t.Context(), "module", "delete", "oakestra-0").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "oakestra") {
		t.Errorf("a user deletes the firewall of a service: %v %s", err, out)
	}
	owners := func(want ...string) {
		t.Helper()
		var all []string
		for _, m := range list[v1.Module](n, "module") {
			all = append(all, m.Metadata.Name+" "+m.Metadata.Owner)
		}
		for _, s := range list[v1.Service](n, "service") {
			all = append(all, "service "+s.Metadata.Owner)
		}
		if !cmp.Equal(all, want) {
			t.Errorf("owners %q, want %q", all, want)
		}
	}
	owners("oakestra-0 oakestra", "oakestra-1 oakestra", "service oakestra")
	module, service := list[v1.Module](n, "module")[0], list[v1.Service](n, "service")[0]
	module.Status, service.Status, module.Metadata.Owner, service.Metadata.Owner = nil, nil, "", ""
	n.Must(http.MethodPost, "/v1/apply?force=true", []any{module, service}, nil)
	n.killProcess()
	n.Kill()
	n.start()
	owners("oakestra-0 ", "oakestra-1 oakestra", "service ")
	n.undeploy(appName, 0)
	owners("oakestra-0 ", "service ")
	n.container().deploy("other.t.web.t", 0, "")
	n.undeploy("other.t.web.t", 0)
	owners("oakestra-0 ", "service ")
}

// TestClaim starts with resources of a version without owners: its file does not contain that they were claimed.
func TestClaim(t *testing.T) {
	n := newNode(t)
	register(n)
	n.container().deploy(appName, 0, `,"ebpfModules":[{"name":"packetCounter"}]`)
	module := list[v1.Module](n, "module")[0]
	module.Status, module.Metadata.Owner = nil, ""
	n.Must(http.MethodPost, "/v1/apply?force=true", []any{module}, nil)
	n.killProcess()
	n.Kill()
	data, err := os.ReadFile(n.Oakestra())
	if err != nil || !bytes.Contains(data, []byte(`,"claimed":true`)) {
		t.Fatalf("%v: %s", err, data)
	}
	if err := os.WriteFile(n.Oakestra(), bytes.Replace(data, []byte(`,"claimed":true`), nil, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if got := list[v1.Module](n, "module")[0].Metadata.Owner; got != "oakestra" {
		t.Errorf("owner %q", got)
	}
}

// TestPackageOfADirectory deploys a package that is not built in, by the name of a directory that the operator allows;
// no other directory is used.
func TestPackageOfADirectory(t *testing.T) {
	dir, err := filepath.Abs("../../examples/ratelimit")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.Kill()
	n.Configure(strings.Replace(oakestraConfig, "oakbr", "oakbr, packages: ["+dir+"]", 1))
	n.start()
	register(n)
	n.container().deploy(appName, 0, `,"ebpfModules":[{"name":"ratelimit","config":{"rate":1000}}]`)
	all := list[v1.Module](n, "module")
	if len(all) != 1 || all[0].Spec.Package != dir || len(all[0].Status.Attachments) == 0 {
		t.Errorf("modules: %+v", all)
	}
	if got := n.do("POST", "/ebpf", fmt.Sprintf(`{"name":%q}`, filepath.Dir(dir)+"/topports")); got.status != 500 ||
		!strings.Contains(got.body, "oakestra.packages") {
		t.Errorf("another directory: %+v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package oakestra runs a whole Oakestra cluster on one machine: the double of root and cluster service manager with a
// real broker, three workers in network namespaces with the real agent, and a double of NodeEngine on each. 20 services
// reach each other; with KERB_OAKESTRA_STEPS, which `make test-oakestra` sets, they are deployed, undeployed, moved and
// restarted at random, and compared with a model, while traffic flows. It needs root, `make bpf` and mosquitto.
package oakestra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m, nodetest.Oakestra)) }

// bed is a cluster with workers.
type bed struct {
	*testing.T
	lab     *netlab.Lab
	broker  *oaktest.Broker
	cluster *oaktest.Cluster
	workers []*worker
	ids     int
	used    map[string]string // namespace addresses of running instances, with their owners
}

// newBed returns a cluster of workers with Kerb, and others with the double of NetManager.
func newBed(t *testing.T, workers, stock int) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.Open(fmt.Sprintf("ko%sb", strconv.FormatInt(int64(os.Getpid()), 36)),
		netlab.Options{OwnNode: true, Gateway: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bed{T: t, lab: lab, used: map[string]string{}}
	b.inCluster(func() { b.broker = oaktest.NewBrokerAt(t, lab.Gateway4().String()); b.broker.Start() })
	b.cluster = oaktest.NewCluster(t, b.broker, func(*url.URL, mqtt.ClientOptions) (conn net.Conn, err error) {
		b.inCluster(func() { conn, err = b.broker.Dial() })
		return conn, err
	})
	b.cluster.Twice(5)
	for i := range workers + stock {
		name := fmt.Sprintf("w%d", i+1)
		if i < workers {
			b.workers = append(b.workers, b.newWorker(name))
		} else {
			b.workers = append(b.workers, b.newStockWorker(name))
		}
	}
	return b
}

func (b *bed) inCluster(f func()) {
	if err := b.lab.Node().Do(func() error { f(); return nil }); err != nil {
		b.Error(err)
	}
}

// worker is a machine with NodeEngine, and an agent or the double of NetManager.
type worker struct {
	*node.Node // nil with NetManager
	bed        *bed
	name, id   string
	host       *netlab.Host
	client     *http.Client
	containers map[*container]bool
}

// nodeEngineLimit is NodeEngine's timeout of requests to its network manager.
const nodeEngineLimit = 10 * time.Second

func (b *bed) newWorker(name string) *worker {
	b.Helper()
	host, err := b.lab.Host(name, netlab.HostOptions{})
	if err != nil {
		b.Fatal(err)
	}
	n, err := node.New(host.Namespace, nodetest.Kerb)
	if err != nil {
		b.Fatal(err)
	}
	w := &worker{Node: n, bed: b, name: name, host: host, containers: map[*container]bool{}}
	b.Cleanup(func() {
		if b.Failed() {
			b.Logf("%s has dropped %s; its agent said:\n%s", name, strings.Join(w.drops(), "\n"), n.Log())
		}
		if n.Running() {
			n.Kill()
		}
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	w.client = &http.Client{Timeout: nodeEngineLimit, Transport: client.Unix(n.OakestraSocket())}
	if err := n.Configure(fmt.Sprintf("oakestra: {broker: {port: %d}}\n", b.broker.Port)); err != nil {
		b.Fatal(err)
	}
	w.startAgent()
	w.startNodeEngine()
	return w
}

// newStockWorker returns a worker with NetManager instead of Kerb.
func (b *bed) newStockWorker(name string) *worker {
	b.Helper()
	host, err := b.lab.Host(name, netlab.HostOptions{})
	if err != nil {
		b.Fatal(err)
	}
	n := oaktest.NewNetManager(b.T, b.broker, host.Addr4(), host.Do)
	n.InterestedFor = 3 * time.Second // tests wait for the end of interests
	w := &worker{bed: b, name: name, host: host, containers: map[*container]bool{},
		client: &http.Client{Timeout: nodeEngineLimit, Transport: client.Unix(n.Socket)}}
	w.startNodeEngine()
	return w
}

// drops returns the counters of packets that the worker has dropped.
func (w *worker) drops() (lines []string) {
	c := http.Client{Transport: client.Unix(w.Socket())}
	r, err := c.Get("http://kerb/metrics")
	if err != nil {
		return []string{err.Error()}
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "drop") && !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func (w *worker) startAgent() {
	w.bed.Helper()
	if err := w.Start(); err != nil {
		w.bed.Fatal(err)
	}
	wait.Until(w.bed.T, "the listener answers", func() bool {
		r, err := w.client.Get("http://node/ebpf")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
}

// killAgent kills (SIGKILL) the agent, and starts it again.
func (w *worker) killAgent() {
	w.Kill()
	w.startAgent()
}

// startNodeEngine simulates a start of NodeEngine: it ends its containers, gets a new id in the handshake, and
// registers.
func (w *worker) startNodeEngine() {
	w.bed.Helper()
	for c := range w.containers {
		w.end(c)
	}
	w.bed.ids++
	w.id = fmt.Sprintf("6650000000000000%08x", w.bed.ids)
	status, text, err := w.call("/register", map[string]any{"client_id": w.id,
		"cluster_address": w.bed.lab.Gateway4().String()})
	if err != nil || status != http.StatusOK {
		w.bed.Fatalf("%s: register: %d %s %v", w.name, status, text, err)
	}
}

// call sends a request of NodeEngine.
func (w *worker) call(path string, body any) (status int, text string, err error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, "", err
	}
	r, err := w.client.Post("http://node"+path, "application/json", bytes.NewReader(data))
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	return r.StatusCode, string(answer), err
}

func deployment(name string, number, pid int) map[string]any {
	return map[string]any{"pid": pid, "serviceName": name, "instanceNumber": number, "portMappings": ""}
}

// deploy returns the addresses of the instance. If the machine is too busy, it repeats the request like NodeEngine.
func (w *worker) deploy(name string, number int, c *container) (addresses [2]string, err error) {
	w.containers[c] = true
	status, text, err := w.call("/container/deploy", deployment(name, number, c.pid()))
	var got struct{ NsAddress, NsAddressv6 string }
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("deploy %s.%d on %s: %d %s", name, number, w.name, status, text)
	}
	if err != nil {
		return addresses, err
	}
	err = json.Unmarshal([]byte(text), &got)
	return [2]string{got.NsAddress, got.NsAddressv6}, err
}

func (w *worker) undeploy(name string, number int) {
	w.bed.Helper()
	status, text, err := w.call("/container/undeploy", deployment(name, number, -1))
	if err != nil || status != http.StatusOK {
		w.bed.Errorf("undeploy %s.%d on %s: %d %s %v", name, number, w.name, status, text, err)
	}
}

func (w *worker) end(c *container) {
	c.end()
	delete(w.containers, c)
}

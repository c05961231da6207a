// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// NetManager is a test double of the network manager of release v0.4.411: its socket for NodeEngine, its part of the
// MQTT protocol, and its forwarding of packets with a TUN device and a UDP socket. It also has the defects of the
// release: it damages fragments, drops ICMP, and blocks all services during a query. It does not support port mappings,
// unikernels and traffic to other networks.
type NetManager struct {
	t      testing.TB
	inside func(func() error) error
	broker *Broker
	host   netip.Addr
	// Socket is the path of the socket for NodeEngine.
	Socket string
	// InterestedFor is how long an interest lasts after its last use. It may be set before /register; the default is 10 s.
	InterestedFor time.Duration
	server        *http.Server
	wires         devices
	cache         *proxyCache

	deploying sync.Mutex // serializes deployments
	mu        sync.Mutex
	id        string
	client    mqtt.Client
	hosted    map[instanceKey]*hosted
	table     map[string][]entry // by service
	waiting   map[string][]chan struct{}
	interests map[string]*time.Timer
}

type instanceKey struct {
	service string
	number  int
}

// entry is an instance in the table.
type entry struct {
	instance, namespaces [2]netip.Addr // IPv4 and IPv6
	services             [2]netip.Addr
	node                 netip.AddrPort
}

func (e entry) namespace(like netip.Addr) netip.Addr {
	if like.Is4() {
		return e.namespaces[0]
	}
	return e.namespaces[1]
}

const (
	netManagerPort  = 50103
	queryLimit      = 5 * time.Second
	subnetLimit     = 10 * time.Second
	acknowledgement = 5 * time.Second
)

// NewNetManager starts a network manager of a worker with an address. inside runs a function in the worker's network
// namespace.
func NewNetManager(t testing.TB, broker *Broker, host netip.Addr, inside func(func() error) error) *NetManager {
	t.Helper()
	n := &NetManager{t: t, broker: broker, host: host, inside: inside, cache: newProxyCache(),
		InterestedFor: 10 * time.Second,
		hosted:        map[instanceKey]*hosted{}, table: map[string][]entry{}, waiting: map[string][]chan struct{}{},
		interests: map[string]*time.Timer{}}
	dir, err := os.MkdirTemp("", "netmanager")
	if err != nil {
		t.Fatal(err)
	}
	n.Socket = filepath.Join(dir, "netmanager.sock")
	listener, err := net.Listen("unix", n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /register", n.register)
	routes.HandleFunc("POST /container/deploy", n.deploy)
	routes.HandleFunc("POST /container/undeploy", n.undeploy)
	n.server = &http.Server{Handler: routes}
	go func() { _ = n.server.Serve(listener) }() // ends with the server
	t.Cleanup(func() {
		n.close()
		_ = os.RemoveAll(dir)
	})
	return n
}

func (n *NetManager) close() {
	_ = n.server.Close()
	n.mu.Lock()
	for _, timer := range n.interests {
		timer.Stop()
	}
	client := n.client
	n.mu.Unlock()
	if client != nil {
		disconnect(client)
	}
	n.wires.close()
}

// register connects, opens the tunnel and then requests a subnet, without which the real one exits.
func (n *NetManager) register(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID string `json:"client_id"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.deploying.Lock()
	defer n.deploying.Unlock()
	n.mu.Lock()
	former := n.id
	n.mu.Unlock()
	if former != "" {
		if former != in.ID {
			w.WriteHeader(http.StatusBadRequest)
		}
		return
	}
	subnets := make(chan [2]netip.Addr, 1)
	err := errors.Join(n.connect(in.ID, subnets), n.inside(n.wires.open))
	if err == nil {
		go n.fromServices()
		go n.fromNodes()
		n.publish("subnet", object{"METHOD": "GET"})
		select {
		case first := <-subnets:
			err = n.inside(func() error { return n.wires.addBridge(first) })
		case <-time.After(subnetLimit):
			err = errors.New("no subnet: the real network manager exits here")
		}
	}
	if err != nil {
		n.t.Errorf("NetManager on %s: %v", n.host, err)
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (n *NetManager) connect(id string, subnets chan [2]netip.Addr) error {
	prefix := "nodes/" + id + "/net/"
	results := map[string]byte{prefix + "subnetwork/result": 1, prefix + "tablequery/result": 1}
	ready := make(chan struct{}, 16)
	opts := mqtt.NewClientOptions().AddBroker(n.broker.URL()).SetClientID(id).SetOrderMatters(false).
		SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (conn net.Conn, err error) {
			return conn, errors.Join(n.inside(func() error { conn, err = n.broker.Dial(); return nil }), err)
		}).
		SetOnConnectHandler(func(c mqtt.Client) {
			c.SubscribeMultiple(results, func(_ mqtt.Client, m mqtt.Message) {
				if strings.HasSuffix(m.Topic(), "tablequery/result") {
					n.learn(m.Payload())
					return
				}
				var in struct{ Address, Addressv6 string }
				if err := json.Unmarshal(m.Payload(), &in); err != nil {
					n.t.Error(err)
					return
				}
				select {
				case subnets <- [2]netip.Addr{netip.MustParseAddr(in.Address), netip.MustParseAddr(in.Addressv6)}:
				default:
				}
			}).Wait()
			n.resubscribe(c)
			ready <- struct{}{}
		})
	client := mqtt.NewClient(opts)
	n.mu.Lock()
	n.id, n.client = id, client
	n.mu.Unlock()
	if token := client.Connect(); token.Wait() && token.Error() != nil {
		return token.Error()
	}
	<-ready
	return nil
}

func (n *NetManager) resubscribe(c mqtt.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.interests {
		c.Subscribe("jobs/"+name+"/updates_available", 1, n.handleNotice)
	}
}

// publish returns when the broker has the message, or after a timeout. Errors are ignored.
func (n *NetManager) publish(topic string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		n.t.Error(err)
	}
	n.mu.Lock()
	id, client := n.id, n.client
	n.mu.Unlock()
	client.Publish("nodes/"+id+"/net/"+topic, 1, false, data).WaitTimeout(acknowledgement)
}

// request is a request of NodeEngine about an instance.
type request struct {
	PID    int    `json:"pid"`
	Name   string `json:"serviceName"`
	Number int    `json:"instanceNumber"`
}

// deploy responds after the announcement to the cluster; the query of the service follows, regardless of the result.
func (n *NetManager) deploy(w http.ResponseWriter, r *http.Request) {
	var in request
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.deploying.Lock()
	defer n.deploying.Unlock()
	if strings.Count(in.Name, ".") != 3 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	defer func() { go n.query(in.Name, "") }()
	h, err := n.wires.addService(in.PID)
	if err != nil {
		n.t.Logf("NetManager on %s: %s: %v", n.host, in.Name, err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	key, four, six := instanceKey{in.Name, in.Number}, h.addresses[0].String(), h.addresses[1].String()
	n.mu.Lock()
	n.hosted[key] = h // the veth of an earlier deployment stays
	n.mu.Unlock()
	n.publish("service/deployed", struct {
		Name   string `json:"appname"`
		Status string `json:"status"`
		Number int    `json:"instance_number"`
		NS4    string `json:"nsip"`
		NS6    string `json:"nsipv6"`
		Port   string `json:"host_port"`
		Host   string `json:"host_ip"`
	}{in.Name, "DEPLOYED", in.Number, four, six, fmt.Sprint(netManagerPort), n.host.String()})
	_ = json.NewEncoder(w).Encode(map[string]string{"serviceName": in.Name, "nsAddress": four, "nsAddressv6": six})
}

// undeploy responds with 200 also if the instance is not deployed.
func (n *NetManager) undeploy(w http.ResponseWriter, r *http.Request) {
	var in request
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.deploying.Lock()
	defer n.deploying.Unlock()
	n.mu.Lock()
	key := instanceKey{in.Name, in.Number}
	h := n.hosted[key]
	delete(n.hosted, key)
	if h != nil {
		n.table[in.Name] = slices.DeleteFunc(n.table[in.Name], func(e entry) bool {
			return e.namespaces == h.addresses
		})
	}
	n.mu.Unlock()
	if h != nil {
		n.wires.removeService(h)
	}
}

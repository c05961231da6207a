// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
)

// Finding is the result of one check. Status is ok, warn or fail, and Remedy is empty only if it is ok.
type Finding struct{ Status, Name, Found, Remedy string }

// Values of Finding.Status.
const (
	findingOK   = "ok"
	findingWarn = "warn"
	findingFail = "fail"
)

// CheckOptions are the options of Check.
type CheckOptions struct {
	Options
	Services []string // to look up, in addition to those with instances here
}

// queryTimeout is the timeout of a query. The real service manager needs 5 to 60 ms.
const queryTimeout = 3 * time.Second

// servicePort is the port of the REST API of the cluster service manager.
const servicePort = 10110

// check examines the cluster with a separate MQTT client. Its id differs from the worker's, because the broker would
// disconnect the worker if a second client used its id.
type check struct {
	o       CheckOptions
	state   state
	id      string
	client  mqtt.Client
	answers chan []byte
	all     []Finding
}

// Check connects to the cluster of this node as a worker, no matter whether the node's network manager is Kerb's or
// Oakestra's. It does not request a subnet, as that would use one up, and withdraws its interest in the services that
// it looks up.
func Check(ctx context.Context, o CheckOptions) ([]Finding, error) {
	c := &check{o: o, id: "kerb-check-" + strings.ToLower(rand.Text()[:12]), answers: make(chan []byte, 16)}
	var err error
	if c.o.Options, err = o.withNetcfg(); err != nil {
		return nil, err
	}
	if o.Cluster != "" {
		c.o.Cluster = o.Cluster
	}
	if c.state, err = readState(o.File); err != nil {
		return nil, err
	}
	c.o.Cluster = cmp.Or(c.o.Cluster, c.state.Cluster)
	c.registration()
	c.tunnelConfig()
	if c.o.Cluster == "" {
		return c.all, nil
	}
	defer func() {
		if c.client != nil {
			c.client.Disconnect(250)
		}
	}()
	if c.connect(ctx) && c.serviceManager(ctx) {
		c.services(ctx)
	}
	return c.all, nil
}

func (c *check) add(status, name, remedy, format string, args ...any) {
	c.all = append(c.all, Finding{status, name, fmt.Sprintf(format, args...), remedy})
}

// registration checks the worker's own registration.
func (c *check) registration() {
	const name = "registration"
	switch {
	case c.o.Cluster == "":
		c.add(findingFail, name, "start NodeEngine with the overlay network custom:"+cmp.Or(c.o.Socket,
			"/run/kerb/oakestra.sock")+", or name the cluster: kerb oakestra check --cluster ADDRESS",
			"NodeEngine has not registered this node, and the address of the cluster is unknown")
	case c.state.Worker == "":
		c.add(findingWarn, name, "if this is a worker with Kerb, start NodeEngine; with Oakestra's own network manager "+
			"this is as it should be", "cluster %s; NodeEngine has not registered this node with Kerb", c.o.Cluster)
	case c.state.Subnet == "" && c.o.Subnet == "":
		c.add(findingFail, name, "if the checks below are ok the root has no subnet left: see its log for 500 in answer to "+
			"/api/net/subnet", "node %s of cluster %s has no subnet; no service can be deployed", c.state.Worker, c.o.Cluster)
	default:
		c.add(findingOK, name, "", "node %s of cluster %s, subnet %s", c.state.Worker, c.o.Cluster,
			cmp.Or(c.state.Subnet, c.o.Subnet))
		c.overlaps()
	}
}

// overlaps finds networks of the node that contain the subnet: their hosts, or the services, are not reachable.
func (c *check) overlaps() {
	subnet, err := netip.ParsePrefix(cmp.Or(c.state.Subnet, c.o.Subnet))
	links, _ := net.Interfaces()
	for _, l := range links {
		addresses, _ := l.Addrs()
		for _, a := range addresses {
			p, bad := netip.ParsePrefix(a.String())
			if err == nil && bad == nil && l.Name != c.o.Bridge && p.Addr().Unmap().Is4() && p.Overlaps(subnet) {
				c.add(findingFail, "subnet", "change the addresses of "+l.Name+", or set oakestra.subnet to a network "+
					"that no other worker has", "%s overlaps with %s of %s", subnet, p, l.Name)
			}
		}
	}
}

// connect reports whether the broker accepts a worker.
func (c *check) connect(ctx context.Context) bool {
	const name = "broker"
	url := c.o.Broker.url(c.o.Cluster)
	opts, err := c.o.Broker.options(c.o.Cluster, c.id)
	if err != nil {
		c.add(findingFail, name, "correct the section oakestra.broker of kerb.yaml", "%s: %v", url, err)
		return false
	}
	opts.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		select {
		case c.answers <- m.Payload():
		default:
		}
	})
	c.client = mqtt.NewClient(opts)
	began := time.Now()
	if err := await(ctx, c.client.Connect(), connectLimit); err != nil {
		c.add(findingFail, name, brokerRemedy(err), "%s: %v", url, err)
		return false
	}
	took := time.Since(began).Round(time.Millisecond)
	topic := c.topic(topicTableResult)
	subscription := c.client.Subscribe(topic, 1, nil)
	err = await(ctx, subscription, ackTimeout)
	if t, ok := subscription.(*mqtt.SubscribeToken); ok && err == nil && t.Result()[topic] > 2 {
		err = errors.New("the broker refuses it")
	}
	if err != nil {
		c.add(findingFail, name, "allow workers to read nodes/+/net/# and jobs/+/updates_available, and to write "+
			"nodes/+/net/#, in the access control list of the broker", "%s: subscribe to %s: %v", url, topic, err)
		return false
	}
	c.add(findingOK, name, "", "%s accepts workers (%s)", url, took)
	return true
}

// brokerRemedy returns what to do about a failed connection to the broker. Some errors of the MQTT library have no
// type, so their text is searched.
func brokerRemedy(err error) string {
	var unreached *net.OpError
	switch text := err.Error(); {
	case errors.Is(err, packets.ErrorRefusedNotAuthorised), errors.Is(err, packets.ErrorRefusedBadUsernameOrPassword),
		strings.Contains(text, packets.ErrorRefusedNotAuthorised.Error()):
		return "set oakestra.broker.username and passwordFile in kerb.yaml, or the certificate that the broker requires"
	case strings.Contains(text, "x509") || strings.Contains(text, "tls:"):
		return "set oakestra.broker.ca to the authority of the broker's certificate, certificate and key to those of this " +
			"node, or tls: false if the broker has none"
	case errors.As(err, &unreached) || strings.Contains(text, "dial") || strings.Contains(text, "refused"):
		return "start the broker (mqtt) of the cluster, or open its port; another port: oakestra.broker.port, or " +
			"ClusterMqttPort in netcfg.json of NetManager"
	}
	return "check the log of the broker; it may expect TLS: oakestra.broker.tls"
}

func (c *check) topic(t string) string { return "nodes/" + c.id + "/net/" + t }

// ask sends a query and returns the reply with its key.
func (c *check) ask(ctx context.Context, q tableRequest) (r tableResult, took time.Duration, err error) {
	began := time.Now()
	s := session{sessionOptions: sessionOptions{worker: c.id}}
	if err := await(ctx, s.transmit(c.client, message{topic: topicTableRequest, body: q}), ackTimeout); err != nil {
		return r, 0, fmt.Errorf("the broker does not acknowledge a message: %w", err)
	}
	limit := time.After(queryTimeout)
	for {
		select {
		case data := <-c.answers:
			if r, err = decodeTable(data, serviceNetworks); err != nil {
				return r, 0, fmt.Errorf("an answer that is wrong: %w", err)
			}
			if r.Key == q.Name+q.Address {
				return r, time.Since(began), nil
			}
		case <-limit:
			return r, 0, errNoAnswer
		case <-ctx.Done():
			return r, 0, ctx.Err()
		}
	}
}

var errNoAnswer = fmt.Errorf("no answer within %s", queryTimeout)

// unassigned is an address outside the root's pool, so that no service has it. A query for it registers no interest.
const unassigned = "10.30.255.254"

// serviceManager reports whether the service manager replies to queries. The cluster forwards unknown names to the
// root.
func (c *check) serviceManager(ctx context.Context) bool {
	const name = "service manager"
	r, took, err := c.ask(ctx, tableRequest{Address: unassigned})
	if errors.Is(err, errNoAnswer) {
		r, took, err = c.ask(ctx, tableRequest{Address: unassigned}) // a retry, since the query may have been lost
	}
	switch {
	case errors.Is(err, errNoAnswer) && c.apiAnswers(ctx):
		c.add(findingFail, name, "restart the cluster service manager; its log may have a ValueError in "+
			"mongo_remove_interest. If that does not help, check whether it reaches the root service manager",
			"the cluster service manager runs, but queries are not answered: its connection with the broker has ended, or "+
				"the root does not answer it")
		return false
	case err != nil:
		c.add(findingFail, name, "start the cluster service manager, and see its log for its connection with the broker; "+
			"if the broker has an access control list, allow workers to write nodes/+/net/#",
			"query for an address: %v", err)
		return false
	case r.App != "":
		c.add(findingWarn, name, "do not use "+unassigned, "the service %s has the address %s", r.App, unassigned)
	case took > time.Second:
		c.add(findingWarn, name, "check the load of the cluster, and of the root", "a query takes %s; first packets to "+
			"a service wait for it", took.Round(time.Millisecond))
	default:
		c.add(findingOK, name, "", "answers queries (%s)", took.Round(time.Millisecond))
	}
	return true
}

// apiAnswers reports whether the REST API of the cluster service manager accepts connections.
func (c *check) apiAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(strings.Trim(c.o.Cluster, "[]"), strconv.Itoa(servicePort)))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// maxChecked limits the number of services that are looked up.
const maxChecked = 100

// services compares the cluster's table with the instances on this node.
func (c *check) services(ctx context.Context) {
	names := slices.Clone(c.o.Services)
	for _, s := range c.state.Services {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names[:min(len(names), maxChecked)] {
		r, _, err := c.ask(ctx, tableRequest{Name: name})
		if err == nil {
			err = c.forget(ctx, name)
		}
		if err != nil {
			c.add(findingFail, name, "repeat the check; the cluster service manager is overloaded or has just ended",
				"query: %v", err)
			return
		}
		c.service(name, r)
	}
}

// forget withdraws the interest that a query has registered.
func (c *check) forget(ctx context.Context, app string) error {
	s := session{sessionOptions: sessionOptions{worker: c.id}}
	return await(ctx, s.transmit(c.client, message{topic: topicInterestRemove, body: interestRemove{app}}), ackTimeout)
}

func (c *check) service(name string, r tableResult) {
	here := map[int]netip.Addr{}
	for _, s := range c.state.Services {
		subnet, err := netip.ParsePrefix(cmp.Or(c.state.Subnet, c.o.Subnet))
		if s.Name == name && s.Ready && err == nil {
			here[s.Instance] = nth(subnet, s.Number).Addr()
		}
	}
	if len(r.Instances) == 0 {
		c.add(findingFail, name, "deploy the service by Oakestra's API; one that was removed there ends here within seconds",
			"the cluster knows no instance")
		return
	}
	reached, seen := 0, map[int]bool{}
	for _, e := range r.Instances {
		l, _ := e.locate("") // was validated
		at, ours := here[*e.Number]
		seen[*e.Number] = true
		switch {
		case ours && l.address != at && (l.worker == "" || l.worker == c.state.Worker):
			c.add(findingFail, name, "wait for the worker's next query (2 minutes), or restart the agent; kerb status shows "+
				"whether it is connected", "instance %d has %s here, and the cluster has %v", *e.Number, at, l.address)
		case !l.address.IsValid() || !l.host.IsValid():
			c.add(findingWarn, name, "wait, or check NodeEngine of the worker on which it was placed",
				"instance %d was placed, and has no address yet: it cannot be reached", *e.Number)
		case !l.address6.IsValid():
			c.add(findingWarn, name, "unikernels have no IPv6 address with NetManager, and workers with NetManager reject "+
				"the entry: use Kerb on the worker", "instance %d has no IPv6 address", *e.Number)
		default:
			reached++
		}
	}
	for number := range here {
		if !seen[number] {
			c.add(findingFail, name, "undeploy it by NodeEngine, or deploy it by Oakestra's API",
				"the cluster does not know instance %d, which runs here", number)
		}
	}
	if reached == len(r.Instances) && len(seen) == len(r.Instances) && reached > 0 {
		c.add(findingOK, name, "", "%d instances, all with addresses", reached)
	}
}

// tunnelConfig checks NetManager's file: as shipped it makes IPv6 addresses of services useless.
func (c *check) tunnelConfig() {
	const name = "tuncfg.json"
	path := filepath.Join(c.o.NetManager, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var t struct {
		Network string `json:"ProxySubnetworkIPv6"`
		Prefix  int    `json:"ProxySubnetworkIPv6Prefix"`
	}
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		c.add(findingWarn, name, "correct it or remove it; NetManager does not start with it", "%s: %v", path, err)
		return
	}
	a, err := netip.ParseAddr(t.Network)
	if p := netip.PrefixFrom(a, t.Prefix); err == nil && !p.Contains(netip.MustParseAddr("fdff:2000::")) {
		c.add(findingWarn, name, `set "ProxySubnetworkIPv6": "fdff::" and "ProxySubnetworkIPv6Prefix": 16`,
			"%s contains no service address of the root: IPv6 service addresses do not work with NetManager", p)
		return
	}
	c.add(findingOK, name, "", "IPv6 service addresses are in its range")
}

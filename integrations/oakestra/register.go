// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"time"
)

// registration is the body of NodeEngine's registration.
type registration struct {
	ClientID       string `json:"client_id"`
	ClusterAddress string `json:"cluster_address"`
	Mode           string `json:"mode"`
}

// Patterns of a registration's fields. An id is a level of MQTT topics, so it must not contain + # or /. An address is
// a host name or an IP address.
var (
	workerID       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	clusterAddress = regexp.MustCompile(`^[A-Za-z0-9\[:][A-Za-z0-9.:\]-]*$`)
)

const maxRegistration = 253

// check validates length and characters of a registration's fields: the client ID becomes part of MQTT topics.
func (r registration) check() error {
	switch {
	case r.ClientID == "":
		return &invalid{"client_id", "missing"}
	case len(r.ClientID) > maxRegistration || !workerID.MatchString(r.ClientID):
		return &invalid{"client_id", fmt.Sprintf("%q is not the id of a node: letters, digits, . _ and -", r.ClientID)}
	case r.Mode != "" && r.Mode != "cluster":
		return &invalid{"mode", fmt.Sprintf("%q is not supported; only cluster is", r.Mode)}
	case len(r.ClusterAddress) > maxRegistration || !clusterAddress.MatchString(r.ClusterAddress):
		return &invalid{"cluster_address", fmt.Sprintf("%q is not the address of a cluster", r.ClusterAddress)}
	}
	return nil
}

// registerTimeout is how long a registration waits for the subnet: the broker may start after this node.
const registerTimeout = 3 * time.Second

// registerNode responds when the node has a subnet and the chains of its modules, or after a timeout for each. Without
// a subnet in time, it logs a warning; the registration is still valid.
func (l *Listener) registerNode(w http.ResponseWriter, r *http.Request) {
	var in registration
	if !readJSON(w, r, &in) {
		return
	}
	if in.ClusterAddress == "" {
		in.ClusterAddress = l.options.Cluster
	}
	var s *session
	err := in.check()
	if err == nil {
		s, err = l.enroll(r.Context(), in)
	}
	if err != nil {
		fail(w, "register", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), registerTimeout)
	defer cancel()
	if err := l.awaitSubnet(ctx); err != nil {
		l.log.Warn("registered without a subnet", "worker", in.ClientID, "error", err)
		return
	}
	ctx, cancel = context.WithTimeout(r.Context(), linkTimeout)
	defer cancel()
	l.awaitChains(ctx, s)
}

// enroll sets the id of the worker, and returns its session. NodeEngine gets a new id at each start, and has ended its
// containers by then: services of the old id are released, and the cluster assigns a new subnet.
func (l *Listener) enroll(ctx context.Context, in registration) (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in.ClientID == l.state.Worker && in.ClusterAddress == l.state.Cluster {
		return l.session, nil
	}
	before := l.state.clone()
	if in.ClientID != l.state.Worker {
		for _, s := range l.state.clone().Services {
			if err := l.releaseService(ctx, s); err != nil {
				return nil, err
			}
		}
		before = l.state.clone()
		l.state.Worker, l.state.Subnet, l.state.Subnet6, l.state.Jobs = in.ClientID, "", "", nil
		l.prepared = nil
	}
	l.state.Cluster = in.ClusterAddress
	if err := l.save(); err != nil {
		l.state = before
		return nil, err
	}
	l.log.Info("registered", "worker", in.ClientID, "cluster", in.ClusterAddress)
	if l.options.Subnet == "" && l.state.Subnet == "" && l.net.assigned() {
		l.net.subnet4, l.net.subnet6 = netip.Prefix{}, netip.Prefix{}
		l.subnet = make(chan struct{})
	}
	l.join()
	return l.session, nil
}

// Subnets of services that were deployed before this worker requested a subnet from its cluster.
const formerSubnet, formerSubnet6 = "10.18.0.0/26", "fc00::/120"

// restoreSubnet continues with the subnet of the last run.
func (l *Listener) restoreSubnet() (err error) {
	l.subnet = make(chan struct{})
	if l.options.Subnet == "" && l.state.Subnet == "" && len(l.state.Services) > 0 {
		l.state.Subnet, l.state.Subnet6 = formerSubnet, formerSubnet6
	}
	if l.options.Subnet == "" && l.state.Subnet != "" {
		if l.net.subnet4, err = netip.ParsePrefix(l.state.Subnet); err == nil {
			l.net.subnet6, err = netip.ParsePrefix(l.state.Subnet6)
		}
		if err != nil {
			return fmt.Errorf("%s is damaged: %w; remove it to start with empty state", l.file, err)
		}
	}
	if l.net.assigned() {
		close(l.subnet)
	}
	return nil
}

// join starts the session of the registered worker in its cluster, and ends the previous one. The caller holds l.mu.
func (l *Listener) join() {
	if l.session != nil {
		l.session.stop()
	}
	o := sessionOptions{worker: l.state.Worker, cluster: l.state.Cluster, broker: l.options.Broker,
		address: l.options.Address, port: l.options.Port,
		assigned: l.net.assigned(), times: l.intervals, resolved: l.resolved}
	for _, text := range l.ranges {
		o.ranges = append(o.ranges, netip.MustParsePrefix(text)) // validated with the configuration
	}
	worker := l.state.Worker
	o.onJob = func(j job) {
		j.worker = worker
		l.jobs.add(j, l.log)
		l.wakeFollow()
	}
	o.onConnect, o.onReady = l.jobs.markMissed, l.wakeFollow
	o.onSubnet = func(four, six netip.Prefix) { l.useSubnet(worker, four, six) }
	var own []hostedInstance
	for _, s := range l.state.Services {
		four, six := l.net.addresses(s.Number)
		own = append(own, hostedInstance{app: s.Name, number: s.Instance, four: four.Addr(), six: six.Addr()})
	}
	l.session = l.usedServices.attach(func(used []string) *session { return startSession(o, l.log, own, used) })
}

// leave ends the session.
func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.stop()
	}
}

// useSubnet starts to use the subnet that the cluster assigned to a worker, even if it cannot be stored: another
// request would use up another subnet.
func (l *Listener) useSubnet(worker string, four, six netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if worker != l.state.Worker || l.net.assigned() {
		return
	}
	l.state.Subnet, l.state.Subnet6, l.state.Last = four.String(), six.String(), firstNumber-1
	if err := l.save(); err != nil {
		l.log.Error("the subnet of this node cannot be stored", "subnet", four, "error", err)
	}
	if err := l.net.renumber(four, six); err != nil {
		l.log.Error("the bridge of the former subnet cannot be removed", "bridge", l.net.bridge, "error", err)
	}
	l.log.Info("the cluster has assigned a subnet", "worker", worker, "subnet", four, "subnet6", six)
	close(l.subnet)
	l.wakeFollow()
}

func (l *Listener) wakeFollow() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}

// awaitSubnet waits until the node has a subnet.
func (l *Listener) awaitSubnet(ctx context.Context) error {
	l.mu.Lock()
	has := l.subnet
	l.mu.Unlock()
	select {
	case <-has:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-has: // the subnet was not the cause of the delay
		return ctx.Err()
	default:
		return errNoSubnet
	}
}

// report passes the state of this worker in its cluster to the agent when it has changed.
func (l *Listener) report(ctx context.Context, report func(reason, message string)) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var lastReason, lastText string
	for first := true; ; first = false {
		reason, text := l.describe()
		if first || reason != lastReason || text != lastText {
			report(reason, text)
			lastReason, lastText = reason, text
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// describe returns a reason and a message for a condition. The reason is empty if there is no problem.
func (l *Listener) describe() (reason, text string) {
	l.mu.Lock()
	s, net := l.session, *l.net
	l.mu.Unlock()
	if l.options.Alongside != "" {
		return "", "ports of NetManager's bridge " + l.options.Alongside + " are services"
	}
	if s == nil {
		return "", "NodeEngine has not registered yet"
	}
	reason, text = s.describe()
	if net.assigned() {
		text = fmt.Sprintf("subnet %s and %s, %s", net.subnet4, net.subnet6, text)
	}
	return reason, text
}

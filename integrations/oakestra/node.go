// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

func (l *Listener) addNodeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /register", l.registerNode)
	mux.HandleFunc("POST /container/deploy", l.deployContainer)
	mux.HandleFunc("POST /container/undeploy", l.undeployContainer)
	mux.HandleFunc("POST /docker/undeploy", l.undeployContainer)
	mux.HandleFunc("POST /unikernel/deploy", l.deployMachine)
	mux.HandleFunc("POST /unikernel/undeploy", l.undeployContainer)
}

// deployment is NodeEngine's request for a service. Undeploy has the same body, with a process id of -1.
type deployment struct {
	PID      int             `json:"pid"`
	Name     string          `json:"serviceName"`
	Instance int             `json:"instanceNumber"`
	Ports    string          `json:"portMappings"`
	Modules  []moduleRequest `json:"ebpfModules"` // of the SLA: for this service only
	machine  bool            // a virtual machine: there is no process yet
}

type deployed struct {
	Name string `json:"serviceName"`
	Four string `json:"nsAddress"`
	Six  string `json:"nsAddressv6"`
}

// readDeployment decodes and validates the common fields of both requests.
func (l *Listener) readDeployment(w http.ResponseWriter, r *http.Request) (deployment, bool) {
	var in deployment
	if !readJSON(w, r, &in) {
		return in, false
	}
	if err := errors.Join(in.check(), checkModules(in.Modules)); err != nil {
		fail(w, "request", err)
		return in, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Worker == "" {
		http.Error(w, "the node is not registered yet", http.StatusBadRequest)
	}
	return in, l.state.Worker != ""
}

// serviceName matches names of Oakestra's services: application, its namespace, service, its namespace, of at most
// maxNamePart bytes each.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){3}$`)

const maxNamePart = 64

func (d deployment) check() error {
	tooLong := func(part string) bool { return len(part) > maxNamePart }
	if !serviceName.MatchString(d.Name) || slices.ContainsFunc(strings.Split(d.Name, "."), tooLong) {
		return &invalid{"serviceName", fmt.Sprintf("%q is not app.namespace.service.namespace", d.Name)}
	}
	if d.Instance < 0 {
		return &invalid{"instanceNumber", "must not be negative"}
	}
	return nil
}

// Timeouts of a deployment, and of undoing it: NodeEngine waits for 10 s.
const deployTimeout, undoTimeout = 7 * time.Second, 2 * time.Second

func (l *Listener) deployContainer(w http.ResponseWriter, r *http.Request) {
	l.deployInstance(w, r, false)
}

func (l *Listener) deployMachine(w http.ResponseWriter, r *http.Request) {
	l.deployInstance(w, r, true)
}

// deployInstance connects an instance and responds with its addresses. It ends after deployTimeout, or when the client
// disconnects.
func (l *Listener) deployInstance(w http.ResponseWriter, r *http.Request, machine bool) {
	ctx, cancel := context.WithTimeout(r.Context(), deployTimeout)
	defer cancel()
	in, ok := l.readDeployment(w, r)
	if !ok {
		return
	}
	in.machine = machine
	four, six, err := l.deployAndAnnounce(ctx, in)
	if err != nil {
		l.log.Error("a service cannot be deployed", "service", in.Name, "instance", in.Instance, "error", err)
		fail(w, "deploy", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(deployed{in.Name, four.String(), six.String()})
}

// deployAndAnnounce publishes the address after it is in use, and without the lock, because modules and the broker may
// take long.
func (l *Listener) deployAndAnnounce(ctx context.Context, in deployment) (four, six netip.Addr, err error) {
	if err := l.awaitSubnet(ctx); err != nil {
		return four, six, err
	}
	if in.Modules, err = l.modulesOf(ctx, in); err != nil {
		return four, six, err
	}
	l.mu.Lock()
	number, err := l.deployService(ctx, in)
	if err != nil {
		l.mu.Unlock()
		return four, six, err
	}
	at, at6 := l.net.addresses(number)
	i := hostedInstance{app: in.Name, number: in.Instance, four: at.Addr(), six: at6.Addr(), held: true,
		known: make(chan bool, 1)}
	s := l.session
	s.add(i)
	l.mu.Unlock()
	l.publish(ctx, s, i)
	return i.four, i.six, nil
}

// publish announces an instance once packets of other workers reach it, and returns when its own packets get the
// instance IP as source.
func (l *Listener) publish(ctx context.Context, s *session, i hostedInstance) {
	l.awaitTunnel(ctx, s, i)
	if s.announce(ctx, i) {
		l.awaitProxy(ctx, i)
	}
}

// tunnelTimeout is how long an announcement waits for the tunnel, whose control plane may be restarting.
const tunnelTimeout = 2 * time.Second

// awaitTunnel waits until the tunnel delivers packets to an instance: clients on other workers send as soon as the
// cluster has announced it. The agent notifies control planes of a new service after it has applied it. The wait ends
// when the instance is withdrawn.
func (l *Listener) awaitTunnel(ctx context.Context, s *session, i hostedInstance) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		var has []netip.Addr
		err := l.agent.ask(ctx, tunnelResource, "/addresses?address="+i.four.String(), &has)
		if slices.Contains(has, i.four) || isMissing(err) && !l.getsTunnel(ctx, s) {
			return
		}
		select {
		case <-i.known: // withdrawn: the cluster does not reply before the announcement
			return
		case <-ctx.Done():
			l.log.Warn("an instance is announced although the tunnel may not deliver packets of other workers to it yet",
				"service", i.app, "instance", i.number, "waited", time.Since(begin).Round(time.Millisecond), "error", err)
			return
		case <-time.After(pause):
		}
	}
}

// getsTunnel reports whether a worker without a tunnel that lists addresses is about to get one: the modules of the
// worker are applied after it has connected. A user may have replaced the tunnel by another package.
func (l *Listener) getsTunnel(ctx context.Context, s *session) bool {
	_, err := l.agent.module(ctx, tunnelResource)
	return isMissing(err) && s.connected()
}

// proxyTimeout is how long a deployment waits until the proxy has the instance.
const proxyTimeout = time.Second

// awaitProxy waits until the cluster has replied and the proxy has the instance IP, since NodeEngine then starts the
// container's program, whose first packet must have the instance IP as source.
func (l *Listener) awaitProxy(ctx context.Context, i hostedInstance) {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	select {
	case known := <-i.known:
		if !known {
			return
		}
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !l.proxyKnows(ctx, i) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// proxyKnows reports whether the proxy has the service with the addresses of one of its instances.
func (l *Listener) proxyKnows(ctx context.Context, i hostedInstance) bool {
	s, err := l.agent.virtualService(ctx, recordPrefix+i.app)
	if err != nil || s.Status == nil || !slices.Contains(s.Status.Modules, proxyResource) {
		return false
	}
	return slices.ContainsFunc(s.Status.Instances, func(o v1.VirtualInstanceStatus) bool {
		return o.Name == strconv.Itoa(i.number) && slices.Contains(o.Addresses, i.four.String())
	})
}

// deployService connects the service, announces it and opens its ports, or changes nothing after an error. It returns
// the number of the service's addresses.
func (l *Listener) deployService(ctx context.Context, in deployment) (int, error) {
	ports, err := parsePorts(in.Ports)
	if err != nil {
		return 0, err
	}
	ns, inode, err := in.namespace()
	if err != nil {
		return 0, err
	}
	defer func() { ns.Close() }()
	if err := l.sweep(ctx, false); err != nil { // frees addresses of removed services
		return 0, err
	}
	if old := l.state.service(in.Name, in.Instance); old != nil {
		if old.PID == in.PID && old.Netns == inode && old.Machine == in.machine && slices.Equal(old.Ports, ports) &&
			l.state.hasModules(in.Name, in.Modules) {
			return old.Number, l.removeJob(in) // a retry of NodeEngine, which did not receive the response
		}
		if err := l.releaseService(ctx, *old); err != nil {
			return 0, err
		}
	}
	if err := l.state.checkPorts(in.Name, ports); err != nil {
		return 0, err
	}
	s := service{Name: in.Name, Instance: in.Instance, PID: in.PID, Netns: inode, Ports: ports, Machine: in.machine}
	err = l.endPreparation(ctx, in.Name, in.Modules)
	if err == nil {
		err = l.connect(ctx, &s, &ns, in.Modules)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return 0, errors.Join(err, l.sweep(undo, false)) // a later sweep repeats a failed undo
	}
	return s.Number, nil
}

// connect saves the intended change to the state file, makes it, and then saves that it is complete. It creates the
// namespace of a virtual machine.
func (l *Listener) connect(ctx context.Context, s *service, ns *netns.NsHandle, modules []moduleRequest) (err error) {
	if s.Number, err = l.net.allocateNumber(&l.state); err != nil {
		return err
	}
	l.state.Services = append(l.state.Services, *s)
	if err := l.save(); err != nil {
		return err
	}
	underlay, err := l.underlay(ctx)
	l.net.complete = err == nil && leavesChecksums(underlay)
	if s.Machine {
		if err := l.makeMachine(s, ns); err != nil {
			return err
		}
	}
	if err := l.net.connect(*ns, s.Number); err != nil {
		return err
	}
	resource := s.resource(l.net.host(s.Number))
	added, warnings, err := l.deploy(ctx, s.Name, modules, []v1.Service{resource})
	if err != nil {
		return err
	}
	for _, text := range warnings {
		l.log.Warn("the modules of a service", "service", s.Name, "instance", s.Instance, "warning", text)
	}
	if err := l.net.open(s.Number); err != nil { // last: no packet passes without the modules
		return err
	}
	if err := l.openPorts(*s); err != nil {
		return err
	}
	return l.confirm(added, s)
}

// openPorts follows when the service's chains are attached. It does nothing for a service without ports.
func (l *Listener) openPorts(s service) error {
	err := l.net.translate(l.state.Services)
	if err != nil && len(s.Ports) > 0 {
		return err
	}
	if err := errors.Join(err, l.net.forward(l.log), acceptForwarded(l.net.group, l.net.bridge, true)); err != nil {
		l.log.Warn("services cannot reach destinations outside the node", "error", err)
	}
	l.deleteFlows(s)
	return nil
}

// closePorts is called first, while the service still exists and handles pending packets. A service that is not ready
// may have no open ports because the kernel does not support them.
func (l *Listener) closePorts(s service) error {
	others := l.state.clone()
	others.dropService(s.Name, s.Instance)
	if err := l.net.translate(others.Services); err != nil && s.Ready && len(s.Ports) > 0 {
		return err
	}
	l.deleteFlows(s)
	return nil
}

func (l *Listener) deleteFlows(s service) {
	if err := l.net.deleteFlows(s); err != nil {
		l.log.Debug("connections to a service are not forgotten", "service", s.Name, "instance", s.Instance, "error", err)
	}
}

// makeMachine creates the namespace of a machine, and replaces ns.
func (l *Listener) makeMachine(s *service, ns *netns.NsHandle) (err error) {
	ns.Close()
	if *ns, s.Netns, err = makeMachine(machineNamespace(s.Name, s.Instance), l.net.mtu); err != nil {
		return err
	}
	l.state.service(s.Name, s.Instance).Netns = s.Netns // saved by confirm
	return l.net.translateMachine(*ns, s.Number)
}

// namespace returns the network namespace of the instance and its inode. For a machine, that is the namespace of an
// earlier deployment, or none.
func (d deployment) namespace() (netns.NsHandle, uint64, error) {
	if !d.machine {
		return openNamespace(d.PID)
	}
	ns, inode, err := openMachine(machineNamespace(d.Name, d.Instance))
	if errors.Is(err, fs.ErrNotExist) {
		return netns.None(), 0, nil
	}
	return ns, inode, err
}

// openNamespace returns the network namespace of a process and its inode. It rejects the node's own: a service without
// a separate namespace cannot be connected.
func openNamespace(pid int) (netns.NsHandle, uint64, error) {
	if pid <= 0 {
		return netns.None(), 0, &invalid{"pid", fmt.Sprintf("%d is not the id of a process", pid)}
	}
	ns, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return ns, 0, &invalid{"pid", fmt.Sprintf("the namespace of process %d: %v", pid, err)}
	}
	var theirs, own unix.Stat_t
	err = errors.Join(unix.Fstat(int(ns), &theirs), unix.Stat("/proc/self/ns/net", &own))
	if err == nil && theirs.Ino == own.Ino {
		err = &invalid{"pid", fmt.Sprintf("process %d is in the node's own network namespace", pid)}
	}
	if err != nil {
		ns.Close()
	}
	return ns, theirs.Ino, err
}

// resource returns the agent's resource for the service. It names the interface, which unlike a pid is not reused.
func (s service) resource(host string) v1.Service {
	app, _, _ := strings.Cut(s.Name, ".")
	return v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: s.resourceName(), Labels: map[string]string{
			labelService: labelValue(s.Name), labelApp: labelValue(app), labelInstance: strconv.Itoa(s.Instance),
		}},
		Spec: v1.ServiceSpec{Interface: host},
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// resourceName returns a readable name that is unique for the service: characters that names of resources cannot
// contain are replaced, and covered by a hash.
func (s service) resourceName() string {
	readable := notInNames.ReplaceAllString(strings.ToLower(s.Name), "-")
	if len(readable) > 36 {
		readable = readable[:36]
	}
	return fmt.Sprintf("oak-%s-%d-%s", strings.Trim(readable, "-"), s.Instance, shortHash(s.Name))
}

func shortHash(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:8] }

// maxLabel is the maximum length of a label's value, which must also start and end with a letter or digit.
const maxLabel = 63

var (
	plainLabel  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	notInLabels = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

func labelValue(name string) string {
	if len(name) <= maxLabel && plainLabel.MatchString(name) {
		return name
	}
	readable := notInLabels.ReplaceAllString(name, "-")
	return strings.Trim(readable[:min(len(readable), maxLabel-9)], "._-") + "-" + shortHash(name)
}

func (l *Listener) undeployContainer(w http.ResponseWriter, r *http.Request) {
	in, ok := l.readDeployment(w, r)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state.service(in.Name, in.Instance)
	if s == nil { // undeployed already; a sweep may have converted it to a job
		if j := l.state.job(in.Name, in.Instance); j != nil && j.Doubtful {
			if err := l.removeJob(in); err != nil {
				fail(w, "undeploy", err)
			}
		}
		return
	}
	if err := l.releaseService(r.Context(), *s); err != nil {
		fail(w, "undeploy", err)
	}
}

// releaseService undoes a deployment. It removes the entry from the state last, so that a sweep repeats a failed or
// interrupted release.
func (l *Listener) releaseService(ctx context.Context, s service) error {
	// Disconnect first: no packet passes without the modules.
	if err := errors.Join(l.closePorts(s), l.net.disconnect(s.Number)); err != nil {
		return err
	}
	if s.Machine {
		if err := removeMachine(machineNamespace(s.Name, s.Instance)); err != nil {
			return err
		}
	}
	err := l.discard(ctx, []ref{{v1.KindService, s.resourceName()}})
	if err != nil && !isMissing(err) {
		return err
	}
	l.state.dropService(s.Name, s.Instance)
	if l.session != nil {
		l.session.withdraw(s.Name, s.Instance)
	}
	if !l.state.uses(s.Name) {
		if err := l.removeModules(ctx, func(m module) bool { return m.Service == s.Name }); err != nil {
			return err
		}
	}
	return l.save()
}

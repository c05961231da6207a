// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netdump"
)

// Next to a running NetManager the integration connects no instances: the ports of NetManager's bridge become services
// of the agent. None of that is stored, since it follows from the state of the node.

// portsOwner is the owner of these services. Services of the listener's own deployments have another owner, and are
// swept.
const portsOwner = "netmanager"

const labelPort = "oakestra.io/port"

// portsSettle is the time in which the link events of one deployment are collected.
const portsSettle = 50 * time.Millisecond

// followPorts synchronises the services with the ports of the bridge, after link events and periodically.
func (l *Listener) followPorts(ctx context.Context) {
	events := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(events, ctx.Done(), netlink.LinkSubscribeOptions{
		ErrorCallback: func(error) {}, // the next tick compensates for missed events
	}); err != nil {
		l.log.Warn("new ports are found later", "error", err)
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var last string
	for {
		begun := time.Now()
		err := l.syncPorts(ctx)
		took := time.Since(begun)
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && text != last {
			l.log.Error("ports of NetManager are not all services", "error", err, "retryIn", sweepEvery.String())
		}
		last = fmt.Sprint(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case _, open := <-events:
			if !open {
				events = nil // ticks continue
				continue
			}
			time.Sleep(max(portsSettle, 4*took)) // limits the load of a service that flaps its interface to a fifth of a CPU
			for len(events) > 0 {
				<-events
			}
		}
	}
}

// syncPorts applies the services of the bridge's ports one by one, so that a rejected one does not affect others.
func (l *Listener) syncPorts(ctx context.Context) error {
	want, err := portsOf(l.options.Alongside)
	if err != nil {
		return err
	}
	have, err := l.portServices(ctx)
	if err != nil {
		return err
	}
	var obsolete []ref
	for name, s := range have {
		w, stays := want[name]
		if same := stays && w.Spec == s.Spec && reflect.DeepEqual(w.Metadata.Labels, s.Metadata.Labels); same {
			delete(want, name)
		} else if !stays || w.Spec != s.Spec {
			obsolete = append(obsolete, ref{v1.KindService, name})
		}
	}
	if err := l.deletePorts(ctx, obsolete); err != nil { // first, since an interface belongs to one service
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, err := l.agent.applyBy(ctx, "owner="+portsOwner, []v1.Service{want[name]}, nil); err != nil {
			errs = append(errs, fmt.Errorf("service %s of port %s: %w", name, want[name].Spec.Interface, err))
		}
	}
	return errors.Join(errs...)
}

// portServices returns the services that this integration created for ports of the bridge, by name. Other services have
// a different owner.
func (l *Listener) portServices(ctx context.Context) (map[string]v1.Service, error) {
	all, err := l.agent.services(ctx)
	if err != nil {
		return nil, err
	}
	have := map[string]v1.Service{}
	for _, s := range all {
		if s.Metadata.Owner == portsOwner {
			have[s.Metadata.Name] = s
		}
	}
	return have, nil
}

func (l *Listener) deletePorts(ctx context.Context, refs []ref) error {
	if len(refs) == 0 {
		return nil
	}
	return l.agent.call(ctx, "POST", "/v1/delete?owner="+portsOwner, refs, nil)
}

// dropPorts removes services for ports of a NetManager that the node had before.
func (l *Listener) dropPorts(ctx context.Context) error {
	have, err := l.portServices(ctx)
	var refs []ref
	for name := range have {
		refs = append(refs, ref{v1.KindService, name})
	}
	return errors.Join(err, l.deletePorts(ctx, refs))
}

// deletePlane removes the modules that Kerb needs as network manager: next to NetManager, that translates virtual
// addresses.
func (l *Listener) deletePlane(ctx context.Context) error {
	all, err := l.agent.modules(ctx)
	var refs []ref
	for _, m := range all {
		if name := m.Metadata.Name; m.Metadata.Owner == owner && (name == proxyResource || name == tunnelResource) {
			refs = append(refs, ref{v1.KindModule, name})
		}
	}
	if err != nil || len(refs) == 0 {
		return err
	}
	return l.discard(ctx, refs)
}

// portsOf returns the services of a bridge by name: one for each veth whose peer is in another namespace. It returns
// none if the bridge does not exist.
func portsOf(bridge string) (map[string]v1.Service, error) {
	want := map[string]v1.Service{}
	link, err := netlink.LinkByName(bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return want, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", bridge, err)
	}
	links, err := netdump.Links()
	if err != nil {
		return nil, err
	}
	index := link.Attrs().Index
	links = slices.DeleteFunc(links, func(x netlink.Link) bool {
		a := x.Attrs()
		return a.MasterIndex != index || x.Type() != "veth" || a.NetNsID < 0
	})
	if len(links) == 0 {
		return want, nil
	}
	// NetManager leaves the earlier veth of an instance that is deployed again: the newer one gets the name.
	sort.Slice(links, func(i, j int) bool { return links[i].Attrs().Index > links[j].Attrs().Index })
	names := instancesByNamespace()
	for _, x := range links {
		s := portService(x.Attrs().Name, names[x.Attrs().NetNsID])
		if _, taken := want[s.Metadata.Name]; taken {
			s = portService(x.Attrs().Name, "")
		}
		want[s.Metadata.Name] = s
	}
	return want, nil
}

// portService returns the service of a port; instance is empty if the port's instance is unknown.
func portService(host, instance string) v1.Service {
	var r v1.Service
	if m := instanceName.FindStringSubmatch(instance); m != nil {
		number, _ := strconv.Atoi(m[2])
		r = service{Name: m[1], Instance: number}.resource(host)
	} else {
		name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(host), "-"), "-")
		r = service{}.resource(host)
		r.Metadata.Name, r.Metadata.Labels = "oak-port-"+name, map[string]string{}
	}
	r.Metadata.Labels[labelPort] = labelValue(host)
	return r
}

// instanceName matches NodeEngine's names of containers, and of network namespaces of virtual machines.
var instanceName = regexp.MustCompile(`^([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){3})\.instance\.([0-9]{1,9})$`)

// instancesByNamespace returns the names of instances by the inode of their network namespace. The sources are the
// cgroups of their processes, which containerd names after the container, and the names of namespaces.
func instancesByNamespace() map[int]string {
	names := map[int]string{}
	seen := map[uint64]bool{} // inodes of namespaces whose name is known
	note := func(path, instance string) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return // the process has ended
		}
		defer unix.Close(fd)
		var info unix.Stat_t
		if unix.Fstat(fd, &info) != nil || seen[info.Ino] {
			return
		}
		if id, err := netlink.GetNetNsIdByFd(fd); err == nil && id >= 0 {
			seen[info.Ino], names[id] = true, instance
		}
	}
	named, _ := filepath.Glob(netnsDir + "/*.instance.*")
	for _, path := range named {
		if instanceName.MatchString(filepath.Base(path)) {
			note(path, filepath.Base(path))
		}
	}
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range groups {
		if instance := instanceOf(path); instance != "" {
			note(filepath.Join(filepath.Dir(path), "ns/net"), instance)
		}
	}
	return names
}

// instanceOf returns the outermost instance in the paths of a process's cgroups, which the container itself cannot
// choose.
func instanceOf(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":/")
		for part := range strings.SplitSeq(group, "/") {
			if instanceName.MatchString(part) {
				return part
			}
		}
	}
	return ""
}

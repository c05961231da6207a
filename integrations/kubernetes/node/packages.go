// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// maxPulled limits the packages that a node pulls and keeps for the cluster. maxOfNamespaces limits those that only
// namespaced Modules use, so that they cannot prevent pulls for ClusterModules.
const (
	maxPulled       = 64
	maxOfNamespaces = maxPulled / 2
)

// listEvery is the interval of listing the agent's packages if none is missing. A list is expensive: the agent reads
// and verifies all packages.
const listEvery = 10 * time.Minute

// Backoff of pulls: the interval doubles from the minimum to the maximum.
const (
	minUnavailableRetry = 5 * time.Second // the registry or the agent does not respond
	maxUnavailableRetry = 5 * time.Minute
	minRefusedRetry     = time.Minute // the pull was rejected: the package may be pushed or signed later
	maxRefusedRetry     = 10 * time.Minute
)

// errSlow is the error of a pull that exceeded its timeout.
var errSlow = errors.New("the registry takes too long")

// errPulling is the error of a package before the first attempt to pull it has ended.
var errPulling = errors.New("spec.package.image: the node is pulling the package")

// images are the current and the previous package of a module in a registry. The previous one stays on the node, so
// that a rollback needs no registry.
type images struct {
	Current  string `json:"current,omitempty"`
	Previous string `json:"previous,omitempty"`
}

// setImage sets the package of a module, and keeps the one before as the previous package.
func (s *state) setImage(name, image string) {
	if of := s.images[name]; of.Current != image {
		s.images[name] = images{Current: image, Previous: of.Current}
	}
}

// wantedImages returns the packages of registries that modules use, with true for those of ClusterModules, and the
// previous packages of ClusterModules, which are kept. It ignores namespaced Modules that are not applied.
func (s *state) wantedImages(modules []api.Module) (want, kept map[string]bool) {
	want, kept = map[string]bool{}, map[string]bool{}
	inNamespace := map[string]int{}
	for _, m := range modules {
		namespace, image := m.Metadata.Namespace, m.Spec.Package.Image
		if inNamespace[namespace]++; namespace != "" && (inNamespace[namespace] > api.MaxModules || onLoopback(image)) {
			continue
		}
		want[image] = want[image] || namespace == ""
		if namespace != "" {
			continue
		}
		if r := m.Spec.Rollout; r != nil {
			want[r.Previous.Package.Image] = true
		}
		kept[s.images[nodeName(m)].Previous] = true
	}
	delete(want, "")
	return want, kept
}

// onLoopback reports whether a registry is on the node itself. Otherwise authors of namespaced Modules could have the
// agent send requests, without TLS, to programs that trust all clients on their node.
func onLoopback(image string) bool {
	registry, _, _ := strings.Cut(image, "/")
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = strings.Trim(registry, "[]")
	}
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") ||
		err == nil && (address.Unmap().IsLoopback() || address.Unmap().IsUnspecified())
}

// packageChanged triggers a synchronisation after the result of a pull has changed. If only namespaced Modules use the
// package, pods of other namespaces do not wait until the modules were applied again.
func (s *state) packageChanged(image string) {
	bit, namespaces := ofModules, map[string]bool{}
	s.mu.Lock()
	for _, m := range s.modules {
		r := m.Spec.Rollout
		switch namespace := m.Metadata.Namespace; {
		case m.Spec.Package.Image != image && (r == nil || r.Previous.Package.Image != image):
		case namespace == "":
			bit = ofClusterModules
		default:
			namespaces[namespace] = true
		}
	}
	s.mu.Unlock()
	s.update(bit, func() bool {
		for namespace := range namespaces {
			s.noteModulesChanged(namespace)
		}
		return bit == ofClusterModules || len(namespaces) > 0
	})
}

// attempt is the state of the pull of a package.
type attempt struct {
	forCluster bool   // a ClusterModule uses it
	failure    string // of the last attempt; empty before the first has ended
	refused    bool   // the last pull was rejected
	backoff    time.Duration
	due        time.Time
}

// puller has the agent pull packages one after the other in the background, so that pods do not wait for a registry.
type puller struct {
	agent agent
	state *state
	log   *slog.Logger
	wake  chan struct{}
	// timeout limits the pull of a package that only namespaced Modules use, since others wait for it.
	timeout time.Duration

	mu                 sync.Mutex
	attempts           map[string]attempt // by references of the needed packages
	capacity           int                // further packages that the node may keep
	namespacedCapacity int                // further packages that only namespaced Modules use
	pulled             int                // number of pulls since the start
}

func newPuller(a agent, s *state, log *slog.Logger) *puller {
	return &puller{agent: a, state: s, log: log, wake: make(chan struct{}, 1), timeout: time.Minute,
		attempts: map[string]attempt{}}
}

// setMissing replaces the set of packages to pull, with true for those of ClusterModules. capacity and namespaced are
// the numbers of further packages, and of those that only namespaced Modules use, that the node could keep when its
// count of pulls was pulled.
func (p *puller) setMissing(missing map[string]bool, capacity, namespaced, pulled int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.attempts, func(image string, _ attempt) bool {
		_, needed := missing[image]
		return !needed
	})
	for image, shared := range missing {
		a, known := p.attempts[image]
		if !known {
			a.due = time.Now()
		}
		a.forCluster = shared
		p.attempts[image] = a
	}
	p.capacity, p.namespacedCapacity = capacity-(p.pulled-pulled), namespaced-(p.pulled-pulled)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// count returns the number of packages pulled since the start.
func (p *puller) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pulled
}

// of returns the attempt to pull a package, or a zero one if the package is not needed.
func (p *puller) of(image string) attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts[image]
}

// run pulls packages that are due until the context ends.
func (p *puller) run(ctx context.Context) {
	for ctx.Err() == nil {
		image, wait := p.next()
		if image != "" {
			p.try(ctx, image)
			continue
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-time.After(wait):
		}
	}
}

// next returns the package that has been due for the longest time, or the time until one is due. Packages that cannot
// be pulled do not block others, and those of ClusterModules have priority.
func (p *puller) next() (image string, _ time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.capacity <= 0 {
		return "", math.MaxInt64
	}
	now, wait := time.Now(), time.Duration(math.MaxInt64)
	var best attempt
	for of, a := range p.attempts {
		if !a.forCluster && p.namespacedCapacity <= 0 {
			continue
		}
		if a.due.After(now) {
			wait = min(wait, a.due.Sub(now))
			continue
		}
		if image == "" || a.forCluster && !best.forCluster || a.forCluster == best.forCluster && a.due.Before(best.due) {
			image, best = of, a
		}
	}
	return image, wait
}

// try pulls a package, and triggers a synchronisation if that changes what is reported about it.
func (p *puller) try(ctx context.Context, image string) {
	limited := ctx
	if !p.of(image).forCluster {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	err := p.agent.pull(limited, image)
	if ctx.Err() != nil {
		return
	}
	if limited.Err() != nil {
		err = errSlow
	}
	p.mu.Lock()
	a, needed := p.attempts[image]
	changed := a.record(err)
	switch {
	case err == nil:
		delete(p.attempts, image) // from now on the agent lists it
		p.capacity--
		if !a.forCluster {
			p.namespacedCapacity--
		}
		p.pulled++
	case needed:
		p.attempts[image] = a
	}
	p.mu.Unlock()
	if !needed || !changed {
		return
	}
	if err != nil {
		p.log.Warn("a package is not pulled", "image", image, "error", a.failure, "retry", time.Until(a.due))
	}
	p.state.packageChanged(image)
}

// record stores the result of an attempt, and reports whether it differs from the last one.
func (a *attempt) record(err error) bool {
	if err == nil {
		return true
	}
	failure, refused := refusal(err)
	if !refused {
		failure = err.Error()
		var status *client.StatusError
		if errors.As(err, &status) {
			failure = status.Detail()
		}
	}
	least, most := minUnavailableRetry, maxUnavailableRetry
	if refused {
		least, most = minRefusedRetry, maxRefusedRetry
	}
	changed := failure != a.failure || refused != a.refused
	a.failure, a.refused = failure, refused
	a.backoff = min(max(2*a.backoff, least), most)
	a.due = time.Now().Add(a.backoff/2 + rand.N(a.backoff))
	return changed
}

// pullMissing lists the agent's packages, and has the puller pull the missing ones.
func (s *syncer) pullMissing(ctx context.Context, v view) error {
	if s.puller == nil {
		return nil
	}
	if err := s.list(ctx, v); err != nil {
		return err
	}
	missing := map[string]bool{}
	for image, shared := range v.images {
		_, there := s.have[image]
		if _, err := v.trust.from(image); err == nil && !there {
			missing[image] = shared
		}
	}
	s.puller.setMissing(missing, maxPulled-len(s.owned), maxOfNamespaces-s.namespacedOnly(v), s.pulled)
	return nil
}

// namespacedOnly returns how many pulled packages only namespaced Modules use.
func (s *syncer) namespacedOnly(v view) (n int) {
	for _, image := range s.owned {
		if !v.images[image] && !v.previousImages[image] {
			n++
		}
	}
	return n
}

// list lists the agent's packages: after each pull, every minute while a module is not applied, and otherwise every
// listEvery, since an operator may pull and remove packages and keys.
func (s *syncer) list(ctx context.Context, v view) error {
	pulled, every := s.puller.count(), listEvery
	if len(s.refused) > 0 {
		every = fullEvery
	}
	if s.pulled == pulled && (time.Since(s.listed) < every || len(v.images) == 0 && len(s.owned) == 0 && s.have != nil) {
		return nil
	}
	all, err := s.agent.packages(ctx)
	if err != nil {
		return err
	}
	s.have, s.owned, s.pulled, s.listed = map[string]v1.Package{}, nil, pulled, time.Now()
	for _, p := range all {
		image := cmp.Or(p.Pinned, p.Source) // older agents do not report Pinned
		if p.Problem == "" {
			s.have[image] = p
		}
		if p.Owner == names.Owner {
			s.owned = append(s.owned, image)
		}
	}
	return nil
}

// removeUnused removes packages that this program had pulled, and that no module uses or has used as its previous
// package. The agent rejects the removal of a package that one of its modules uses.
func (s *syncer) removeUnused(ctx context.Context, v view) {
	s.owned = slices.DeleteFunc(s.owned, func(image string) bool {
		if _, wanted := v.images[image]; wanted || v.previousImages[image] {
			return false
		}
		err := s.agent.removePackage(ctx, image)
		var status *client.StatusError
		if err != nil && !(errors.As(err, &status) && status.Status == http.StatusNotFound) {
			s.log.Debug("a package that is not needed stays", "image", image, "error", err)
			return false
		}
		delete(s.have, image)
		return true
	})
}

// packageAvailable returns the reason and the error if the node cannot use the package of a module.
func (s *syncer) packageAvailable(v view, image string) (string, error) {
	if image == "" || s.puller == nil {
		return "", nil
	}
	if reason, err := v.trust.from(image); err != nil {
		return reason, err
	}
	if p, ok := s.have[image]; ok {
		return v.trust.signed(p)
	}
	switch a := s.puller.of(image); {
	case a.refused:
		return api.PackageRefused, errors.New("spec.package.image: " + a.failure)
	case len(s.owned) >= maxPulled:
		return api.TooManyPackages, fmt.Errorf("spec.package.image: the node has pulled %d packages for the cluster, and "+
			"keeps no more: delete modules, or run kerb package pull on the node", maxPulled)
	case !v.images[image] && s.namespacedOnly(v) >= maxOfNamespaces:
		return api.TooManyPackages, fmt.Errorf("spec.package.image: the node has pulled %d packages for Modules of "+
			"namespaces, and keeps no more: delete Modules, or run kerb package pull on the node", maxOfNamespaces)
	case a.failure == "":
		return api.PackageUnavailable, errPulling
	default:
		return api.PackageUnavailable, fmt.Errorf("spec.package.image: %s; the node tries again", a.failure)
	}
}

// allowed returns the reason and the error if the package of a namespaced Module needs more than the packets of the
// pod.
func allowed(m api.Module, known map[string]v1.Package) (string, error) {
	image := m.Spec.Package.Image
	if image == "" {
		return "", nil
	}
	p, ok := known[image]
	switch {
	case onLoopback(image):
		return api.NotPermitted, errors.New("spec.package.image: a Module of a namespace names no registry on the node " +
			"itself: use a ClusterModule, or another registry")
	case !ok:
		return api.NotPulled, fmt.Errorf("spec.package.image: the node does not have it: kerb package pull %s", image)
	case len(p.Capabilities) > 0:
		return api.NotAllowed, fmt.Errorf("spec.package.image: the package uses %s of the node: use a ClusterModule",
			strings.Join(p.Capabilities, ", "))
	case slices.Contains(p.Hooks, "sockets"):
		return api.NotAllowed, errors.New("spec.package.image: the package attaches to sockets, not to pods: remove the " +
			"Module")
	}
	return "", nil
}

func (a agent) packages(ctx context.Context) (all []v1.Package, err error) {
	return all, a.call(ctx, http.MethodGet, "/v1/packages", nil, &all)
}

// pull has the agent pull a package, which verifies its signature with the node's keys.
func (a agent) pull(ctx context.Context, image string) error {
	return a.call(ctx, http.MethodPost, packagePath(image), nil, nil)
}

func (a agent) removePackage(ctx context.Context, image string) error {
	return a.call(ctx, http.MethodDelete, packagePath(image), nil, nil)
}

func packagePath(image string) string {
	return "/v1/packages?" + url.Values{"source": {image}, "owner": {names.Owner}}.Encode()
}

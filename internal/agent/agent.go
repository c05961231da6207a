// SPDX-License-Identifier: Apache-2.0

// Package agent wires the parts of Kerb together: it takes changes of the desired state, plans and executes them so
// that all of a change happens or none, commits them to the store, and follows the services of the node as they come
// and go.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os/user"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/history"
	"github.com/kerb-edge/kerb/internal/integration"
	"github.com/kerb-edge/kerb/internal/live"
	"github.com/kerb-edge/kerb/internal/lockfile"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/oci"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/samples"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/internal/trace"
	"github.com/kerb-edge/kerb/internal/view"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk"
)

// Agent is the daemon of one node.
type Agent struct {
	view.Views // what the API reads
	log        *slog.Logger
	store      *store.Store
	dp         *dataplane.Dataplane
	catalog    *pkgs.Catalog
	control    *control.Manager
	observer   *observe.Observer
	preparer   *deploy.Preparer
	watcher    *service.Watcher
	bindings   *service.Bindings // of interfaces to services
	virtual    *resolve.Table
	models     *models.Table
	slower     time.Duration   // packets that chains keep, without a trace
	base       context.Context // of control planes' background work

	wake       chan struct{} // asks for a reconciliation
	converged  chan struct{} // there may be chains without a timed copy
	selected   chan struct{} // modules may select other cgroups
	reconciled chan struct{} // closed after the first one, whether it succeeded or not

	functions atomic.Bool // as configured: the next reconciliation makes modules functions
	group     group       // guards itself
	journal   journal
	changes   sync.Mutex // one change at a time, which may wait for control planes
	// guards what follows, which only changes write; never held for long, so that status is always available
	mu         sync.Mutex
	now        status.Node
	live       *live.Modules
	busy       map[chain.Point]error // points that a program of others keeps from their chain
	traces     []*trace.Session      // guarded by changes; also such as are over
	explaining sync.Mutex            // one packet at a time
	sets       *sets.Sets            // guarded by changes
	budgets    *apply.Budgets        // guards itself

	*puller                       // guards itself
	integrations *integration.Set // guards itself
}

var _ server.Backend = (*Agent)(nil)

// Run is the agent's life: it returns when ctx ends, or with the error that keeps it from starting. What runs in the
// kernel keeps running either way. Integrations are its child processes.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger, integrations ...integration.Program) error {
	if err := checkBuilt(bpf.Objects()); err != nil {
		return err
	}
	memtrim.Start(0)
	allowSlack()
	if _, err := user.LookupGroup(cfg.SocketGroup); err != nil && cfg.SocketGroup != config.Default().SocketGroup {
		log.Warn("only root can use the sockets", "reason", err, "socketGroup", cfg.SocketGroup)
	}
	unlockNode, err := lockfile.AcquireNode(cfg.Paths)
	if err != nil {
		return err
	}
	defer func() { _ = unlockNode() }()
	release, err := dataplane.Lock(cfg.Paths.BPF)
	if err != nil {
		return err
	}
	defer release()
	a, err := open(ctx, cfg, log, integrations...)
	if err != nil {
		return err
	}
	defer a.close()
	return a.run(ctx, cfg)
}

// open opens the store and the data plane, and the agent on them.
func open(ctx context.Context, cfg config.Config, log *slog.Logger, integrations ...integration.Program) (*Agent,
	error) {
	st, err := store.Open(cfg.Paths.Store())
	if errors.Is(err, store.ErrLocked) {
		return nil, &apierrors.Conflict{Reason: "another kerb agent is running on this node (it holds " + cfg.Paths.Store() +
			"): stop it first"}
	}
	if err != nil {
		return nil, err
	}
	if r := st.Recovery(); r != nil {
		log.Error("the store was damaged; running chains are left as they are until modules are applied again",
			"kept", r.Path, "cause", r.Cause)
	}
	a, err := openOn(ctx, st, cfg, log, integrations)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return a, nil
}

func openDataplane(cfg config.Config, log *slog.Logger) (*dataplane.Dataplane, error) {
	dp, err := dataplane.Open(dataplane.Options{Root: cfg.Paths.BPF, Run: cfg.Paths.Run,
		NoGuard: cfg.SpliceGuard == config.GuardOff, NoExpedite: cfg.ExpeditedRCU == config.ExpeditedOff})
	if err != nil {
		return nil, err
	}
	if err := dp.SetGuards(); err != nil {
		log.Warn("splice(2) is guarded as by the agent before", "error", err)
	}
	return dp, nil
}

func openOn(ctx context.Context, st *store.Store, cfg config.Config, log *slog.Logger,
	integrations []integration.Program) (*Agent, error) {
	dp, err := openDataplane(cfg, log)
	if err != nil {
		return nil, err
	}
	desired, err := st.Snapshot()
	if err != nil {
		return nil, err
	}
	a := &Agent{
		log: log, store: st, dp: dp, base: context.WithoutCancel(ctx), slower: cfg.Slower(),
		models:  models.NewTable(log),
		catalog: pkgs.NewCatalog(modules.Packages(), modules.Controls()),
		watcher: service.NewWatcher(log),
		wake:    make(chan struct{}, 1), converged: make(chan struct{}, 1), selected: make(chan struct{}, 1),
		reconciled: make(chan struct{}),
		now:        status.Node{Desired: desired, Modules: map[string]*deploy.Module{}, Functions: cfg.ModuleFunctions},
		budgets:    apply.NewBudgets(log),
	}
	a.functions.Store(cfg.ModuleFunctions)
	a.integrations = integration.NewSet(integrations, log, func() { a.now.Recorder.Enqueue(status.Itself) })
	a.virtual = resolve.NewTable(log, cfg.Paths.Resolved(), a.integrations.Resolvers()...)
	a.sets = sets.New(log, func(create bool) (sets.Kernel, error) {
		k, err := dp.OpenSets(create)
		if k == nil {
			return nil, err // no interface with a nil pointer in it
		}
		return k, nil
	}, st.RecoveryPending)
	a.now.Sources = status.Sources{Recorder: status.NewRecorder(), Virtual: a.virtual, Model: a.models.Status,
		CgroupRoot: cmp.Or(cfg.Cgroup, "/"), Agent: a.itself, Cost: a.budgets.Get, SetProblem: a.sets.Problem, Mode: dp.Mode,
		Programs: dp.Programs, Interfaces: a.watcher.HostInterfaces, LostMetric: a.LostMetric}
	events := history.OpenEvents(cfg.Paths.History(), func(err error) { log.Warn("events are not stored", "error", err) })
	a.control, err = control.New(control.Options{Run: cfg.Paths.ControlSockets(), State: cfg.Paths.ControlState(),
		Log: log, Services: a.virtual, Models: a.models, Packets: service.Packets{Of: a.ServiceOf}, Arrive: dataplane.Arrive,
		OnChange: a.now.Recorder.EnqueueKind(v1.KindModule), OnEvent: events.OfControlPlane,
		Kernel:       control.KernelFacts(cfg.Paths.SocketFacts(), log),
		Limits:       controlLimits(cfg.Limits),
		ModuleSocket: cfg.Paths.ModuleSocket, SocketGroup: cfg.SocketGroup})
	if err != nil {
		return nil, err
	}
	a.live = live.New(log, dp, a.control)
	a.now.Counters = a.live.Counters
	a.Views = view.Views{Base: a.base, Log: log, Lock: &a.mu, Now: &a.now, Store: st, Catalog: a.catalog, Models: a.models,
		Dataplane: dp, Live: a.live, Look: a.look, EventLog: events, ProcessName: a.integrations.NameOf,
		ChangeLog: history.Open(cfg.Paths.History(), func(err error) { log.Warn("changes are not recorded", "error", err) }),
		Started:   time.Now(), Took: promtext.NewHistogram(0.001, 14)}
	a.journal = journal{&a.Views}
	a.Samples = samples.OpenSampler(samplesDir(cfg), log)
	a.virtual.OnChange(a.now.Recorder.EnqueueKind(v1.KindVirtualService))
	a.models.OnChange(a.now.Recorder.EnqueueKind(v1.KindModel))
	a.observer = observe.New(a.watcher, cmp.Or(cfg.Cgroup, "/"))
	recordEvents(a.now.Recorder, events)
	a.preparer = &deploy.Preparer{Log: log, Base: a.base, Catalog: a.catalog, Control: a.control, Observe: dp.Observe,
		Maps: a.live.Maps, Free: func(m sdk.Maps) bool { return dp.Free(m) == nil }}
	a.restore(cfg.Paths)
	return a, nil
}

// reload takes from a configuration what needs no restart. Chains are swapped soon: it waits for no change.
func (a *Agent) reload(cfg config.Config) error {
	a.functions.Store(cfg.ModuleFunctions)
	a.requestReconcile()
	return nil
}

// itself is what the agent's own conditions are about.
func (a *Agent) itself() status.Agent {
	out := status.Agent{Starting: a.starting(), StoreReadOnly: a.store.ReadOnly(), StoreLost: a.store.RecoveryPending(),
		ControlProblem: a.control.Problem(), Weaknesses: a.control.Weaknesses()}
	if c, configured := a.integrations.Condition(); configured {
		out.Integrations = &c
	}
	return out
}

// restore loads what an earlier agent has left besides the store, and passes on the desired state.
func (a *Agent) restore(files paths.Paths) {
	for _, all := range a.now.Desired {
		a.announce(resource.Changes{Put: slices.Collect(maps.Values(all))})
	}
	a.virtual.Restore()
	a.puller = &puller{views: &a.Views, changes: &a.changes, store: oci.NewStore(files.Packages(), files.Keys()),
		credentials: files.Credentials()}
	a.catalog.SetPulled(a.puller.store)
	var err error
	if a.bindings, err = service.OpenBindings(files.Bindings()); err != nil {
		a.log.Warn("which interface belongs to which service is not known from before; those that have left their service "+
			"are not found", "error", err)
	}
	a.observer.Binder = a.bindings
	if err := a.catalog.Err(); err != nil {
		a.log.Error("built-in packages that cannot be used", "error", err)
	}
	for name, m := range resource.Module.All(a.now.Desired) {
		a.now.Modules[name] = a.preparer.Accepted(m)
	}
	a.watcher.Set(specs(a.now.Desired))
}

// close closes all but the chains, which keep running. Control planes end together: each may take seconds.
func (a *Agent) close() {
	a.changes.Lock()
	defer a.changes.Unlock()
	a.live.Close()
	var ending sync.WaitGroup
	for _, d := range a.now.Modules {
		if d.Control != nil {
			ending.Go(d.Control.Close)
		}
	}
	ending.Wait()
	a.control.Close()
	a.sets.Close()
	a.dp.Close()
	a.ChangeLog.Flush()
	a.EventLog.Flush()
	a.Samples.Close()
	a.store.Close()
}

// samplesDir is where samples are kept; nowhere if the history is off.
func samplesDir(cfg config.Config) string {
	if cfg.History == nil {
		return ""
	}
	return cfg.Paths.Samples()
}

func (a *Agent) run(ctx context.Context, cfg config.Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.watcher.OnChange(a.requestReconcile)
	cfg.Reloads.Subscribe(a.reload)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		if err := a.watcher.Run(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	wg.Go(func() { a.follow(ctx) })
	wg.Go(func() { calm{a, map[string]bool{}}.run(ctx) })
	wg.Go(func() { a.budgets.Run(ctx, a.candidates, a.now.Recorder.EnqueueKind(v1.KindModule)) })
	wg.Go(func() { a.now.Recorder.Run(ctx, a.Evaluate) })
	wg.Go(func() { observe.WatchCgroups(ctx, a.selected, a.selectedCgroups, a.requestReconcile) })
	wg.Go(func() { a.Samples.Run(ctx, a.Sample) })
	wg.Go(func() {
		if err := a.virtual.Run(ctx); err != nil {
			cancel(err)
		}
	})
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	err := server.Run(serving, cfg, a, a.log, func() {
		wg.Go(func() { a.notifyReady(ctx, cfg.Paths.Socket()) })
		wg.Go(func() {
			defer stopServing() // after integrations: they finish what is under way by the API
			a.integrations.Run(ctx)
			<-ctx.Done()
		})
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// notifyReady notifies systemd once chains are as desired, or as near as the first reconciliation came: services that
// are ordered after the agent are not to start without their modules. The API answers before that.
func (a *Agent) notifyReady(ctx context.Context, socket string) {
	select {
	case <-a.reconciled:
	case <-ctx.Done():
		return
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	a.log.Info("ready", "socket", socket)
}

// starting reports whether the first reconciliation is still to come.
func (a *Agent) starting() bool {
	select {
	case <-a.reconciled:
		return false
	default:
		return true
	}
}

// requestReconcile asks for a reconciliation soon.
func (a *Agent) requestReconcile() { poke(a.wake) }

// poke wakes a loop up.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// follow reconciles whenever services change, and again after failures. Modules that cannot run are
// tried again less often, as a control plane that does not answer keeps changes waiting.
func (a *Agent) follow(ctx context.Context) {
	const retry, retryModules = 5 * time.Second, 30 * time.Second
	timer, failed := time.NewTimer(retry), time.NewTicker(retryModules)
	defer timer.Stop()
	defer failed.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		case <-failed.C:
			a.retryFailed()
			continue
		}
		a.changes.Lock()
		if err := a.reconcile(); err != nil {
			a.log.Error("the node is not as desired; trying again", "error", err, "after", retry)
			timer.Reset(retry)
		}
		a.changes.Unlock()
		if a.starting() {
			close(a.reconciled)
			a.now.Recorder.Enqueue(status.Itself)
		}
		a.budgets.Poke()
	}
}

// controlLimits are those of a configuration that has been checked.
func controlLimits(l config.Limits) (out control.Limits) {
	out.Memory, _ = pkgs.ParseBytes(l.ControlMemory)
	out.Disk, _ = pkgs.ParseBytes(l.ControlDisk)
	return out
}

// retryFailed prepares those modules again that could not run when the agent started.
func (a *Agent) retryFailed() {
	a.changes.Lock()
	defer a.changes.Unlock()
	for name, d := range a.now.Modules {
		next := a.preparer.Again(d)
		if next == nil {
			continue
		}
		again := sets.State{Desired: a.now.Desired, Modules: map[string]*deploy.Module{name: next}}
		if err := sets.Check(a.now.Sets(), again); err != nil {
			next.Release(d)
			failed := *d
			failed.Err = err
			next = &failed
		} else {
			a.log.Info("module can run again", "module", name)
			a.requestReconcile()
		}
		a.mu.Lock()
		a.now.Modules[name] = next
		a.mu.Unlock()
		a.now.Recorder.Enqueue(status.Resource{Kind: v1.KindModule, Name: name})
	}
}

// specs are the services that the watcher looks for.
func specs(d resource.State) map[string]v1.ServiceSpec {
	out := map[string]v1.ServiceSpec{}
	for name, s := range resource.Service.All(d) {
		out[name] = s.Spec
	}
	return out
}

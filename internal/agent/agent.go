// SPDX-License-Identifier: Apache-2.0

// Package agent wires the parts of Kerb together, and starts and ends them. What takes a change of the desired state to
// the kernel is package change.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os/user"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/change"
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
	"github.com/kerb-edge/kerb/internal/samples"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/internal/view"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk"
)

// Agent is the daemon of one node.
type Agent struct {
	*change.Pipeline // and its views: what the API reads
	*change.Requests
	*change.Tracer
	*change.Puller
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
	events := history.OpenEvents(cfg.Paths.History(), func(err error) { log.Warn("events are not stored", "error", err) })
	views := &view.Views{Base: context.WithoutCancel(ctx), Log: log, Lock: &sync.Mutex{}, Store: st, Dataplane: dp,
		Now:     &status.Node{Desired: desired, Modules: map[string]*deploy.Module{}, Functions: cfg.ModuleFunctions},
		Catalog: pkgs.NewCatalog(modules.Packages(), modules.Controls()), Models: models.NewTable(log), EventLog: events,
		ChangeLog: history.Open(cfg.Paths.History(), func(err error) { log.Warn("changes are not recorded", "error", err) }),
		Samples:   samples.OpenSampler(samplesDir(cfg), log), Started: time.Now(), Took: promtext.NewHistogram(0.001, 14)}
	p := change.New(views)
	a := &Agent{Pipeline: p, Requests: change.NewRequests(p), Tracer: p.Tracer()}
	a.integrations = integration.NewSet(integrations, log, func() { a.Now.Recorder.Enqueue(status.Itself) })
	a.ProcessName = a.integrations.NameOf
	p.Functions.Store(cfg.ModuleFunctions)
	p.Slower = cfg.Slower()
	p.Budgets = apply.NewBudgets(log)
	p.Watcher = service.NewWatcher(log)
	p.Observer = observe.New(p.Watcher, cmp.Or(cfg.Cgroup, "/"))
	p.Virtual = resolve.NewTable(log, cfg.Paths.Resolved(), a.integrations.Resolvers()...)
	p.Sets = sets.New(log, func(create bool) (sets.Kernel, error) {
		k, err := dp.OpenSets(create)
		if k == nil {
			return nil, err // no interface with a nil pointer in it
		}
		return k, nil
	}, st.RecoveryPending)
	p.Now.Sources = status.Sources{Recorder: status.NewRecorder(), Virtual: p.Virtual, Model: p.Models.Status,
		CgroupRoot: cmp.Or(cfg.Cgroup, "/"), Agent: a.itself, Cost: p.Budgets.Get, SetProblem: p.Sets.Problem, Mode: dp.Mode,
		Programs: dp.Programs, Interfaces: p.Watcher.HostInterfaces, LostMetric: p.LostMetric}
	recorder := p.Now.Recorder
	p.Control, err = control.New(control.Options{Run: cfg.Paths.ControlSockets(), State: cfg.Paths.ControlState(),
		Log: log, Services: p.Virtual, Models: p.Models, Packets: service.Packets{Of: p.ServiceOf}, Arrive: dataplane.Arrive,
		OnChange: recorder.EnqueueKind(v1.KindModule), OnEvent: events.OfControlPlane,
		Kernel:       control.KernelFacts(cfg.Paths.SocketFacts(), log),
		Limits:       controlLimits(cfg.Limits),
		ModuleSocket: cfg.Paths.ModuleSocket, SocketGroup: cfg.SocketGroup})
	if err != nil {
		return nil, err
	}
	p.Live = live.New(log, dp, p.Control)
	p.Now.Counters = p.Live.Counters
	p.Virtual.OnChange(recorder.EnqueueKind(v1.KindVirtualService))
	p.Models.OnChange(recorder.EnqueueKind(v1.KindModel))
	recordEvents(recorder, events)
	p.Preparer = &deploy.Preparer{Log: log, Base: p.Base, Catalog: p.Catalog, Control: p.Control, Observe: dp.Observe,
		Maps: p.Live.Maps, Free: func(m sdk.Maps) bool { return dp.Free(m) == nil }}
	a.restore(cfg.Paths)
	return a, nil
}

// reload takes from a configuration what needs no restart. Chains are swapped soon: it waits for no change.
func (a *Agent) reload(cfg config.Config) error {
	a.Functions.Store(cfg.ModuleFunctions)
	a.RequestReconcile()
	return nil
}

// itself is what the agent's own conditions are about.
func (a *Agent) itself() status.Agent {
	out := status.Agent{Starting: a.Starting(), StoreReadOnly: a.Store.ReadOnly(), StoreLost: a.Store.RecoveryPending(),
		ControlProblem: a.Control.Problem(), Weaknesses: a.Control.Weaknesses()}
	if c, configured := a.integrations.Condition(); configured {
		out.Integrations = &c
	}
	return out
}

// restore loads what an earlier agent has left besides the store, and passes on the desired state.
func (a *Agent) restore(files paths.Paths) {
	pulled := oci.NewStore(files.Packages(), files.Keys())
	a.Puller = change.NewPuller(a.Pipeline, pulled, files.Credentials())
	a.Catalog.SetPulled(pulled)
	var err error
	if a.Bindings, err = service.OpenBindings(files.Bindings()); err != nil {
		a.Log.Warn("which interface belongs to which service is not known from before; those that have left their service "+
			"are not found", "error", err)
	}
	a.Observer.Binder = a.Bindings
	if err := a.Catalog.Err(); err != nil {
		a.Log.Error("built-in packages that cannot be used", "error", err)
	}
	a.Restore()
}

// close closes all but the chains, which keep running. Control planes end together: each may take seconds.
func (a *Agent) close() {
	a.Exclusive.Lock()
	defer a.Exclusive.Unlock()
	a.Live.Close()
	var ending sync.WaitGroup
	for _, d := range a.Now.Modules {
		if d.Control != nil {
			ending.Go(d.Control.Close)
		}
	}
	ending.Wait()
	a.Control.Close()
	a.Sets.Close()
	a.Dataplane.Close()
	a.ChangeLog.Flush()
	a.EventLog.Flush()
	a.Samples.Close()
	a.Store.Close()
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
	a.Watcher.OnChange(a.RequestReconcile)
	cfg.Reloads.Subscribe(a.reload)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		if err := a.Watcher.Run(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	wg.Go(func() { a.Pipeline.Run(ctx) })
	wg.Go(func() { a.Now.Recorder.Run(ctx, a.Evaluate) })
	wg.Go(func() { a.Samples.Run(ctx, a.Sample) })
	wg.Go(func() {
		if err := a.Virtual.Run(ctx); err != nil {
			cancel(err)
		}
	})
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	err := server.Run(serving, cfg, a, a.Log, func() {
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
	case <-a.Reconciled():
	case <-ctx.Done():
		return
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	a.Log.Info("ready", "socket", socket)
}

// controlLimits are those of a configuration that has been checked.
func controlLimits(l config.Limits) (out control.Limits) {
	out.Memory, _ = pkgs.ParseBytes(l.ControlMemory)
	out.Disk, _ = pkgs.ParseBytes(l.ControlDisk)
	return out
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

func (n *node) flows(t *testing.T, r v1.FlowsRequest) (all []v1.Flow, err error) {
	t.Helper()
	err = n.Flows(t.Context(), r, func(l v1.FlowLine) error {
		if l.Flow != nil {
			all = append(all, *l.Flow)
		}
		return nil
	})
	return all, err
}

// What is recorded of a drop has the name of the module that dropped and its reason, also when the chain changes: a
// module comes before it, it moves, it is removed, another one takes its place.
func TestDropsOfFlowsKeepTheirModule(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"), module("flows", "flows", "*", map[string]any{"idle": 600}))
	check := func(when string) {
		t.Helper()
		for _, since := range []int{0, 60} {
			all, err := n.flows(t, v1.FlowsRequest{Service: "web", Protocol: "udp", Port: 7000, Since: since})
			if err != nil || len(all) != 1 || all[0].Dropped != 5 || all[0].DropModule != "fw" ||
				all[0].DropReason != "policy" {
				t.Errorf("%s, since %d: %+v, %v", when, since, all, err)
			}
		}
	}
	wait.Until(t, "the control plane sums up flows", func() bool { // what began before is in no sum
		sendDatagrams(t, n.web, n.db, 7001, 1)
		all, err := n.flows(t, v1.FlowsRequest{Port: 7001, Since: 60})
		return err == nil && len(all) > 0
	})
	sendDatagrams(t, n.web, n.db, 7000, 5)
	check("at first")
	first := module("count", "counter", "*", nil)
	first.Spec.Order.Before = []string{"fw"}
	n.apply(t, nil, first)
	check("with a module before it")
	moved := first
	moved.Spec.Order = v1.Order{After: []string{"fw"}}
	n.apply(t, nil, moved)
	check("with a module behind it")
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "fw"})
	check("without it")
	n.apply(t, nil, denyPort("other"))
	check("with another one")
}

// Only packages that say so record flows: a query of that name may be about anything.
func TestRecordersAreDeclared(t *testing.T) {
	n := newNode(t)
	dir := probePackage(t)
	edit(t, dir+"/kerb.yaml", func(text string) string { return text + "queries: {flows: flows of water}\n" })
	n.apply(t, n.both(), module("water", dir, "*", nil))
	if all, err := n.flows(t, v1.FlowsRequest{}); !isConflict(err) || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	edit(t, dir+"/kerb.yaml", func(text string) string { return text + "recordsFlows: true\n" })
	n.apply(t, nil, module("packets", dir, "*", nil))
	var all []v1.Flow
	wait.Until(t, "the control plane answers", func() (ok bool) {
		var err error
		all, err = n.flows(t, v1.FlowsRequest{})
		return err == nil
	})
	if len(all) != 1 || all[0].Module != "packets" || all[0].Source != "192.0.2.77" {
		t.Errorf("%+v", all)
	}
}

func isConflict(err error) bool {
	var conflict *apierrors.Conflict
	return errors.As(err, &conflict)
}

// Removed modules are known as long as there are not too many; their reasons are those of their packages.
func TestFormerDroppers(t *testing.T) {
	var f formerDroppers
	of := func(n int) *deploy.Module {
		m := pkgs.Manifest{DropReasons: map[string]int{fmt.Sprint("r", n): 40}}
		return &deploy.Module{Pkg: &pkgs.Package{Manifest: m}}
	}
	kept := map[string]*deploy.Module{"kept": of(0), "broken": {}}
	f.add(kept, kept)
	for n := range mostFormer + 2 {
		f.add(map[string]*deploy.Module{fmt.Sprint("m", n): of(n), "kept": of(0)}, kept)
	}
	if len(f) != mostFormer || f[0].name != "m2" || f[0].reason(40) != "r2" || f[mostFormer-1].reason(1) != "policy" {
		t.Errorf("%d: %+v", len(f), f[0])
	}
}

// Of a removed module its reasons stay in memory, and nothing else of its package: schemas may take megabytes.
func TestFormerDroppersAreSmall(t *testing.T) {
	var f formerDroppers
	freed := make(chan struct{})
	func() {
		large := new([1 << 20]byte)
		runtime.AddCleanup(large, func(freed chan struct{}) { close(freed) }, freed)
		m := pkgs.Manifest{DropReasons: map[string]int{"r": 40}, ConfigSchema: map[string]any{"large": large}}
		f.add(map[string]*deploy.Module{"m": {Pkg: &pkgs.Package{Manifest: m}}}, nil)
	}()
	wait.Until(t, "the schema is freed", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
	if len(f) != 1 || f[0].reason(40) != "r" {
		t.Errorf("%+v", f)
	}
}

// A client that follows gets what is missing of each service, again when it has changed, and not otherwise.
func TestMissingFlowsComeOnce(t *testing.T) {
	n := newNode(t)
	dir := probePackage(t)
	edit(t, dir+"/kerb.yaml", func(text string) string {
		return text + "queries: {flows: flows of water}\nrecordsFlows: true\n"
	})
	n.apply(t, n.both(), module("packets", dir, "*", nil))
	wait.Until(t, "the control plane answers", func() bool {
		_, err := n.flows(t, v1.FlowsRequest{})
		return err == nil
	})
	var got []string
	answers := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := n.Flows(ctx, v1.FlowsRequest{Follow: true}, func(l v1.FlowLine) error {
		if l.Flow != nil {
			if answers++; answers == 4 {
				cancel()
			}
			return nil
		}
		got = append(got, fmt.Sprint(l.Missing.Service, " ", l.Missing.UnrecordedPackets))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"db 7", "web 3", "db 8"} // in the third answer
	if !slices.Equal(got[:min(len(got), len(want))], want) || len(got) > len(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A module that nothing is known of has no name, and of its own reasons the number.
func TestUnknownDropper(t *testing.T) {
	n := flowNames{droppers: map[uint32]dropper{}}
	f := n.complete(&sdk.FlowRecord{Drop: &sdk.FlowDrop{Module: 7, Reason: 33}})
	if f.DropModule != "" || f.DropReason != "module_1" {
		t.Errorf("%+v", f)
	}
}

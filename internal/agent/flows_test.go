// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
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

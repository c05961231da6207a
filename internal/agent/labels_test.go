// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/resource"
)

// A module on XDP whose chain no longer fits one program, as after a boot into another kernel, keeps the chains of no
// other module from being attached: it is disabled. A client that asks for such a chain gets a conflict.
func TestLabelsThatAChainCannotCarry(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	n := newNode(t)
	onXDP := func(name, pkg, selector string, config map[string]any) v1.Module {
		m := module(name, testPackage(t, pkg), selector, config)
		m.Spec.Hook = v1.HookXDP
		return m
	}
	n.apply(t, n.both(), onXDP("a", "label", "app=none", map[string]any{"label": 5}),
		onXDP("h1", "huge", "app=web", nil), onXDP("h2", "huge", "app=web", nil))
	tap := onXDP("a", "label", "app=web", map[string]any{"label": 5})
	_, err := n.Apply(t.Context(), resource.Request{Resources: resource.Objects(tap)})
	var conflict *apierrors.Conflict
	if !errors.As(err, &conflict) {
		t.Errorf("applied: %v", err)
	}

	n.Exclusive.Lock() // as if the agent had started with it
	accepted := n.Preparer.Accepted(tap)
	n.Lock.Lock()
	n.Now.Modules["a"] = accepted
	other := module("count", testPackage(t, "pass"), "*", nil)
	n.Now.Desired = n.Now.Desired.Clone()
	n.Now.Desired[v1.KindModule]["a"], n.Now.Desired[v1.KindModule]["count"] = &tap, &other
	n.Now.Modules["count"] = n.Preparer.Accepted(other)
	n.Lock.Unlock()
	n.Exclusive.Unlock()
	n.reconcileNow(t)
	n.Lock.Lock()
	why := n.Now.Modules["a"].Err
	n.Lock.Unlock()
	var labels *dataplane.LabelsError
	if !errors.As(why, &labels) {
		t.Errorf("the module has the error %v", why)
	}
	if web, db := n.chainsOn(t, n.web), n.chainsOn(t, n.db); web["xdp"] == "" || db["tc-ingress"] == "" {
		t.Errorf("web runs %v, db %v", web, db)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/store"
)

// A store that cannot be written is no conflict, even where another program keeps the kernel from being as before.
func TestCommitFails(t *testing.T) {
	n := newNode(t)
	n.changes.Lock()
	err := n.store.Close()
	n.changes.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	m := module("count", testPackage(t, "pass"), "*", nil)
	_, err = n.Apply(t.Context(), resource.Request{Resources: append(resource.Objects(n.both()...), &m)})
	var conflict *apierrors.Conflict
	if err == nil || errors.As(forOperator(errors.Join(err, chain.ErrBusy)), &conflict) {
		t.Errorf("a closed store: %v", err)
	}
	var full *apierrors.ReadOnly
	err = forOperator(errors.Join(&commitError{store.ErrFull}, chain.ErrBusy))
	if !errors.As(err, &full) || errors.As(err, &conflict) {
		t.Errorf("a full disk: %T %v", err, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// A store that cannot be written is no conflict.
func TestCommitFails(t *testing.T) {
	n := newNode(t)
	n.Exclusive.Lock()
	err := n.Store.Close()
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	m := module("count", testPackage(t, "pass"), "*", nil)
	_, err = n.Apply(t.Context(), resource.Request{Resources: append(resource.Objects(n.both()...), &m)})
	var conflict *apierrors.Conflict
	if err == nil || errors.As(err, &conflict) {
		t.Errorf("a closed store: %v", err)
	}
}

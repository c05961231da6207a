// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// The client gets mistakes and the reason why a resource could not be checked; mistakes determine the status.
func TestProblemOfJoinedErrors(t *testing.T) {
	err := errors.Join(&apierrors.Unavailable{Resource: "Module a", Reason: "no answer"},
		errors.Join(&apierrors.Invalid{Resource: "Module b", Field: "spec.hook", Reason: "wrong"},
			errors.New("disk on fire")))
	p := problemOf(err)
	want := []Mistake{{Resource: "Module a", Detail: "no answer"},
		{Resource: "Module b", Field: "spec.hook", Detail: "wrong"},
		{Detail: "disk on fire"}}
	if diff := cmp.Diff(want, p.Errors); diff != "" || p.Status != http.StatusBadRequest {
		t.Errorf("status %d, want - have +\n%s", p.Status, diff)
	}
	if got := problemOf(&apierrors.Unavailable{Resource: "Module a",
		Reason: "no answer"}); got.Status != http.StatusServiceUnavailable ||
		got.Detail != "Module a: no answer" {
		t.Errorf("alone: %+v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
)

// A state that arrives after a later response does not mean that the module has restarted: all cars are not reported
// again.
func TestOvertakenStateIsPassedOver(t *testing.T) {
	s := New(nil) // which to tell anything of would not survive
	s.cars, s.kernel = 65, speedlimit.State{Cars: 65, Answered: 60}
	s.learn(t.Context(), speedlimit.State{Cars: 63, Answered: 59}, false)
	if n := s.Totals(); n.Cars != 65 || n.KernelAnswered != 60 {
		t.Errorf("%+v", n)
	}
	s.learn(t.Context(), speedlimit.State{Cars: 66, Answered: 61}, false)
	if n := s.Totals(); n.Cars != 66 || n.KernelAnswered != 61 {
		t.Errorf("%+v", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// forgetDrops forgets the drops of interfaces that belong to no service any more.
func (a *Agent) forgetDrops() {
	owners := a.now.Owners()
	for name, l := range a.live {
		if err := dataplane.ForgetDrops(l.maps, func(ifindex int) bool { return owners[ifindex] != "" }); err != nil {
			a.log.Warn("cannot forget the drops of services that are gone", "module", name, "error", err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"

	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// Open opens a packet socket inside the service of an instance.
func (a *Agent) Open(i sdk.Instance) (*os.File, error) {
	a.mu.Lock()
	s, _ := resource.Service.Get(a.now.Desired, i.Service)
	links := a.now.Services[i.Service].Links
	a.mu.Unlock()
	for _, l := range links {
		if l.Ifindex == int(i.Ifindex) {
			return service.OpenPacket(s.Spec, l)
		}
	}
	return nil, errors.New("the interface has just gone")
}

// Ended are the instances whose namespaces have ended but for packet sockets.
func (a *Agent) Ended(list []sdk.Instance) []uint32 {
	var look []uint32
	for _, i := range list {
		look = append(look, i.Ifindex)
	}
	return service.OrphanedNamespaces(look)
}

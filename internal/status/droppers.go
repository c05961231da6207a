// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// Dropper is a module that may have dropped packets.
type Dropper struct {
	Name   string
	Reason func(number int) string
}

// formerDroppers are modules that were removed since the start of the agent: flows may still have drops of theirs.
type formerDroppers []Dropper

// mostFormer is the maximum number of removed modules that are remembered: the oldest ones are forgotten.
const mostFormer = 256

// add adds the previous modules that no longer exist.
func (f *formerDroppers) add(before, now map[string]*deploy.Module) {
	for name, d := range before {
		if now[name] != nil || d == nil || d.Pkg == nil {
			continue
		}
		reasons := pkgs.Manifest{DropReasons: d.Pkg.DropReasons} // the rest, such as the schema, may take megabytes
		all := append(slices.Clone(*f), Dropper{name, reasons.DropReason})
		*f = all[max(0, len(all)-mostFormer):]
	}
}

// Droppers returns all modules that may have dropped packets, by their number in the data plane.
func (nd *Node) Droppers() map[uint32]Dropper {
	out := map[uint32]Dropper{}
	for _, d := range nd.former {
		out[sdk.ModuleNumber(d.Name)] = d
	}
	reasons := nd.ReasonNames()
	for name := range nd.Modules {
		out[sdk.ModuleNumber(name)] = Dropper{name, func(number int) string { return reasons(name, number) }}
	}
	return out
}

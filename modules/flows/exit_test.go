// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Packets that another module drops or answers are in the flow, in either order of the modules, and each packet counts
// once.
func TestVerdicts(t *testing.T) {
	sdktest.NeedRoot(t)
	own := pkttest.ModuleOf(pkgstest.Package(t))
	compiled := sdktest.Compile[sdk.Compiled](t, Control(), `{}`)
	own.Settings, own.Fill = compiled.Settings(), compiled.Fill
	own.ID = "flows"
	for verdict, name := range map[uint32]string{1: "drop", 2: "reply", 0: "next"} {
		other := pkttest.ModuleOf(pkgstest.PackageIn(t, "../../internal/dataplane/testdata/verdict"))
		other.ID = "other"
		other.Settings.Constants = map[string]any{"verdict": verdict}
		for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
			for _, direction := range []chain.Direction{chain.Egress, chain.Ingress} {
				for order, modules := range map[string][]dataplane.Module{"flows first": {own, other}, "flows last": {other, own}} {
					t.Run(name+" "+string(side)+" "+string(direction)+" "+order, func(t *testing.T) {
						l, err := dataplane.Load(side, direction, modules...)
						sdktest.Explain(t, err)
						t.Cleanup(l.Close)
						e := tcp(egress, "S", 1, 0, 0)
						if direction == chain.Ingress {
							e = tcp(ingress, "S", 1, 0, 0)
						}
						for range 3 {
							if _, _, err := l.Program.Test(e.frame(t)); err != nil {
								t.Fatal(err)
							}
						}
						g := &running{Live: sdk.Live{Maps: l.Maps["flows"]}}
						n := 0
						if err := g.each(func(_ key, v *value) {
							n++
							s := v.Side[e.direction]
							want := side3(verdict, other.Name)
							if s.Packets != 3 || s.Dropped != want.Dropped || s.Replied != want.Replied ||
								s.DropModule != want.DropModule || s.Retransmits != 2 {
								t.Errorf("%+v", s)
							}
						}); err != nil || n != 1 {
							t.Errorf("%d flows, %v", n, err)
						}
					})
				}
			}
		}
	}
}

// side3 returns the counters of a direction after three packets.
func side3(verdict uint32, dropper string) (s side) {
	switch verdict {
	case 1:
		s.Dropped, s.DropModule = 3, sdk.ModuleNumber(dropper)
	case 2:
		s.Replied = 3
	}
	return s
}

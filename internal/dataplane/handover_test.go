// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
)

// labelling gives packets a label; a module that expects one drops packets with another.
func labelling(t *testing.T, name string, label int) Module {
	return testModule(t, "label", name, map[string]any{"label": label})
}

func expecting(t *testing.T, name string, label int) Module {
	return testModule(t, "label", name, map[string]any{"wanted": label})
}

// A label stays with a packet, also next to the target of a deferred redirect, until another module gives it another
// one, and no packet begins with one.
func TestLabels(t *testing.T) {
	for _, s := range sides {
		t.Run(string(s.side), func(t *testing.T) {
			l := load(t, s.side, s.dir, expecting(t, "none", 0), labelling(t, "first", 0xffff),
				testModule(t, "pass", "count", nil), expecting(t, "same", 0xffff), labelling(t, "other", 7),
				expecting(t, "last", 7))
			for range 2 {
				run(t, l.Program, udpPacket(t, 1, nil))
			}
			for _, name := range []string{"none", "same", "last"} {
				if drops, _ := l.Drops(name); sum(drops) != 0 {
					t.Errorf("%s has found another label: %v", name, drops)
				}
			}
		})
	}
	l := load(t, chain.OnTCIngress, chain.Egress, later(t, "later", loopback), labelling(t, "first", 3),
		expecting(t, "last", 3))
	if got, _ := run(t, l.Program, udpPacket(t, 1, nil)); got != tcRedirect {
		t.Errorf("action %d of a packet with a target and a label", got)
	}
}

// In a chain that is too large for one program labels pass from part to part on TC. On XDP such a chain is refused.
func TestLabelsInParts(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	mods := []Module{labelling(t, "first", 5), testModule(t, "huge", "h1", nil), testModule(t, "huge", "h2", nil),
		expecting(t, "last", 5)}
	l := load(t, chain.OnTCIngress, chain.Egress, mods...)
	got, _ := run(t, l.Program, udpPacket(t, 1, nil))
	if l.Parts < 2 || got != tcNext {
		t.Errorf("%d parts, action %d", l.Parts, got)
	}
	_, err := Load(chain.OnXDP, chain.Egress, mods...)
	var labels *LabelsError
	if !errors.As(err, &labels) || labels.Module != "first" {
		t.Errorf("on XDP: %v", err)
	}
}

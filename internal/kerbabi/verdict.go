// SPDX-License-Identifier: Apache-2.0

package kerbabi

import "slices"

// Verdict is what a module decides of a packet (enum kerb_verdict).
type Verdict uint32

// The verdicts. Each has a row in the table below, which the rest of Kerb reads.
const (
	Next Verdict = iota
	Drop
	Reply
	Redirect

	VerdictCount // how many there are
)

var verdicts = [VerdictCount]struct {
	name    string
	past    string // what a sentence says about the packet
	ends    bool   // no other module, and no other chain, sees the packet
	tc, xdp uint64 // what the program returns to the kernel (linux/pkt_cls.h, linux/bpf.h)
}{
	Next:     {name: "next", past: "passes", tc: 1<<64 - 1, xdp: 2},           // TC_ACT_UNSPEC, XDP_PASS
	Drop:     {name: "drop", past: "is dropped", ends: true, tc: 2, xdp: 1},   // TC_ACT_SHOT, XDP_DROP
	Reply:    {name: "reply", past: "is answered", ends: true, tc: 7, xdp: 3}, // TC_ACT_REDIRECT, XDP_TX
	Redirect: {name: "redirect", past: "is redirected", tc: 7, xdp: 4},        // TC_ACT_REDIRECT, XDP_REDIRECT
}

// Verdicts are the names of the verdicts, by number.
var Verdicts = verdictNames()

func verdictNames() (names []string) {
	for _, v := range verdicts {
		names = append(names, v.name)
	}
	return names
}

// VerdictNamed returns the verdict of a name; ok is false if there is none.
func VerdictNamed(name string) (v Verdict, ok bool) {
	i := slices.Index(Verdicts, name)
	return Verdict(max(i, 0)), i >= 0
}

// Valid reports whether v is a verdict. Everything else is treated by the module's failure policy.
func (v Verdict) Valid() bool { return v < VerdictCount }

// String returns the name, or invalid: what Kerb makes of all other numbers.
func (v Verdict) String() string {
	if !v.Valid() {
		return "invalid"
	}
	return verdicts[v].name
}

// Past returns what a sentence says about a packet with a valid verdict: "is dropped".
func (v Verdict) Past() string { return verdicts[v].past }

// Ends reports whether no other module and no other chain sees a packet with this verdict. Those that are redirected
// may meet both.
func (v Verdict) Ends() bool { return v.Valid() && verdicts[v].ends }

// TC and XDP return what a program returns to the kernel for a valid verdict.
func (v Verdict) TC() uint64 { return verdicts[v].tc }

// XDP is described at TC.
func (v Verdict) XDP() uint64 { return verdicts[v].xdp }

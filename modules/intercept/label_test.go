// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Offsets in a frame of the labels that the two modules of labellers set: the last bytes of the MAC addresses.
const (
	firstLabel  = 9
	secondLabel = 3
	unlabelled  = -1
)

// labellers returns two modules that label packets with kerb_deliver().
func labellers(t testing.TB) (out []dataplane.Module) {
	t.Helper()
	p := pkgstest.PackageIn(t, "testdata/label")
	for i, at := range []int{firstLabel, secondLabel} {
		m := pkttest.ModuleOf(p)
		m.Name, m.ID = fmt.Sprint("label", i), fmt.Sprint("label", i)
		m.Settings = sdk.Settings{Constants: map[string]any{"at": at}}
		out = append(out, m)
	}
	return out
}

// labelled returns the frame with the labels for both modules.
func (f frame) labelled(first, second int) []byte {
	raw := f.bytes()
	for at, label := range map[int]int{firstLabel: first, secondLabel: second} {
		if label != unlabelled {
			raw[at] = 1
			binary.BigEndian.PutUint16(raw[at+1:], uint16(label))
		}
	}
	return raw
}

const labelClasses = `{"classes": [
	{"name": "seven", "direction": "both", "match": {"label": 7}, "action": "steal", "watchdog": "10m"},
	{"name": "eight", "direction": "both", "match": {"label": 8, "protocol": "udp", "ports": [9000]}, "action": "drop"},
	{"name": "last", "direction": "both", "match": {"label": 65535}, "action": "pass"},
	{"name": "rest", "direction": "both", "action": "pass"}]}`

// Indices of labelClasses.
const (
	noClass = iota - 1
	classSeven
	classEight
	classLast
	classRest
)

func onHooksBehindLabels(t *testing.T, config string, test func(t *testing.T, k *kernel)) {
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		for _, direction := range []chain.Direction{chain.Ingress, chain.Egress} {
			t.Run(fmt.Sprint(hook, " ", direction), func(t *testing.T) {
				sdktest.NeedRoot(t)
				test(t, load(t, hook, direction, config, labellers(t)...))
			})
		}
	}
}

// labelFrames returns frames of IPv4 and IPv6, with and without ports.
func labelFrames() map[string]frame {
	later4, later6 := datagram(9000, "12345678"), packet("fd00::1", "fd00::2", udp, 1, 9000, "12345678")
	later4.fragOff, later4.more = 1480, true
	later6.ext, later6.fragOff = []uint8{0, 44}, 1480
	tagged, long := datagram(9000, "1"), packet("fd00::1", "fd00::2", udp, 1, 9000, "1")
	tagged.vlans, tagged.options = 2, 8
	long.ext, long.extLen = []uint8{0, 60}, 64
	return map[string]frame{
		"IPv4 UDP": datagram(9000, ""), "IPv6 UDP": packet("fd00::1", "fd00::2", udp, 1, 9000, "x"),
		"IPv4 TCP":             packet("10.0.0.1", "10.0.0.2", tcp, 1, 9000, ""),
		"IPv6 TCP":             packet("fd00::1", "fd00::2", tcp, 1, 9000, ""),
		"IPv4 UDP, other port": datagram(9001, ""), "IPv6 UDP, other port": packet("fd00::1", "fd00::2", udp, 1, 9001, ""),
		"ICMP": packet("10.0.0.1", "10.0.0.2", icmp, 0, 0, ""), "ICMPv6": packet("fd00::1", "fd00::2", icmpv6, 0, 0, ""),
		"GRE": packet("10.0.0.1", "10.0.0.2", 47, 0, 0, "x"), "IPv4 fragment": later4, "IPv6 fragment": later6,
		"IPv4 in VLANs": tagged, "IPv6 with extension headers": long,
	}
}

// labelClass is the model: it returns the class of a frame with a label.
func (f frame) labelClass(label int) int {
	switch {
	case label == 7:
		return classSeven
	case label == 8 && f.proto == udp && f.fragOff == 0 && f.dport == 9000:
		return classEight
	case label == 65535:
		return classLast
	}
	return classRest
}

// A class with a label matches only packets to which a previous module gave this label, of any protocol: neither those
// without a label nor those whose label shares bits. The last module that labels a packet takes effect.
func TestLabelClasses(t *testing.T) {
	onHooksBehindLabels(t, labelClasses, func(t *testing.T, k *kernel) {
		r := k.open("seven")
		want := map[int]verdict{classSeven: dropped, classEight: dropped, classLast: passed, classRest: passed}
		try := func(name string, f frame, first, second, label int) {
			t.Helper()
			raw, class := f.labelled(first, second), f.labelClass(label)
			before := k.counted()
			v := k.run(raw)
			if got := k.moved(before); got != class || v != want[class] {
				t.Errorf("%s with labels %d and %d: class %d, %s, want class %d, %s", name, first, second, got, v, class,
					want[class])
			}
			rec, stolen := r.take()
			if (rec != nil) != (class == classSeven) || rec != nil && !bytes.Equal(stolen, raw) {
				t.Errorf("%s with labels %d and %d: record %+v %x", name, first, second, rec, stolen)
			}
		}
		for name, f := range labelFrames() {
			try(name, f, unlabelled, unlabelled, 0)
			for _, label := range []int{0, 1, 3, 6, 7, 8, 9, 15, 0x87, 0x107, 0x700, 0x707, 0x800, 0x7fff, 0x8007,
				0xff07, 0xff08, 0xfff7, 0xfffe, 0xffff} {
				try(name, f, label, unlabelled, label)
			}
			for _, c := range [][2]int{{7, 8}, {8, 7}, {7, 0}, {0, 7}, {7, 7}, {0xffff, 7}, {7, 0xffff}, {unlabelled, 7},
				{unlabelled, 0}, {0xffff, 0}, {0x107, 0}} {
				try(name, f, c[0], c[1], c[1])
			}
		}
	})
}

// counted returns the packet counts of the classes.
func (k *kernel) counted() (out []uint64) {
	k.t.Helper()
	for _, c := range k.Classes {
		n, err := readCounts(k.maps, c)
		if err != nil {
			k.t.Fatal(err)
		}
		out = append(out, n.Packets)
	}
	return out
}

// moved returns the class that has counted a packet since before, or noClass.
func (k *kernel) moved(before []uint64) int {
	k.t.Helper()
	for i, n := range k.counted() {
		if n != before[i] {
			return i
		}
	}
	return noClass
}

// Only labels that a packet can have are accepted.
func TestLabelSchema(t *testing.T) {
	p := pkgstest.Package(t)
	for label, ok := range map[any]bool{-1: false, 0: false, 1: true, 65535: true, 65536: false, 1 << 32: false,
		7.5: false, "7": false, nil: false, true: false} {
		class := map[string]any{"name": "a", "match": map[string]any{"label": label}}
		if _, err := p.WithDefaults(map[string]any{"classes": []any{class}}); (err == nil) != ok {
			t.Errorf("label %v: %v", label, err)
		}
	}
}

// Packets that are not IP have no class with any label; nor have packets that are shorter than their IP header or its
// length. All others have one, also without a transport header or extension header.
func TestLabelsOfDamagedPackets(t *testing.T) {
	onHooksBehindLabels(t, labelClasses, func(t *testing.T, k *kernel) {
		r := k.open("seven")
		arp := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 1, 0, 7, 0x08, 0x06}, make([]byte, 46)...)
		if v := k.run(arp); v != passed || r.drain() != 0 {
			t.Errorf("ARP with label 7: %s", v)
		}
		try := func(name string, raw []byte, want int) {
			t.Helper()
			v := k.run(raw)
			if stolen := r.drain(); stolen != want || (v == dropped) != (want == 1) {
				t.Errorf("%s, %d bytes: %s, %d records, want %d", name, len(raw), v, stolen, want)
			}
		}
		for name, f := range labelFrames() {
			whole, header := f.labelled(7, unlabelled), f.linkLen()+f.headerLen()
			try(name, whole, 1)
			first := 15
			if k.hook == chain.TC { // test runs take nothing shorter
				first = f.linkLen() + f.ipLen()
			}
			for n := first; n < len(whole); n++ {
				try(name+", cut off", whole[:n], 0)
				if n < header {
					try(name+", shorter", f.shortened(whole, n), 0)
				} else {
					try(name+", shorter", f.shortened(whole, n), 1)
				}
			}
		}
	})
}

// headerLen returns the length of the IP header without extension headers.
func (f frame) headerLen() int {
	if f.src.Is4() {
		return 20 + f.options
	}
	return 40
}

// shortened returns the first n bytes of the frame, with the IP header of a packet of that length.
func (f frame) shortened(raw []byte, n int) []byte {
	out := bytes.Clone(raw)
	length, at := n-f.linkLen(), f.linkLen()+2
	if !f.src.Is4() {
		length, at = length-40, at+2
	}
	binary.BigEndian.PutUint16(out[at:], uint16(max(0, length)))
	return out[:n]
}

// No packet starts with a label: neither from a program before the chain that has written to the packet's control
// block, in which parts of a chain on TC pass it, nor from a later module.
func TestNoLabelFromElsewhere(t *testing.T) {
	const controlBlock = 48 // of struct __sk_buff, 20 bytes
	k := load(t, chain.TC, chain.Ingress, labelClasses, labellers(t)...)
	k.open("seven")
	context := make([]byte, 192)
	for i := range 5 {
		binary.NativeEndian.PutUint32(context[controlBlock+4*i:], 7<<16|7)
	}
	for name, f := range labelFrames() {
		for label, want := range map[int]int{unlabelled: classRest, 0: classRest, 7: classSeven} {
			before := k.counted()
			opts := ebpf.RunOptions{Data: f.labelled(label, unlabelled), Context: context, Repeat: 1}
			if _, err := k.prog.Run(&opts); err != nil {
				t.Fatal(err)
			}
			if got := k.moved(before); got != want {
				t.Errorf("%s with label %d, and another in the control block: class %d, want %d", name, label, got, want)
			}
		}
	}
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCEgress} {
		k := loadOn(t, side, chain.Ingress, labelClasses, labellers(t)...)
		spec := chain.Spec{Side: side, Direction: chain.Ingress, Members: []chain.Member{{Name: "icpt", ID: "0123456789"},
			{Name: "label0", ID: "label0"}, {Name: "label1", ID: "label1"}}}
		program, err := k.loaded.Relink(spec)
		sdktest.Explain(t, err)
		t.Cleanup(func() { program.Close() })
		k.prog = program
		for name, f := range labelFrames() {
			before := k.counted()
			if v := k.run(f.labelled(7, 7)); v != passed || k.moved(before) != classRest {
				t.Errorf("%s: %s, %s, by a module behind", side, name, v)
			}
		}
	}
}

// A label is compared as a 16-bit number for any contents of the table, in both versions of the classes that control
// messages switch. Without a class with a label, labels have no effect.
func TestLabelsInTable(t *testing.T) {
	onHooksBehindLabels(t, labelClasses, func(t *testing.T, k *kernel) {
		k.open("seven")
		frames := labelFrames()
		for _, name := range []string{"IPv4 UDP", "IPv6 fragment"} {
			f := frames[name]
			for _, version := range []uint32{0, 1, 2, 1<<32 - 1} {
				for _, c := range []struct {
					wanted uint32
					label  int
					want   int
				}{{7, 7, classSeven}, {7, 6, classRest}, {7, unlabelled, classRest}, {1<<16 | 7, 7, classRest},
					{1 << 16, 0, classRest}, {1 << 31, unlabelled, classRest}, {1<<32 - 1, 0xfffe, classRest},
					{0, unlabelled, classSeven}, {0, 5, classSeven}} {
					k.want(version, c.wanted)
					if got := k.decision(k.config, f.labelled(c.label, unlabelled)); got != c.want {
						t.Errorf("%s with label %d, wanted %#x in version %d: class %d, want %d", name, c.label, c.wanted, version, got,
							c.want)
					}
				}
			}
		}
	})
	onHooksBehindLabels(t, everything, func(t *testing.T, k *kernel) {
		for name, f := range labelFrames() {
			for _, label := range []int{unlabelled, 0, 7, 0xffff} {
				if got := k.decision(k.config, f.labelled(label, unlabelled)); got != 0 {
					t.Errorf("%s with label %d: class %d", name, label, got)
				}
			}
		}
	})
}

// want activates a version of the classes, and sets the label of the first class in it. The other version has another
// label.
func (k *kernel) want(version, label uint32) {
	k.t.Helper()
	var e tableEntry
	if err := k.maps[mapTable].Lookup(k.half(), &e); err != nil {
		k.t.Fatal(err)
	}
	e.Version = version
	e.Classes[version&1][0].Label = label
	e.Classes[1-version&1][0].Label = 0xabcd
	if err := k.maps[mapTable].Put(k.half(), e); err != nil {
		k.t.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/internal/apply"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/pintest"
)

// testedDataplane is the data plane on two interfaces. Modules of any name and id have the object of the module pass,
// the one called t that of the module tunable.
type testedDataplane struct {
	*dataplane.Dataplane
	object, tunable []byte
}

var _ apply.Kernel = testedDataplane{}

func (r testedDataplane) bound(values string, members ...chain.Member) *dataplane.Bound {
	modules := map[string]dataplane.Module{}
	for _, m := range members {
		object := r.object
		if m.Name == "t" {
			object = r.tunable
		}
		spec := func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if h != chain.TC && h != chain.XDP {
				return nil, nil
			}
			return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
		}
		modules[m.Name] = dataplane.Module{Name: m.Name, ID: m.ID, Values: values, Spec: spec}
	}
	return r.Bind(modules)
}

func (r testedDataplane) CreateMapSet(module, id, values, from string) error {
	b := r.bound(values, chain.Member{Name: module, ID: id})
	defer b.Close()
	return b.CreateMapSet(module, id, values, from)
}

func (r testedDataplane) SetValues(module, id, values string) error {
	b := r.bound(values, chain.Member{Name: module, ID: id})
	defer b.Close()
	return b.SetValues(module, id, values)
}

func (r testedDataplane) CreateChain(spec chain.Spec) error {
	return r.bound("", spec.Members...).CreateChain(spec)
}

// laboratory is a kernel with two interfaces and what may happen to them.
type laboratory struct {
	apply.Kernel
	one, two int
	vanish   func(ifindex int)
	foreign  func(chain.Point) // attaches a program of another owner
}

func (l laboratory) tc(ifindex int) chain.Point {
	return chain.Point{Ifindex: ifindex, Side: chain.OnTCIngress}
}

func (l laboratory) xdp(ifindex int) chain.Point {
	return chain.Point{Ifindex: ifindex, Side: chain.OnXDP}
}

func chainOf(side chain.Side, members ...string) chain.Spec {
	c := chain.Spec{Side: side, Direction: chain.Egress}
	for _, m := range members {
		c.Members = append(c.Members, chain.Member{Name: m[:1], ID: m})
	}
	return c
}

// build creates the map sets and the chain of members on the TC ingress.
func (l laboratory) build(members ...string) error {
	var errs []error
	for _, m := range members {
		errs = append(errs, l.CreateMapSet(m[:1], m, "", ""))
	}
	return errors.Join(append(errs, l.CreateChain(chainOf(chain.OnTCIngress, members...)))...)
}

func (l laboratory) pinned(id string) chain.Pinned {
	state, _ := l.Observe()
	for _, c := range state.Chains {
		if c.ID == id {
			return c
		}
	}
	return chain.Pinned{}
}

// sequences are what the fake has to do as the data plane does: in their results, and in what is observed afterwards.
var sequences = map[string]func(laboratory) []error{
	"nothing": func(l laboratory) []error { return nil },
	"attach": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1", "b1")
		return []error{l.build("a1", "b1"), l.Attach(l.tc(l.one), c), l.Attach(l.tc(l.two), c)}
	},
	"create twice": func(l laboratory) []error { return []error{l.build("a1"), l.build("a1")} },
	"replace, and go back": func(l laboratory) []error {
		old, next := chainOf(chain.OnTCIngress, "a1"), chainOf(chain.OnTCIngress, "a2")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), old)}
		was := l.pinned(old.ID())
		return append(before, l.CreateMapSet("a", "a2", "", "a1"), l.CreateChain(next), l.Attach(l.tc(l.one), next),
			l.AttachPinned(l.tc(l.one), was), l.RemoveChainSpec(next), l.RemoveMapSet("a", "a2"))
	},
	"detach and remove": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), c), l.Detach(l.tc(l.one))}
		return append(before, l.RemoveChain(l.pinned(c.ID())), l.RemoveMapSet("a", "a1"))
	},
	"remove what runs": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), c)}
		return append(before, l.RemoveChain(l.pinned(c.ID())), l.RemoveMapSet("a", "a1"), l.Attach(l.tc(l.two), c))
	},
	"remove what is not there": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		return []error{l.Detach(l.tc(l.one)), l.RemoveChain(chain.Pinned{ID: c.ID(), Spec: c}), l.RemoveChainSpec(c),
			l.RemoveMapSet("a", "a1")}
	},
	"chain without its map set": func(l laboratory) []error {
		return []error{l.CreateChain(chainOf(chain.OnTCIngress, "a1"))}
	},
	"predecessor is not there": func(l laboratory) []error { return []error{l.CreateMapSet("a", "a2", "", "a1")} },
	"change values, and go back": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "t1")
		before := []error{l.CreateMapSet("t", "t1", "one", ""), l.CreateChain(c), l.Attach(l.tc(l.one), c)}
		return append(before, l.SetValues("t", "t1", "two"), l.SetValues("t", "t1", "three"),
			l.SetValues("t", "t1", "two"), l.CreateMapSet("t", "t1", "four", ""))
	},
	"values of what has none": func(l laboratory) []error {
		return []error{l.SetValues("t", "t1", "one"), l.build("a1"), l.SetValues("a", "a1", "one")}
	},
	"attach without chain": func(l laboratory) []error {
		return []error{l.Attach(l.tc(l.one), chainOf(chain.OnTCIngress, "a1"))}
	},
	"interface vanished": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), c)}
		l.vanish(l.one)
		return before
	},
	"attach to a vanished interface": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), c)}
		l.vanish(l.one)
		l.vanish(l.two)
		return append(before, l.Attach(l.tc(l.one), c), l.Attach(l.tc(l.two), c))
	},
	"detach from a vanished interface": func(l laboratory) []error {
		c := chainOf(chain.OnTCIngress, "a1")
		before := []error{l.build("a1"), l.Attach(l.tc(l.one), c)}
		l.vanish(l.one)
		return append(before, l.Detach(l.tc(l.one)))
	},
	"busy": func(l laboratory) []error {
		c := chainOf(chain.OnXDP, "a1")
		l.foreign(l.xdp(l.one))
		return []error{l.CreateMapSet("a", "a1", "", ""), l.CreateChain(c), l.Attach(l.xdp(l.one), c),
			l.Attach(l.xdp(l.two), c)}
	},
}

func TestFakeIsLikeTheDataplane(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	for name, sequence := range sequences {
		t.Run(name, func(t *testing.T) {
			actual := newReal(t)
			k := New(actual.one, actual.two)
			pretended := laboratory{Kernel: k, one: actual.one, two: actual.two, vanish: k.Vanish,
				foreign: func(p chain.Point) { k.Foreign[p] = true }}
			want, got := outcome(t, actual, sequence), outcome(t, pretended, sequence)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("data plane (-), fake (+):\n%s", diff)
			}
		})
	}
}

// result is what a sequence returned and left behind, without what depends on the machine.
type result struct {
	Errors  []string
	MapSets map[string][]string
	Values  map[chain.MapSet]string
	Chains  map[string]chain.Spec // by id
	Points  []string
}

func outcome(t *testing.T, l laboratory, sequence func(laboratory) []error) (r result) {
	for _, err := range sequence(l) {
		r.Errors = append(r.Errors, kindOf(t, err))
	}
	state, err := l.Observe()
	if err != nil {
		t.Fatal(err)
	}
	r.MapSets, r.Values, r.Chains = state.MapSets, state.Values, map[string]chain.Spec{}
	byProgram := map[uint32]string{0: "none"}
	for _, c := range state.Chains {
		r.Chains[c.ID] = c.Spec
		byProgram[c.Program] = c.ID
	}
	for _, p := range state.Points {
		program, known := byProgram[p.Program]
		if !known {
			program = "a program without pins"
		}
		r.Points = append(r.Points, fmt.Sprintf("%s: %s", p.Point, program))
	}
	return r
}

func kindOf(t *testing.T, err error) string {
	for _, kind := range []error{chain.ErrGone, chain.ErrBusy, os.ErrNotExist} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		t.Errorf("an error of no kind: %v", err)
	}
	return ""
}

func newReal(t *testing.T) laboratory {
	t.Helper()
	lab, err := netlab.New("kfk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	l := laboratory{}
	for name, index := range map[string]*int{"a": &l.one, "b": &l.two} {
		host, err := lab.Host(name, netlab.HostOptions{})
		if err != nil {
			t.Fatal(err)
		}
		*index = host.OuterIndex()
	}
	objects := map[string][]byte{}
	for _, name := range []string{"pass", "tunable"} {
		if objects[name], err = os.ReadFile("../../dataplane/testdata/" + name + "/" + name + ".tc.o"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := dataplane.Open(dataplane.Options{Root: pintest.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Purge(); err != nil {
			t.Error(err)
		}
	})
	l.Kernel = testedDataplane{d, objects["pass"], objects["tunable"]}
	l.foreign = func(p chain.Point) { attachForeign(t, p) }
	l.vanish = func(ifindex int) {
		if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func attachForeign(t *testing.T, p chain.Point) {
	t.Helper()
	const pass = 2 // XDP_PASS
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	l, err := link.AttachXDP(link.XDPOptions{Interface: p.Ifindex, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

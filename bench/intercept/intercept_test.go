// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

// kept is the directory of programs for machines without a compiler; make test-kmod fills it.
const kept = "testdata"

func TestCompile(t *testing.T) {
	tools, err := compile(t.Context(), sources)
	if errors.As(err, new(*pkgs.ToolError)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := tools.Close(); err != nil {
		t.Error(err)
	}
}

func newExperiment(t *testing.T, sources ...string) *experiment {
	t.Helper()
	if os.Getenv("KERB_MATRIX") != "" {
		t.Setenv(bench.ProgramCacheEnv, kept)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tools, err := compile(t.Context(), sources)
	if errors.As(err, new(*pkgs.ToolError)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := &experiment{run: bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard), tools: tools,
		places: map[string]*place{},
		length: 100 * time.Millisecond}
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func named(name string) config {
	return configs[slices.IndexFunc(configs, func(c config) bool { return c.name == name })]
}

// open skips the test if the place is not available.
func (e *experiment) open(t *testing.T, hook string) *place {
	t.Helper()
	p, err := e.place(hook)
	if errors.Is(err, bench.ErrNotBuilt) || errors.Is(err, bench.ErrLeftOut) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%.600v", err) // a refusal has the verifier's whole log
	}
	return p
}

// Every config receives every packet of every size, in order, and reports so.
func TestAllReceive(t *testing.T) {
	loadKmod(t)
	e := newExperiment(t, sources...)
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			p, err := e.place(c.hook)
			if err == nil {
				err = c.possible()
			}
			if errors.Is(err, bench.ErrNotBuilt) || errors.Is(err, bench.ErrLeftOut) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%.600v", err) // a refusal has the verifier's whole log
			}
			for _, size := range []int{64, 512, 1024} {
				samples, err := e.measure(t.Context(), c, p, load{name: "test", size: size, rate: 3000, background: "idle"})
				if err != nil {
					t.Fatal(err)
				}
				p50 := map[string]float64{}
				for _, s := range samples {
					if s.Metric == "lost" && s.Value > 0 {
						t.Errorf("%d bytes: lost %v packets", size, s.Value)
					}
					if s.Stat == "p50" {
						p50[s.Metric] = s.Value
					}
					if s.Metric == "delay" && s.Stat == "p50" && s.Value <= 0 {
						t.Errorf("%d bytes: no delay at all: %v", size, s.Value)
					}
				}
				if c.program != "clock" && p50["to_program"] < p50["delay"] {
					t.Errorf("%d bytes: %v us from the sender, %v from the hook", size, p50["to_program"], p50["delay"])
				}
			}
		})
	}
	if unsound := e.run.Report().Unsound; len(unsound) > 0 {
		t.Error(unsound)
	}
}

// The first program at the hook takes T1 for every receiver, before the parser of Kerb's chain, and also after the
// agent has restored its chain.
func TestT1IsTakenInFront(t *testing.T) {
	e := newExperiment(t, sources...)
	l := load{name: "test", size: 64, rate: 3000, background: "idle"}
	for _, name := range []string{"socket", "ringbuf", "same-t2"} {
		c := named(name)
		p := e.open(t, c.hook)
		first, err := p.attachedProgram()
		if err != nil {
			t.Fatal(err)
		}
		if p.node != nil {
			if err := p.node.Apply(p.module("counter", nil)); err != nil {
				t.Fatal(err)
			}
			if chain, err := p.attachedProgram(); err != nil || chain == first {
				t.Fatalf("%s: a change leaves the program in front of its chain (%v)", name, err)
			}
		}
		if _, err := e.measure(t.Context(), c, p, l); err != nil {
			t.Fatal(err)
		}
		id, err := p.attachedProgram()
		if err != nil {
			t.Fatal(err)
		}
		at, err := ebpf.NewProgramFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		if info, err := at.Info(); err != nil || info.Name != "stamp_arrival" {
			t.Errorf("%s: the hook has %+v, %v", name, info, err)
		}
	}
}

// A round without T1 is repeated, and finally an error.
func TestWithoutT1(t *testing.T) {
	e := newExperiment(t, sources...)
	p := e.open(t, "plain")
	_, err := e.measure(t.Context(), named("socket"), p, load{name: "test", size: 64, rate: 3000, background: "idle"})
	if err == nil || !strings.Contains(err.Error(), "have no T1") {
		t.Error(err)
	}
}

// A receiver with an AF_XDP socket that does not read until all packets are sent learns how many were lost on overflow.
// Lost end messages are not counted.
func TestSocketReportsLosses(t *testing.T) {
	e := newExperiment(t, sources...)
	p := e.open(t, "kerb")
	c := named("xsk")
	r, err := e.startReceiver(t.Context(), c, p)
	if err != nil {
		t.Fatal(err)
	}
	l := load{name: "test", size: 64, rate: 50000, background: "idle"}
	all := p.packets() + 25000
	_ = r.Cmd.Process.Signal(syscall.SIGSTOP)
	go func() {
		p.awaitPackets(t, all+5) // end messages are sent every 20 ms
		_ = r.Cmd.Process.Signal(syscall.SIGCONT)
	}()
	sent, err := e.send(t.Context(), p, l, 500*time.Millisecond, []*receiver{r})
	if err != nil {
		t.Fatal(err)
	}
	received, err := r.result()
	if err != nil {
		t.Fatal(err)
	}
	samples := e.samples(c, l, sent, received)
	lost := samples[slices.IndexFunc(samples, func(s bench.Sample) bool { return s.Metric == "lost" })].Value
	if unsound := e.run.Report().Unsound; lost == 0 || len(unsound) > 0 {
		t.Errorf("%v of %d packets lost: %v", lost, sent.Sent, unsound)
	}
}

// A receiver that starts right after another is also woken by its socket, although the kernel releases the previous
// socket late.
func TestNextReceiverIsWokenBySocket(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("the emulated kernels have no AF_XDP")
	}
	e := newExperiment(t, sources...)
	p := e.open(t, "kerb")
	for i := range 5 {
		r, err := e.startReceiver(t.Context(), configs[0], p)
		if err != nil {
			t.Fatal(err)
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", r.Cmd.Process.Pid))
		if err != nil || !bytes.Contains(maps, []byte("socket:[")) {
			t.Errorf("receiver %d has no socket's ring mapped (%v)", i, err)
		}
		_ = r.Cmd.Process.Kill()
		<-r.ended
	}
}

// awaitPackets waits until n packets were received or dropped at the place's interface, or until the test ends.
func (p *place) awaitPackets(t *testing.T, n uint64) {
	for ; t.Context().Err() == nil && p.packets() < n; time.Sleep(time.Millisecond) {
	}
}

func (p *place) packets() (n uint64) {
	_ = p.lab.Node().Do(func() error {
		device, err := netlink.LinkByName(p.nic)
		if err == nil {
			n = device.Attrs().Statistics.RxPackets
		}
		return err
	})
	dropped, _ := p.unsent()
	return n + dropped
}

// An idle receiver uses less CPU time than a busy one.
func TestCPU(t *testing.T) {
	e := newExperiment(t, sources...)
	p := e.open(t, "stamp")
	use := map[string]float64{}
	for _, c := range configs {
		if c.name != "socket" && c.name != "socket-spin" {
			continue
		}
		samples, err := e.measure(t.Context(), c, p, load{name: "test", size: 64, background: "idle"})
		if err != nil {
			t.Fatal(err)
		}
		use[c.name] = samples[0].Value
	}
	if use["socket"] >= use["socket-spin"] {
		t.Errorf("a receiver that sleeps uses %v of a CPU, one that spins %v", use["socket"], use["socket-spin"])
	}
}

// --quick and the long loads have their own receivers, unless some are named; each pattern matches one.
func TestContenders(t *testing.T) {
	quick := bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)
	for _, pattern := range slices.Concat(quickConfigs, longConfigs) {
		if !slices.ContainsFunc(configs, func(c config) bool { return c.matchesName(pattern) }) {
			t.Errorf("there is no receiver %q", pattern)
		}
	}
	e := &experiment{run: quick}
	quick.Configs = []string{"socket-spin", "ringbuf"}
	if got := e.chosen(load{endurance: true}); len(got) != 2 || got[0].name != "ringbuf" {
		t.Errorf("chosen: %+v", got)
	}
	quick.Configs = nil
	if quick, long := e.chosen(load{}), e.chosen(load{endurance: true}); len(quick) < len(quickConfigs) ||
		len(long) != len(longConfigs) {
		t.Errorf("%d receivers in a quick run, %d in a long one", len(quick), len(long))
	}
}

func TestLoads(t *testing.T) {
	for _, name := range append(loads(), "64/50k/endurance", "64/50k/endurance-stress") {
		l, err := parseLoad(name)
		if err != nil || l.size < 64 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if _, known := stressors[l.background]; !known && l.background != "idle" && l.background != "" {
			t.Errorf("%s: nothing is called %q", name, l.background)
		}
	}
}

// A run leaves no closed places for the next one.
func TestPlacesEnd(t *testing.T) {
	e := &experiment{tools: &tools{Programs: bench.Programs{Dir: t.TempDir()}},
		places: map[string]*place{"none": {err: bench.ErrLeftOut}}}
	if err := e.close(); err != nil || len(e.places) > 0 {
		t.Errorf("%v, %d places left", err, len(e.places))
	}
}

// Kerb's costs include the agent; those of a socket on the same node exclude it.
func TestCostHasAgent(t *testing.T) {
	e, agent := &experiment{}, 0.5
	sent, received, idle := senderReport{agent: &agent}, receiverReport{CPU: 0.25}, load{}
	want := []bench.Sample{bench.P50("cpu", "cores", 0.75), bench.P50("agent_cpu", "cores", 0.5)}
	if got := e.samples(named("same-t2"), idle, sent, received); !slices.Equal(got, want) {
		t.Errorf("of Kerb: %+v", got)
	}
	want = []bench.Sample{bench.P50("cpu", "cores", 0.25)}
	if got := e.samples(alongside[0], idle, sent, received); !slices.Equal(got, want) {
		t.Errorf("of the socket: %+v", got)
	}
	if got := e.samples(named("kmod"), idle, senderReport{}, received); !slices.Equal(got, want) {
		t.Errorf("of the kernel module, without an agent: %+v", got)
	}
}

// A receiver that sleeps has voluntary switches, one that spins has none; the ring of a class counts as memory of the
// receiver.
func TestCost(t *testing.T) {
	e := newExperiment(t, sources...)
	cost := map[string]float64{}
	for _, name := range []string{"socket", "socket-spin", "ringbuf"} {
		c := named(name)
		p, err := e.place(c.hook)
		if err != nil {
			t.Fatalf("%.600v", err)
		}
		samples, err := e.measure(t.Context(), c, p, load{name: "test", size: 64, rate: 3000, background: "idle"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			cost[name+" "+s.Metric] = s.Value
		}
	}
	_, socketHas := cost["socket agent_cpu"]
	if agent, has := cost["ringbuf agent_cpu"]; !has || socketHas || agent > cost["ringbuf cpu"] {
		t.Errorf("the agent takes %v of the %v CPUs that the ring costs (%v); the socket has one: %v", agent,
			cost["ringbuf cpu"], has, socketHas)
	}
	if cost["socket waits"] == 0 || cost["socket-spin waits"] > 1 {
		t.Errorf("a receiver that sleeps waits %v times a second, one that spins %v", cost["socket waits"],
			cost["socket-spin waits"])
	}
	if ring := float64(ringSize) / (1 << 20); cost["socket memory"] <= 0 || cost["ringbuf memory"] < ring {
		t.Errorf("memory of the socket's receiver %v MiB, of the ring's %v with a ring of %v", cost["socket memory"],
			cost["ringbuf memory"], ring)
	}
	t.Log(cost)
}

// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/sdk/model"
)

// border is a border router that runs the agent, with a chain on native XDP at the interface of a radio network, and a
// socket that receives the network's frames after the chain.
type border struct {
	config   string
	datagram int // bytes of each
	lab      *netlab.Lab
	network  *netlab.Host
	node     *node.Node
	pass     v1.Module // of every chain, so that there is a chain also without the classifier
	guard    v1.Module
	model    v1.Model
	out, in  *traffic.Batch

	version  uint32 // of the model
	sequence byte
	sent     uint64 // since the classifier was loaded
	bench.Closers
}

// The configs, and the letters of their labs. Each has an agent; all run at the same time.
var (
	configs = []string{"kernel", "user", "none", "bare"}
	letters = map[string]string{"kernel": "k", "user": "u", "none": "n", "bare": "b", "kernel-generic": "x",
		"user-generic": "y", "bare-generic": "z", "plain": "p"}
)

// genericConfigs are measured in repetitions of the published experiment, which used generic XDP.
var genericConfigs = []string{"kernel-generic", "user-generic", "bare-generic"}

// kind returns the config without its hook.
func (b *border) kind() string { return strings.TrimSuffix(b.config, "-generic") }

func (b *border) generic() bool { return b.kind() != b.config }

// openBorder starts a router whose agent has the model. window is the window length of its classifier.
func openBorder(config, window, when string, d *model.Document) (*border, error) {
	b := &border{config: config, datagram: datagram}
	err := b.join("kbcl" + letters[config])
	if err == nil {
		err = b.start(window, when, d)
	}
	if err == nil {
		err = b.connect()
	}
	return b, b.CloseOn(err)
}

// join creates the router and the network, connected by a veth.
func (b *border) join(prefix string) (err error) {
	if b.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	b.Later(b.lab.Close)
	b.network, err = b.lab.Host("network", netlab.HostOptions{Routed: true, TxChecksumOff: true})
	if err == nil && b.generic() {
		err = b.network.Do(func() error { return netlab.SetTxQueues(b.network.Interface(), 2) })
	}
	return err
}

// start applies the model before the classifier that refers to it, so that the first window is evaluated.
func (b *border) start(window, when string, d *model.Document) (err error) {
	if b.node, err = node.Start(b.lab.Node()); err != nil {
		return err
	}
	b.Later(b.node.Close)
	pass, err := kerbmods.Extract("pass", b.node.Dir)
	if err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	b.model = v1.Model{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModel},
		Metadata: v1.ObjectMeta{Name: modelName},
		Spec:     v1.ModelSpec{Document: string(text)}}
	b.version = d.Version
	b.pass = node.Module("pass", pass, "", nil)
	b.guard = node.Module("guard", "classifier", "", b.settings(window, when))
	for _, m := range []*v1.Module{&b.pass, &b.guard} {
		m.Spec.Attach, m.Spec.Hook = v1.Attach{Interfaces: []string{b.network.Outer()}}, "xdp"
	}
	if err := b.node.Apply(b.pass, b.model); err != nil {
		return err
	}
	if _, err = b.load(); err != nil {
		return err
	}
	return b.lab.Node().Do(b.checkHook)
}

// checkHook checks that the chain runs in native mode, or for generic configs in generic mode.
func (b *border) checkHook() error {
	nic, err := netlink.LinkByName(b.network.Outer())
	if err != nil {
		return err
	}
	mode, name := uint32(nl.XDP_ATTACHED_DRV), "native"
	if b.generic() {
		mode, name = nl.XDP_ATTACHED_SKB, "generic"
	}
	if xdp := nic.Attrs().Xdp; xdp == nil || xdp.AttachMode != mode {
		return fmt.Errorf("the chain does not run on %s XDP: %+v", name, xdp)
	}
	return nil
}

const modelName = "bench"

// settings returns a config without actions on sources: every frame must pass.
func (b *border) settings(window, when string) map[string]any {
	evaluate := map[string]any{"when": when}
	c := map[string]any{"window": window, "rpl": map[string]any{"frames": "zep"}, "action": map[string]any{"do": "event"},
		"evaluate": evaluate}
	if b.kind() == "user" {
		evaluate["where"] = "user"
	}
	if b.config != "none" {
		c["model"] = modelName
	}
	return c
}

// load adds the classifier to the chain, and returns the time until it evaluated the model.
func (b *border) load() (took time.Duration, err error) {
	if b.kind() == "bare" {
		return 0, nil
	}
	start := time.Now()
	if err := b.node.Apply(b.guard); err != nil {
		return 0, err
	}
	if b.config != "none" {
		err = b.awaitModel()
	}
	return time.Since(start), err
}

// awaitModel waits until the classifier evaluates the applied version of the model.
func (b *border) awaitModel() error {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		if running, err := b.modelVersion(); err != nil || running == b.version {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
	return fmt.Errorf("the classifier did not switch to version %d of its model", b.version)
}

// reload removes the classifier from the chain and loads it again.
func (b *border) reload() (time.Duration, error) {
	if err := b.node.Delete("/v1/modules/guard"); err != nil {
		return 0, err
	}
	b.sent = 0
	return b.load()
}

// modelVersion returns the version of the model in use, or 0 without one.
func (b *border) modelVersion() (uint32, error) {
	var running struct{ Live struct{ Version uint32 } }
	err := b.get("models", &running)
	return running.Live.Version, err
}

// counters returns the classifier's counters by name.
func (b *border) counters() (n map[string]uint64, err error) {
	err = b.get("stats", &n)
	return n, err
}

func (b *border) get(route string, out any) error {
	return b.node.Get("/v1/modules/guard/"+route, out)
}

// connect opens the sockets of network and router.
func (b *border) connect() error {
	at := netip.AddrPortFrom(b.lab.Gateway4(), zepPort)
	err := b.lab.Node().Do(func() (err error) {
		b.in, err = traffic.NewReceiver(at, b.datagram, batchLen, time.Second) // later frames count as lost
		return err
	})
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	b.Later(b.in.Close)
	err = b.network.Do(func() (err error) {
		b.out, err = traffic.NewSender(at, b.datagram, batchLen)
		return err
	})
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	b.Later(b.out.Close)
	if b.datagram < datagram {
		return nil // too short for a message
	}
	for i := range batchLen {
		put(b.out.Datagram(i), i%inference.Sources, i/inference.Sources, 0)
	}
	return nil
}

func cpuTime(clock int32) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(clock, &t)
	return time.Duration(t.Nano()), err
}

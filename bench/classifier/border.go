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

// border is a border router that runs the agent, in a chain on native XDP at the interface at which a radio network's
// frames come in, and a socket for them behind it.
type border struct {
	config   string
	datagram int // bytes of each
	lab      *netlab.Lab
	network  *netlab.Host
	node     *node.Node
	pass     v1.Module // of every chain, so that there is one without the classifier too
	guard    v1.Module
	model    v1.Model
	out, in  *traffic.Batch

	version  uint32 // of the model
	sequence byte
	sent     uint64 // since the classifier was loaded
	bench.Closers
}

// The configs, and the letter of their labs: one agent each, all of which run at the same time.
var (
	configs = []string{"kernel", "user", "none", "bare"}
	letters = map[string]string{"kernel": "k", "user": "u", "none": "n", "bare": "b", "kernel-generic": "x",
		"user-generic": "y", "bare-generic": "z", "plain": "p"}
)

// genericConfigs are measured where the published experiment is repeated, which had generic XDP.
var genericConfigs = []string{"kernel-generic", "user-generic", "bare-generic"}

// kind is the config without its hook.
func (b *border) kind() string { return strings.TrimSuffix(b.config, "-generic") }

func (b *border) generic() bool { return b.kind() != b.config }

// openBorder starts a router with an agent that has the model. window is the window length of its classifier.
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

// join makes the router and the network, joined by a veth.
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

// start applies the model before the classifier that names it, so that the first window has one.
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

// checkHook sees that the chain runs at the driver, or for generic configs behind it.
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

// load puts the classifier into the chain, and returns how long it took until it judged.
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

// awaitModel returns when the version of the model judges that the agent was given.
func (b *border) awaitModel() error {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		if running, err := b.modelVersion(); err != nil || running == b.version {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
	return fmt.Errorf("the classifier did not switch to version %d of its model", b.version)
}

// reload takes the classifier out of the chain first.
func (b *border) reload() (time.Duration, error) {
	if err := b.node.Delete("/v1/modules/guard"); err != nil {
		return 0, err
	}
	b.sent = 0
	return b.load()
}

// modelVersion is of the model that judges, 0 if none does.
func (b *border) modelVersion() (uint32, error) {
	var running struct{ Live struct{ Version uint32 } }
	err := b.get("models", &running)
	return running.Live.Version, err
}

// counters are the classifier's own, by name.
func (b *border) counters() (n map[string]uint64, err error) {
	err = b.get("stats", &n)
	return n, err
}

func (b *border) get(route string, out any) error {
	return b.node.Get("/v1/modules/guard/"+route, out)
}

// connect opens the sockets: the network's and the router's.
func (b *border) connect() error {
	at := netip.AddrPortFrom(b.lab.Gateway4(), zepPort)
	err := b.lab.Node().Do(func() (err error) {
		b.in, err = traffic.NewReceiver(at, b.datagram, batchLen, time.Second) // what comes later is lost
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
		return nil // no message fits into it
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

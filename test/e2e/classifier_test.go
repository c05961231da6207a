// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const (
	zigbee   = 0x809a // the EtherType of frames of IEEE 802.15.4
	attacker = 99
	benign   = 6 // nodes 1 to 6
)

// rplFrame returns an Ethernet frame with an IEEE 802.15.4 frame that contains a compressed RPL message, to all nodes:
// DIS for code 0, DIO for code 1.
func rplFrame(node, sequence, code byte) []byte {
	f := make([]byte, 14, 60)
	for i := range 6 {
		f[i] = 0xff
	}
	f[6], f[11] = 2, node
	binary.BigEndian.PutUint16(f[12:], zigbee)
	// data, PAN compressed, short destination, long source; little endian
	f = append(f, 0x41, 0xc8, sequence, 0xcd, 0xab, 0xff, 0xff)
	f = append(f, node, 0, 0, 0, 0, 0x4b, 0x12, 0) // EUI-64, in reverse order
	f = append(f, 0x7a, 0x3b, 58, 0x1a)            // IPHC: hop limit 64, link addresses, ICMPv6, ff02::1a
	f = append(f, 155, code, 0, 0, 0, 0)           // ICMPv6: RPL
	if code == 1 {
		f = append(f, make([]byte, 22)...)
		f[len(f)-20] = 1 // rank 256
	}
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

func nodeName(node byte) string { return fmt.Sprintf("fe80::212:4b00:0:%x", node) }

// radio is an RPL network behind a service: benign nodes send a DIO each 20 ms, the attacker a DIS. Another host
// receives all frames that pass.
type radio struct {
	t          *testing.T
	sent       [256]atomic.Uint32
	heard      [256]atomic.Uint32
	quit       chan struct{}
	sending    sync.WaitGroup
	hearing    sync.WaitGroup
	send, hear int // sockets
	ended      sync.Once
}

func startRadio(t *testing.T, from, to *netlab.Host) *radio {
	t.Helper()
	r := &radio{t: t, quit: make(chan struct{}), send: packetSocket(t, from), hear: packetSocket(t, to)}
	r.hearing.Go(r.listen)
	r.sending.Go(r.run)
	t.Cleanup(r.end)
	return r
}

func packetSocket(t *testing.T, h *netlab.Host) (fd int) {
	t.Helper()
	const network = zigbee>>8 | zigbee&0xff<<8
	if err := h.Do(func() error {
		link, err := net.InterfaceByName(h.Interface())
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, network); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: link.Index})
	}); err != nil {
		t.Fatal(err)
	}
	return fd
}

func (r *radio) run() {
	for sequence := byte(0); ; sequence++ {
		for node := byte(1); node <= benign; node++ {
			r.emit(node, sequence, 1)
		}
		r.emit(attacker, sequence, 0)
		select {
		case <-r.quit:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *radio) emit(node, sequence, code byte) {
	if _, err := unix.Write(r.send, rplFrame(node, sequence, code)); err != nil {
		r.t.Errorf("send: %v", err)
	}
	r.sent[node].Add(1)
}

func (r *radio) listen() {
	buffer := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(r.hear, buffer, 0)
		link, _ := from.(*unix.SockaddrLinklayer)
		if err == nil && n >= 60 && link != nil && link.Pkttype != unix.PACKET_OUTGOING {
			r.heard[buffer[11]].Add(1)
		}
		if errors.Is(err, unix.EAGAIN) {
			select {
			case <-r.quit: // and nothing has arrived for a while
				return
			default:
			}
		}
	}
}

// finish stops the radio, and checks that all frames of benign nodes have arrived.
func (r *radio) finish() {
	r.t.Helper()
	r.end()
	for node := 1; node <= benign; node++ {
		if sent, heard := r.sent[node].Load(), r.heard[node].Load(); sent != heard {
			r.t.Errorf("of %d frames of node %d %d have arrived", sent, node, heard)
		}
	}
}

func (r *radio) end() {
	r.ended.Do(func() {
		close(r.quit)
		r.sending.Wait()
		r.hearing.Wait()
		unix.Close(r.send)
		unix.Close(r.hear)
	})
}

// awaitBlocked waits until no frame of the attacker passes for a while.
func (r *radio) awaitBlocked() {
	r.t.Helper()
	wait.Until(r.t, "the attacker is dropped", func() bool {
		before, sent := r.heard[attacker].Load(), r.sent[attacker].Load()
		time.Sleep(200 * time.Millisecond) // the attacker sends in the meantime
		return r.heard[attacker].Load() == before && r.sent[attacker].Load() > sent
	})
}

// writeModel writes a model by which more than most DIS in a window are an attack, and returns its path.
func (n *node) writeModel(version int, most float64, change ...string) string {
	n.T.Helper()
	text := fmt.Sprintf(
		`{"format": "kerb-model/1", "name": "hello", "version": %d, "extractor": "rpl", "window": "500ms", "kind": "tree",
		"features": ["dis"], "classes": ["benign", "flood"],
		"trees": [[{"feature": 0, "threshold": %v, "left": 1, "right": 2}, {"value": [1, 0]}, {"value": [0, 1]}]]}`, version, most)
	path := filepath.Join(n.Dir, fmt.Sprintf("hello-%d.json", version))
	if err := os.WriteFile(path, []byte(strings.NewReplacer(change...).Replace(text)), 0o600); err != nil {
		n.T.Fatal(err)
	}
	return path
}

// query reads a route of the module guard.
func query[T any](n *node, path string) (v T) {
	n.T.Helper()
	if err := json.Unmarshal([]byte(n.must("module", "query", "guard", path, "-o", "json")), &v); err != nil {
		n.T.Fatal(err)
	}
	return v
}

func (n *node) blocked() (out []string) {
	n.T.Helper()
	for _, b := range query[[]struct{ Source string }](n, "blocked") {
		out = append(out, b.Source)
	}
	return out
}

func (n *node) runningVersion() int {
	n.T.Helper()
	return query[map[string]struct{ Version int }](n, "models")["live"].Version
}

func (n *node) guardCondition(kind string) v1.Condition {
	n.T.Helper()
	for _, c := range get[v1.Module](n, "module", "guard").Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.Condition{}
}

// verdict is an event of the module.
type verdict struct {
	Kind, Source, Class, Action string
	Version                     int
	Features                    map[string]int
}

// verdicts streams them from the agent, until it ends.
func (n *node) verdicts(ctx context.Context) <-chan verdict {
	n.T.Helper()
	stream, err := client.New(n.Socket()).Stream(ctx, "/v1/modules/guard/events")
	if err != nil {
		n.T.Fatal(err)
	}
	out := make(chan verdict, 1000)
	go func() {
		defer stream.Close()
		defer close(out)
		for lines := json.NewDecoder(stream); ; {
			var v verdict
			if lines.Decode(&v) != nil {
				return
			}
			out <- v
		}
	}()
	return out
}

func guard(where string) v1.Module {
	return module("guard", "classifier", "app=web", map[string]any{"model": "hello", "shadow": "other", "window": "500ms",
		"rpl":      map[string]any{"frames": "ethernet"},
		"evaluate": map[string]any{"where": where}, "action": map[string]any{"do": "drop", "for": "1h"},
		"hysteresis": map[string]any{"hits": 2, "of": 3}, "events": "positives"})
}

// An attacker in an RPL network behind a service is dropped, by models that are replaced, rejected and rolled back
// under load, through the end of the agent, and in user mode; no frame of the others is lost.
func TestClassifier(t *testing.T) {
	n := newRunningNode(t)
	n.must("model", "load", n.writeModel(1, 1e6)) // which classifies nothing as an attack
	n.apply(guard("packet"))
	n.Eventually("the model runs", func() bool { return n.runningVersion() == 1 })
	air := startRadio(t, n.web, n.db)
	n.Eventually("all are known and none is blocked", func() bool {
		return len(query[[]struct{ Source string }](n, "sources")) == benign+1 &&
			query[map[string]int](n, "stats")["evaluated"] > 2*benign
	})
	if got := n.blocked(); len(got) != 0 || air.heard[attacker].Load() == 0 {
		t.Errorf("blocked %q; %d frames of the attacker were heard", got, air.heard[attacker].Load())
	}

	n.expect("trace", []string{"--service", "web", "--count", "20", "--module", "guard"}, "guard:next class=benign:0.")

	// The verdicts of the next model, with its version.
	ctx, cancel := context.WithCancel(t.Context())
	verdicts := n.verdicts(ctx)
	n.must("model", "load", n.writeModel(2, 3))
	for v := range verdicts {
		if v.Kind != "suspicious" {
			continue
		}
		if v.Source != nodeName(attacker) || v.Version != 2 || v.Class != "flood" || v.Action != "drop" ||
			v.Features["dis"] <= 3 {
			t.Errorf("%+v", v)
		}
		break
	}
	cancel()
	air.awaitBlocked()
	if got := n.blocked(); !slices.Equal(got, []string{nodeName(attacker)}) {
		t.Errorf("blocked %q", got)
	}
	if m := get[v1.Model](n, "model", "hello"); !slices.Equal(m.Status.Modules, []string{"guard"}) ||
		m.Status.Conditions[0].Reason != "InUse" {
		t.Errorf("%+v", m.Status)
	}

	n.replaceModels(air)
	n.loadInvalidModels()
	n.killAgentWithRadio(air)
	n.evaluateInUserSpace(air)
	air.finish()
	if drops := get[v1.Module](n, "module", "guard").Status.Drops; len(drops) != 1 || drops[0].Reason != "classified" ||
		drops[0].Packets+uint64(air.heard[attacker].Load()) != uint64(air.sent[attacker].Load()) {
		t.Errorf("%+v, %d sent, %d heard", drops, air.sent[attacker].Load(), air.heard[attacker].Load())
	}
	n.must("model", "delete", "hello", "other")
	n.Eventually("the module has no model", func() bool { return n.guardCondition("Model").Status == "False" })
	n.checkPins()
}

// replaceModels changes the model ten times under load, adds a shadow model, and rolls back.
func (n *node) replaceModels(air *radio) {
	n.T.Helper()
	before := get[v1.Module](n, "module", "guard").Status.Attachments[0].Chain
	for version := 3; version <= 12; version++ {
		n.must("model", "load", n.writeModel(version, 3))
		if got := n.runningVersion(); got != version {
			n.T.Errorf("version %d runs after %d was loaded", got, version)
		}
	}
	n.must("model", "load", n.writeModel(20, 3, `"dis"`, `"dio"`), "--name", "other") // classifies all others as attackers
	n.Eventually("the shadow model disagrees", func() bool {
		return query[map[string]float64](n, "agreement")["onlyShadow"] > 0
	})
	n.must("model", "rollback", "hello")
	if got := n.runningVersion(); got != 11 {
		n.T.Errorf("version %d runs after going back from 12", got)
	}
	kept := get[v1.Model](n, "model", "hello").Status.Versions
	if len(kept) != 5 || kept[0].Version != 12 || kept[1].Version != 11 {
		n.T.Errorf("kept %+v", kept)
	}
	if after := get[v1.Module](n, "module", "guard").Status.Attachments[0].Chain; after != before {
		n.T.Errorf("chain %s became %s: a model is no change of it", before, after)
	}
	air.awaitBlocked()
}

// loadInvalidModels tries invalid models; the running one continues.
func (n *node) loadInvalidModels() {
	n.T.Helper()
	n.refused(n.kerb("model", "load", n.writeModel(30, 3, "[0, 1]", "[0, NaN]")), 2, "not JSON", "NaN")
	n.refused(n.kerb("model", "load", n.writeModel(30, 3, `"dis"`, `"disks"`)), 2, "disks", "dis")
	n.refused(n.kerb("model", "load", n.writeModel(30, 3, `"right": 2`, `"right": 7`)), 2, "trees[0]")
	// valid, but not for this module
	r := n.kerb("model", "load", n.writeModel(30, 3, `"rpl"`, `"flow"`, `"dis"`, `"syn"`), "--name", "hello")
	if r.code != 5 || !strings.Contains(r.stderr, "module guard: it is made for the extractor flow") {
		n.T.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	if got := n.runningVersion(); got != 11 {
		n.T.Errorf("version %d runs after others were refused", got)
	}
	n.Eventually("the module says so", func() bool { return n.guardCondition("Models").Status == "False" })
	n.must("model", "rollback", "hello")
	n.Eventually("and is well again", func() bool { return n.guardCondition("Models").Status == "True" })
}

// killAgentWithRadio kills the agent, which changes nothing.
func (n *node) killAgentWithRadio(air *radio) {
	n.T.Helper()
	n.Kill()
	air.awaitBlocked()
	n.start()
	n.Eventually("the model is adopted", func() bool {
		return n.kerb("module", "query", "guard", "models").code == 0 && n.runningVersion() == 11
	})
	if got := n.blocked(); !slices.Equal(got, []string{nodeName(attacker)}) {
		n.T.Errorf("blocked %q after a new start", got)
	}
	air.awaitBlocked()
	n.must("module", "set", "guard", "blocked/"+nodeName(attacker)+"=none")
	air.awaitBlocked() // it continues, and is blocked again
}

// evaluateInUserSpace makes the control plane evaluate the models.
func (n *node) evaluateInUserSpace(air *radio) {
	n.T.Helper()
	n.apply(guard("user"))
	n.Eventually("the model runs in the control plane", func() bool { return n.runningVersion() == 11 })
	n.must("module", "set", "guard", "blocked/"+nodeName(attacker)+"=none")
	heard := air.heard[attacker].Load()
	n.Eventually("the attacker is heard", func() bool { return air.heard[attacker].Load() > heard })
	air.awaitBlocked()
	if got := n.blocked(); !slices.Equal(got, []string{nodeName(attacker)}) {
		n.T.Errorf("blocked %q in user mode", got)
	}
}

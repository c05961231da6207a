// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/modules/classifier/extract"
	"github.com/kerb-edge/kerb/modules/classifier/models"
)

// heard is a frame of a capture, with its FCS.
type heard struct {
	time  uint64 // ns of the simulation, and epoch
	frame []byte
}

// epoch is the start of the captures' clock, at which windows of all lengths end.
const epoch = 1000 * second

// capture reads a pcap file of link type 195.
func capture(t testing.TB, path string) (out []heard) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if be.Uint32(b) == 0xa1b2c3d4 {
		order = be
	}
	if order.Uint32(b) != 0xa1b2c3d4 || order.Uint32(b[20:]) != 195 {
		t.Fatalf("%s is no capture of IEEE 802.15.4 with FCS", path)
	}
	for b = b[24:]; len(b) >= 16; {
		n := 16 + int(order.Uint32(b[8:]))
		at := uint64(order.Uint32(b))*second + uint64(order.Uint32(b[4:]))*1000
		out = append(out, heard{epoch + at, b[16:n]})
		b = b[n:]
	}
	return out
}

// inEthernet wraps frames of captures in Ethernet, since some are too short for test runs.
var inEthernet = settings{"frames": uint8(1), "fcs_len": uint8(2)}

func wrapped(f []byte) []byte { return ethernet(0x809a, f) }

func replay(t *testing.T, path string, c extract.Config) {
	t.Helper()
	k := load(t, hooks[len(path)%2], with(inEthernet, constants(c)))
	frames := capture(t, path)
	n := 0
	compare(t, k, extract.NewRPL(c), func(f []byte) []byte { return wrapped(append(f, 0, 0)) }, func() (uint64, []byte) {
		if n == len(frames) {
			return 0, nil
		}
		h := frames[n]
		n++
		return h.time, append([]byte{}, h.frame[:len(h.frame)-2]...)
	})
}

// TestExcerpts compares both extractors with the contents of the excerpts in testdata, counted without parsing headers.
func TestExcerpts(t *testing.T) {
	const within = 250 * time.Millisecond
	for name, want := range map[string]struct {
		attacker uint64
		sums     [7]int64 // messages of the attacker: DIS, DIO, DAO, DAO-ACK, control, other; repeats
	}{
		"contiki-dis.pcap":   {0xc30c00000000000c, [7]int64{22, 0, 0, 0, 0, 0, 455}},
		"contiking-dao.pcap": {0x020c000c000c000c, [7]int64{0, 0, 72, 0, 0, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			x := extract.NewRPL(extract.Config{Window: time.Hour, Repeat: within})
			for _, h := range capture(t, path) {
				x.Frame(h.time, h.frame[:len(h.frame)-2])
			}
			v := x.Features(extract.Node{ID: want.attacker})
			if v == nil {
				t.Fatal("the attacker is not heard")
			}
			if got := [7]int64{v[0], v[1], v[2], v[3], v[4], v[5], v[7]}; got != want.sums {
				t.Errorf("%v, want %v", got, want.sums)
			}
			replay(t, path, extract.Config{Window: time.Second, Repeat: within})
		})
	}
}

// dataDir returns the directory of the captures of RPL networks, which are too large for the repository.
func dataDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("KERB_RPL_DATA")
	if dir == "" {
		t.Skip("KERB_RPL_DATA names no directory with captures")
	}
	return dir
}

func captures(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dataDir(t), "*.pcap"))
	if err != nil || len(found) == 0 {
		t.Fatal("no captures", err)
	}
	return found
}

func TestCaptures(t *testing.T) {
	for _, path := range captures(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			replay(t, path, extract.Config{Window: 5 * time.Second, Repeat: 250 * time.Millisecond})
			replay(t, path, extract.Config{Window: 10 * time.Second, Sliding: true, Repeat: 250 * time.Millisecond})
		})
	}
}

// attacks returns the start times of the attacks.
func attacks(t *testing.T, path string) (starts []uint64) {
	t.Helper()
	f, err := os.Open(strings.TrimSuffix(path, "-root.pcap") + ".attack-intervals.txt")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var us uint64
		var state string
		if _, err := fmt.Sscanf(lines.Text(), "%d 12: ATTACK %s", &us, &state); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if state == "ON" {
			starts = append(starts, epoch+us*1000)
		}
	}
	return starts
}

// TestDetection runs the shipped models over whole captures: every attack is detected by the end of the second window,
// without false positives. The attacker, if any, is node 12.
func TestDetection(t *testing.T) {
	for _, seconds := range []uint64{1, 5, 10} {
		document, err := models.Files.ReadFile(fmt.Sprintf("rpl-floods-%ds.json", seconds))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range captures(t) {
			t.Run(fmt.Sprintf("%ds/%s", seconds, filepath.Base(path)), func(t *testing.T) {
				k := load(t, chain.XDP, with(inEthernet, settings{"window_ns": seconds * second, "events": uint8(1)}))
				k.load(0, document)
				var against []event
				for _, h := range capture(t, path) {
					k.at(h.time)
					k.run(wrapped(h.frame))
					if k.count(countPositive) > uint64(len(against)) {
						against = append(against, k.events()...)
					}
				}
				detected(t, path, seconds*second, against)
			})
		}
	}
}

func detected(t *testing.T, path string, length uint64, against []event) {
	t.Helper()
	attacker, contiki := nodeKey(extract.Node{ID: 0x020c000c000c000c}), nodeKey(extract.Node{ID: 0xc30c00000000000c})
	var hits []uint64
	for _, e := range against {
		if e.Hits&1 == 0 {
			continue
		}
		if strings.Contains(path, "benign") || (e.Source != attacker && e.Source != contiki) {
			t.Errorf("against %x at %d s: %v", e.Source.Addr[8:], (e.Time-epoch)/second, e.Values)
			continue
		}
		hits = append(hits, e.Time)
	}
	starts := attacks(t, path)
	late := 0
	for _, s := range starts {
		end := (s/length + 2) * length // of the second window
		found := false
		for _, h := range hits {
			found = found || (h > s && h <= end)
		}
		if !found {
			late++
		}
	}
	t.Logf("%d evaluations against the attacker; %d of %d attacks were found within two windows", len(hits),
		len(starts)-late, len(starts))
	if late > 0 || (strings.Contains(path, "mal") && len(hits) == 0) {
		t.Errorf("%d attacks were found too late", late)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pkttest

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// A built-in package is linked as the agent links it: on kernels before 6.13, intercept has no stack left for anything
// else.
func TestModuleOf(t *testing.T) {
	for source, builtIn := range map[string]bool{pkgs.SourceBuiltin: true, "modules/intercept": false} {
		if got := ModuleOf(&pkgs.Package{Manifest: pkgs.Manifest{Name: "intercept"},
			Source: source}).BuiltIn; got != builtIn {
			t.Errorf("package from %s: built in: %t", source, got)
		}
	}
}

// Captures of another implementation are read, and those that are cut off anywhere are refused or have fewer packets.
func TestCaptures(t *testing.T) {
	frames := [][]byte{{1, 2, 3}, bytes.Repeat([]byte{7}, 1500), {9}}
	for name, write := range map[string]func(*bytes.Buffer, layers.LinkType){"pcap": writePcap(t, frames),
		"pcapng": writePcapng(t, frames)} {
		var file, other bytes.Buffer
		write(&file, layers.LinkTypeEthernet)
		if got, err := parseCapture(file.Bytes()); err != nil || cmp.Diff(frames, got) != "" {
			t.Errorf("%s: %d packets, %v", name, len(got), err)
		}
		write(&other, layers.LinkTypeRaw)
		if _, err := parseCapture(other.Bytes()); err == nil {
			t.Errorf("%s: packets without Ethernet were taken", name)
		}
		for length := range file.Len() {
			if got, err := parseCapture(file.Bytes()[:length]); err == nil && len(got) >= len(frames) {
				t.Errorf("%s: %d packets in %d of %d bytes", name, len(got), length, file.Len())
			}
		}
	}
}

func writePcap(t *testing.T, frames [][]byte) func(*bytes.Buffer, layers.LinkType) {
	return func(to *bytes.Buffer, link layers.LinkType) {
		w := pcapgo.NewWriter(to)
		if err := w.WriteFileHeader(1<<16, link); err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: len(f), Length: len(f)},
				f); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func writePcapng(t *testing.T, frames [][]byte) func(*bytes.Buffer, layers.LinkType) {
	return func(to *bytes.Buffer, link layers.LinkType) {
		w, err := pcapgo.NewNgWriter(to, link)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: len(f), Length: len(f)},
				f); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}
